"""What stands beside an attack on a learner, each in a process of its own: the attack without the learner's part in it."""

from __future__ import annotations

import select
import socket
import time
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import NoReturn

from benchmarks.processes import allow_open_files, die_with_reader

HELD = 1000  # connections that a listener leaves open


def listen(says: Connection) -> NoReturn:
    """Two bare listeners. It says their ports. One hangs up at once, the other never reads and keeps the last `HELD` connections."""
    die_with_reader(says)
    allow_open_files(2 * HELD)
    brief, patient = (socket.create_server(("127.0.0.1", 0), backlog=1024) for _ in range(2))
    says.send((brief.getsockname()[1], patient.getsockname()[1]))
    held: deque[socket.socket] = deque()
    while True:
        for listener in select.select([brief, patient], [], [])[0]:
            with suppress(OSError):
                sock, _ = listener.accept()
                if listener is patient:
                    held.append(sock)
                    sock = held.popleft() if len(held) > HELD else None  # type: ignore[assignment]
                if sock is not None:
                    sock.close()


def burn(says: Connection, share: float, portions: float) -> NoReturn:
    """Take `share` seconds of CPU time in each second, in `portions` portions; nobody is bothered."""
    die_with_reader(says)
    says.send("begins")
    start, begun = time.monotonic(), time.process_time()
    for number in range(1 << 62):
        pause = start + number / portions - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        while time.process_time() - begun < (number + 1) * share / portions:
            pass
    raise AssertionError("unreachable")
