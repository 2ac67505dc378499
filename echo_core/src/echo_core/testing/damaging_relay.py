"""A relay that damages one byte of a connection, as a faulty network device does: `DamagingRelay`."""

from __future__ import annotations

import select
import socket
import threading
from contextlib import closing, suppress
from typing import Self

__all__ = ["DamagingRelay"]


class DamagingRelay:
    """Listens on a free port of 127.0.0.1 and forwards all bytes to a learner. It serves one connection at a time.

    Args:
        learner: host and port.

    Attributes:
        port: the port where it listens.
        damaged: the number of bytes so far that were damaged.
    """

    def __init__(self, learner: tuple[str, int]) -> None:
        self.damaged = 0
        self._learner = learner
        self._next: tuple[str, int] | None = None
        self._worker: socket.socket | None = None
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="damaging-relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.cut()
        self._thread.join(20)
        self._listener.close()

    def cut(self, way: str = "", at: int = 0) -> None:
        """End the present connection. In the next one, byte `at` of the bytes `way` ("up": to the learner, "down") is damaged."""
        self._next = (way, at) if way else None
        if (worker := self._worker) is not None:
            with suppress(OSError):  # the connection has already ended
                worker.shutdown(socket.SHUT_RDWR)

    def _serve(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:  # closed
                return
            self._worker = worker
            with closing(worker), suppress(OSError), socket.create_connection(self._learner, timeout=20) as learner:
                self._pass_on(worker, learner)

    def _pass_on(self, worker: socket.socket, learner: socket.socket) -> None:
        (way, at), self._next = self._next or ("", 0), None
        passed = {"up": 0, "down": 0}
        while True:
            ready = select.select([worker, learner], [], [], 60)[0]
            for here, there, name in ((worker, learner, "up"), (learner, worker, "down")):
                if here in ready:
                    if not (data := bytearray(here.recv(1 << 16))):
                        return
                    if name == way and passed[name] <= at < passed[name] + len(data):
                        data[at - passed[name]] ^= 4
                        self.damaged += 1
                    passed[name] += len(data)
                    there.sendall(data)
