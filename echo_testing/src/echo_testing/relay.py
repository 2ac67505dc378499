"""A relay between workers and a learner, on which a network's faults can be made: `Relay`."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Literal, Self

__all__ = ["Link", "Relay"]

# Of each buffer for received bytes in the kernel. Without a bound, it grows up to net.ipv4.tcp_rmem, which is 32 MiB on some machines: an end that the relay
# does not read could then write whole messages and never wait.
RECEIVED_BYTES = 128 << 10
CRUMB_BYTES = 7  # of a link that is cut into crumbs
NARROW_BYTES = 4096  # of each buffer in the kernel of a narrow link
NARROW_SEGMENT_BYTES = 536  # the sizes of the buffers that the kernel gives the other ends follow from it
NARROW_PAUSE = 0.0005  # seconds before each read of a narrow link: both ends write faster than it reads, so that their buffers are full again and again

Way = Literal["up", "down"]  # "up": to the learner


@dataclass(eq=False)
class Link:
    """One connection of a worker, and the connection to the learner that belongs to it."""

    worker: socket.socket
    flowing: threading.Event
    damage: tuple[str, int]
    learner: socket.socket | None = None
    passed: dict[str, int] = field(default_factory=lambda: {"up": 0, "down": 0})


class Relay:
    """Listens on a free port of 127.0.0.1 and forwards all bytes to a learner and back, as a tunnel or a load balancer does.

    A subclass may override `reach` and `forward`.

    Args:
        learner: host and port.

    Attributes:
        port: the port where it listens.
        crumbs: whether bytes are forwarded a few at a time, so that no read is whole.
        damaged: the number of bytes so far that were damaged.
    """

    def __init__(self, learner: tuple[str, int]) -> None:
        self.crumbs = False
        self.damaged = 0
        self.learner = learner
        self._narrow = False
        self._damage = ("", 0)  # of the next link
        self._lock = threading.Lock()
        self._links: list[Link] = []
        self._threads: list[threading.Thread] = []
        self._flowing = threading.Event()  # of the links that there are; `stall` gives new ones another
        self._flowing.set()
        self._reading = threading.Event()
        self._reading.set()
        self._over = False
        self._left = 0  # bytes of workers until the links stall; 0: they do not
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)  # connections that it accepts are like it
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(20)
        self._listener.close()
        self._reading.set()
        self._flowing.set()
        for link in self._links:
            _end(link.worker, link.learner)
        for thread in self._threads:
            thread.join(20)

    def cut(self, way: Way | None = None, at: int = 0) -> None:
        """End the present links. In the next one, byte `at` (from 0) of the bytes that travel `way` is damaged."""
        with self._lock:
            self._damage = (way or "", at)
            for link in self._links:
                _end(link.worker)

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

    def hold(self) -> None:
        """Read nothing from now on, so that the buffers of both ends fill up, until `release`."""
        self._reading.clear()

    def release(self) -> None:
        """Read on after `hold`."""
        self._reading.set()

    def narrow(self) -> None:
        """Give new links tiny buffers, also in the kernels of both ends, and read slowly: a write of more than a few kB is cut short."""
        self._narrow = True
        _make_narrow(self._listener)

    def inject(self, data: bytes) -> None:
        """Send bytes to the learner on every present link, which no worker has sent."""
        with self._lock:
            for link in self._links:
                if link.learner is not None:
                    with suppress(OSError):  # the link has ended
                        link.learner.sendall(data)

    def reach(self) -> socket.socket:
        """A new connection to the learner. OSError."""
        learner = socket.socket(socket.AF_INET6 if ":" in self.learner[0] else socket.AF_INET)
        try:
            learner.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
            if self._narrow:
                _make_narrow(learner)
            learner.settimeout(20)
            learner.connect(self.learner)
            learner.settimeout(None)
        except BaseException:
            learner.close()
            raise
        return learner

    def forward(self, link: Link) -> None:
        """Forward bytes both ways until one end hangs up. `link` ends with this call. OSError."""
        down = threading.Thread(target=self._pass_on, args=(link, "down"), daemon=True)
        down.start()
        self._pass_on(link, "up")
        down.join()

    def _accept(self) -> None:
        while True:
            try:
                worker, _ = self._listener.accept()
            except OSError:  # closed
                return
            with self._lock:
                link = Link(worker, self._flowing, self._damage)
                self._damage = ("", 0)
                self._links.append(link)
                thread = threading.Thread(target=self._serve, args=(link,), daemon=True)
                self._threads.append(thread)
                thread.start()

    def _serve(self, link: Link) -> None:
        with closing(link.worker), suppress(OSError), self.reach() as learner:
            link.learner = learner
            if not self._over:
                self.forward(link)

    def _pass_on(self, link: Link, way: Way) -> None:
        assert link.learner is not None
        source, to = (link.worker, link.learner) if way == "up" else (link.learner, link.worker)
        to.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(OSError):
            while data := self._read(source):
                while not link.flowing.wait(0.05):
                    if self._over:
                        return
                if self._left and way == "up":
                    data = self._count(data)
                data = self._damaged(link, way, data)
                step = CRUMB_BYTES if self.crumbs else len(data)
                for start in range(0, len(data), step):
                    to.sendall(data[start : start + step])
        if link.flowing.is_set():
            _end(source, to)

    def _read(self, source: socket.socket) -> bytes:
        self._reading.wait()
        if not self._narrow:
            return source.recv(1 << 16)
        time.sleep(NARROW_PAUSE)
        return source.recv(NARROW_BYTES)

    def _count(self, data: bytes) -> bytes:
        """The bytes of `data` that are still forwarded before the links stall."""
        with self._lock:
            data = data[: self._left]
            self._left -= len(data)
            if not self._left:
                self._stall()
        return data

    def _damaged(self, link: Link, way: Way, data: bytes) -> bytes:
        """`data`, in which one bit is changed if the byte to damage is there."""
        at = link.damage[1] - link.passed[way]
        link.passed[way] += len(data)
        if link.damage[0] != way or not 0 <= at < len(data):
            return data
        self.damaged += 1
        return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


def _make_narrow(sock: socket.socket) -> None:
    """Call it before the socket is connected. Connections that a listening socket accepts are like it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, NARROW_BYTES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, NARROW_SEGMENT_BYTES)


def _end(*sockets: socket.socket | None) -> None:
    for sock in sockets:
        if sock is not None:
            with suppress(OSError):  # it has ended already
                socket.socket.shutdown(sock, socket.SHUT_RDWR)  # a TLS socket's own method would take away what another thread uses
