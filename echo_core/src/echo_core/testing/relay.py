"""A relay between workers and a learner, on which a network's faults can be made: `Relay`."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from typing import Self

__all__ = ["Relay"]

CRUMB_BYTES = 7  # of a link that is cut into crumbs


class Relay:
    """Listens on a free port of 127.0.0.1 and forwards all bytes to a learner and back, as a tunnel or a load balancer does.

    Args:
        learner: host and port.

    Attributes:
        port: the port where it listens.
        damage: whether the next bytes of a worker are changed in one bit, once.
        crumbs: whether bytes are forwarded a few at a time, so that no read and no write is whole.
    """

    def __init__(self, learner: tuple[str, int]) -> None:
        self.crumbs = False
        self.damage = False
        self._learner = learner
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._to_learner: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._flowing = threading.Event()  # of the links that there are; `stall` gives new ones another
        self._flowing.set()
        self._over = False
        self._left = 0  # bytes of workers until the links stall; 0: they do not
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._serve, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self._listener.close()
        with self._lock:
            self._flowing.set()
            sockets, threads = self._sockets, self._threads
        for sock in sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join(20)
        for sock in sockets:
            sock.close()

    def stall(self, after: int = 0) -> None:
        """The present links forward `after` more bytes of workers and then nothing, though their sockets stay open. New links are not affected."""
        with self._lock:
            self._left = after
            if not after:
                self._stall()

    def _stall(self) -> None:
        self._flowing.clear()
        self._flowing = threading.Event()
        self._flowing.set()

    def inject(self, data: bytes) -> None:
        """Send bytes to the learner on every present link, which no worker has sent."""
        with self._lock:
            for sock in self._to_learner:
                with suppress(OSError):  # the link has ended
                    sock.sendall(data)

    def _serve(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                learner = socket.create_connection(self._learner, timeout=20)
            except OSError:
                worker.close()
                continue
            learner.settimeout(None)
            with self._lock:
                self._sockets += [worker, learner]
                self._to_learner.append(learner)
                flowing = self._flowing
                for source, to in ((worker, learner), (learner, worker)):
                    thread = threading.Thread(target=self._forward, args=(source, to, flowing), daemon=True)
                    self._threads.append(thread)
                    thread.start()

    def _forward(self, source: socket.socket, to: socket.socket, flowing: threading.Event) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                while not flowing.wait(0.05):
                    if self._over:
                        return
                if self._left and to in self._to_learner:
                    data = self._count(data)
                if self.damage and to in self._to_learner:
                    self.damage = False
                    middle = len(data) // 2
                    data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
                if self.crumbs:
                    to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    for start in range(0, len(data), CRUMB_BYTES):
                        to.sendall(data[start : start + CRUMB_BYTES])
                else:
                    to.sendall(data)
        if flowing.is_set():
            for sock in (source, to):
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def _count(self, data: bytes) -> bytes:
        """The bytes of `data` that are still forwarded before the links stall."""
        with self._lock:
            data = data[: self._left]
            self._left -= len(data)
            if not self._left:
                self._stall()
        return data
