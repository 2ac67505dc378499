"""The learner's end and bytes in awkward portions: all bytes in a socket are read, and a peer that is too slow is disconnected."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np

from echo_core.base.address import Address
from echo_core.spec.spec import Spec
from echo_testing.processes import stop

KILOBYTE = {"number": np.zeros(128, np.int64)}
LARGE = {"image": np.zeros((100, 200), np.int32), "y": np.zeros(3, np.int64)}  # 80,024 bytes


@contextlib.contextmanager
def elsewhere() -> Iterator[tuple[subprocess.Popen[str], Any]]:
    """A learner in a process of its own, which can be stopped, with the attributes that `RawWorker` needs."""
    program = textwrap.dedent(
        """
        import sys
        import numpy as np
        from echo_core import Server
        from echo_tcp.transport import TcpTransport

        transport = TcpTransport(port=0, receive_buffer=4 << 20)
        with Server({"number": np.zeros(128, np.int64)}, 700, transport, num_buffers=2) as server:
            print(server.port, flush=True)
            sys.stdin.read()
        """
    )
    learner = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert learner.stdout is not None
        port = int(learner.stdout.readline())
        yield learner, SimpleNamespace(spec=Spec.from_example(KILOBYTE), address=Address("tcp", "127.0.0.1", port))
    finally:
        learner.kill()
        learner.communicate()


def test_what_is_less_than_the_large_frame_before_it_is_read(dial) -> None:
    """A turn ends with its share used up, after a large frame came in pieces and the loop had asked to be woken only for a large piece."""
    with elsewhere() as (learner, server):
        worker = dial(server)
        a, rest = worker.data(range(300)), worker.data(range(300, 680)) + worker.data(range(680, 690))
        worker.sock.sendall(a[:100_000])
        time.sleep(0.2)  # it is read, and the loop sleeps until there is more
        stop(learner.pid)
        sending = threading.Thread(target=worker.sock.sendall, args=(a[100_000:] + rest,))
        sending.start()  # in a thread, because with smaller kernel buffers the send needs the learner
        sending.join(0.5)
        os.kill(learner.pid, signal.SIGCONT)
        worker.sock.settimeout(5)
        worker.acknowledged(690)
        sending.join()


def test_who_stops_in_the_middle_of_a_frame_keeps_no_memory_that_others_wait_for(dial, eventually, serve, caplog) -> None:
    with serve(LARGE, batch_size=4, num_buffers=4, staging_bytes=1) as server:
        stopped, slow = dial(server), dial(server)
        half = stopped.data(range(2))[:100_000]
        stopped.sock.sendall(half)
        eventually(lambda: server.stats()["transport/tcp/evicted_total"] == 1)
        whole = slow.data(range(10, 12))
        slow.sock.sendall(whole[:100_000])
        eventually(lambda: server.stats()["transport/tcp/evicted_total"] == 2)
        time.sleep(0.5)  # slow even for a busy machine
        slow.sock.sendall(whole[100_000:])
        slow.acknowledged(2)
        slow.send(range(12, 14))  # it goes into no slot, because the last one was slow, and the other peer has the memory
        slow.acknowledged(4)
        with contextlib.suppress(ConnectionResetError):
            assert stopped.sock.recv(1) == b""
        eventually(lambda: "in the middle of a large frame, whose memory others were waiting for" in caplog.text)
        again = dial(server, stopped.client)
        assert again.resumed_at == 0
        again.send(range(2))
        again.acknowledged(2)
        assert server.sample(10).batch["y"][:, 0].tolist() == [10, 11, 12, 13]
        assert server.stats()["transport/tcp/staged_bytes"] == 0
