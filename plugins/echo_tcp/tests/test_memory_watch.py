"""The learner counts the memory that its loops hold for a client, and an idle learner sleeps."""

from __future__ import annotations

import math

import numpy as np

from echo_core.wire.protocol import Kind, pack_header

PART = bytes(40 << 10)


def test_memory_is_looked_at_while_something_is_held(serve, dial, eventually) -> None:
    with serve({"number": np.int64(0)}) as server:
        control = server._listeners[0]._control
        watch = control.memory_watch

        def held() -> int:
            return server.stats()["clients/held_bytes"]

        for _ in range(3):
            worker = dial(server)
            worker.send([1])
            worker.acknowledged(1)
            assert watch.due == math.inf, "samples are not counted"
            worker.sock.sendall(pack_header(Kind.CONTROL, seq=1, length=2 * len(PART)) + PART)
            eventually(lambda: watch.due < math.inf, "the loop reports the beginning of a message")
            eventually(lambda: held() >= len(PART), "its bytes are counted, although nothing else happens")
            worker.close()
            eventually(lambda: watch.due == math.inf and held() == 0, "nothing is held any more")
