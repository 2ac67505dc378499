"""A TCP proxy that breaks links at a given byte."""

from __future__ import annotations

import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

__all__ = ["Plan", "Proxy", "reset"]

PIECE = 64 << 10

How = Literal["close", "reset", "half", "hold"]


@dataclass(frozen=True)
class Plan:
    """What happens to one link.

    `up` bytes pass towards the learner and `down` bytes back (None: all); the byte after them
    ends the link: "close" at both ends in order, "reset" at both ends, "half" sends the end of
    the stream that way alone, "hold" lets nothing more pass that way and keeps the link.
    At most `piece` bytes pass at once, with `pause` seconds between.
    """

    up: int | None = None
    down: int | None = None
    how: How = "close"
    piece: int = PIECE
    pause: float = 0.0


class Proxy:
    """Listens on a port of its own and connects every client that comes to `port`, link n as `plan(n)` says.

    Everything happens on one thread, so that "after k bytes" means exactly that.
    """

    def __init__(self, port: int, plan: Callable[[int], Plan] | Plan) -> None:
        self.target = port
        self.plan = plan if callable(plan) else lambda n: plan
        self.links: list[_Link] = []  # all there ever were
        self._live: list[_Link] = []
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listening.setblocking(False)
        self.port: int = self._listening.getsockname()[1]
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._orders: list[tuple[_Link, How]] = []
        self._over = False
        self._wake, self._bell = socket.socketpair()
        self._selector.register(self._wake, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._run, name="proxy")
        self._thread.start()

    @property
    def address(self) -> str:
        return f"tcp://127.0.0.1:{self.port}"

    def cut(self, how: How = "close") -> None:
        """End every link there is, now."""
        self._orders += [(link, how) for link in list(self.links)]
        self._bell.send(b"!")

    def close(self) -> None:
        if self._over:
            return
        self._over = True
        with suppress(OSError):  # it has seen that already, and closed the bell
            self._bell.send(b"!")
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._over:
                now = time.monotonic()
                waits = [
                    way.ready_at - now for link in self._live for way in link.ways if way.paced(now)
                ]
                for key, _ in self._selector.select(min(waits) if waits else None):
                    if key.fileobj is self._listening:
                        self._accept()
                    elif key.fileobj is self._wake:
                        self._wake.recv(4096)
                orders, self._orders = self._orders, []
                for link, how in orders:
                    link.end(how)
                for link in self._live:
                    link.step()
                    link.watch(self._selector)
                self._live = [link for link in self._live if not link.dead]
        finally:
            for link in self._live:
                link.end("close")
                link.watch(self._selector)
            self._selector.close()
            for sock in (self._listening, self._wake, self._bell):
                sock.close()

    def _accept(self) -> None:
        try:
            near, _ = self._listening.accept()
        except BlockingIOError:
            return
        plan = self.plan(len(self.links))
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            reset(near)
            return
        self.links.append(_Link(near, far, plan))
        self._live.append(self.links[-1])


class _Way:
    """One direction of a link."""

    def __init__(
        self, source: socket.socket, sink: socket.socket, limit: int | None, plan: Plan
    ) -> None:
        self.source, self.sink, self.limit, self.plan = source, sink, limit, plan
        self.buffer = bytearray()
        self.taken = 0  # bytes read from the source
        self.ended = False  # the source has no more
        self.shut = False  # the sink was told so
        self.ready_at = 0.0  # time.monotonic()

    def paced(self, now: float) -> bool:
        """Whether it waits for the clock; what waits for a socket is the selector's."""
        return bool(self.buffer) and self.ready_at > now

    @property
    def reads(self) -> bool:
        # At the limit it goes on looking: the byte after it is what ends the link.
        return not (self.ended or self.shut or self.buffer)

    def step(self) -> bool:
        """Pass on what can be; whether the byte after the limit has come. Raises OSError."""
        if self.reads:
            left = (
                self.plan.piece
                if self.limit is None
                else min(self.plan.piece, self.limit - self.taken)
            )
            try:
                data = self.source.recv(left) if left else self.source.recv(1, socket.MSG_PEEK)
            except BlockingIOError:
                data = None
            if data == b"":
                self.ended = True
            elif data is not None and not left:
                return True
            elif data:
                self.taken += len(data)
                self.buffer += data
        if self.buffer and time.monotonic() >= self.ready_at:
            try:
                del self.buffer[: self.sink.send(self.buffer[: self.plan.piece])]
                self.ready_at = time.monotonic() + self.plan.pause
            except BlockingIOError:
                pass
        if self.ended and not self.buffer and not self.shut:
            self.shut = True
            self.sink.shutdown(socket.SHUT_WR)
        return False


class _Link:
    """One connection through the proxy: `near` the worker, `far` the learner."""

    def __init__(self, near: socket.socket, far: socket.socket, plan: Plan) -> None:
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.near, self.far, self.plan = near, far, plan
        self.up = _Way(near, far, plan.up, plan)
        self.down = _Way(far, near, plan.down, plan)
        self.ways = [self.up, self.down]
        self.dead = False
        self.broken = False  # as the plan said
        self._how: How = "close"
        self._watched: dict[socket.socket, int] = {}

    def step(self) -> None:
        if self.dead:
            return
        for way in self.ways:
            try:
                if not way.step():
                    continue
                self.broken = True
                if self.plan.how == "hold":
                    way.ended = way.shut = True
                elif self.plan.how == "half":
                    way.ended = True
                    way.step()
                else:
                    self.end(self.plan.how)
                    return
            except OSError:
                self.end("reset")
                return
        held = self.broken and self.plan.how == "hold"
        if not held and all(way.shut for way in self.ways):
            self.end("close")

    def end(self, how: How) -> None:
        """Close both sockets, or reset both; `watch` does it."""
        if self.dead:
            return
        self.dead = True
        self._how = how

    def watch(self, selector: selectors.BaseSelector) -> None:
        for sock in (self.near, self.far):
            events = 0
            for way in self.ways if not self.dead else ():
                if way.source is sock and way.reads:
                    events |= selectors.EVENT_READ
                if way.sink is sock and way.buffer and not way.paced(time.monotonic()):
                    events |= selectors.EVENT_WRITE
            known = self._watched.get(sock, 0)
            if events == known:
                continue
            if known and events:
                selector.modify(sock, events)
            elif events:
                selector.register(sock, events)
            else:
                selector.unregister(sock)
            self._watched[sock] = events
        if self.dead and self.near.fileno() >= 0:
            for sock in (self.near, self.far):
                reset(sock) if self._how == "reset" else sock.close()


def reset(sock: socket.socket) -> None:
    """Close a socket by RST: what is unread at either end is lost."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
