"""The endpoint's connections: which of them serve a request, which are idle, and how a request is read before its deadline."""

from __future__ import annotations

import io
import socket
import threading
import time
from typing import Any

OPEN_PER_PLACE = 4
"""Open connections for each place. Beyond that, the oldest idle connection is closed, so that idle clients cannot use up the threads of the process."""

GRACE = 0.25
"""Seconds for which a request waits for a place: a client that has read its answer may send its next request before the place of the first is free."""

LINGER_BYTES, LINGER_SECONDS = 64 << 20, 2.0
"""Bounds of what is read and thrown away after a refusal."""


class Gone(Exception):
    """The client closed its connection, or the endpoint closed it because it was idle."""


class Connections:
    """Knows every open connection, and lends places to those that serve a request. All methods may be called by several threads.

    Args:
        places: The largest number of requests that are served at the same time.
    """

    def __init__(self, places: int) -> None:
        if places < 1:
            raise ValueError(f"connections={places} must be at least 1")
        self._places = places
        self._most = OPEN_PER_PLACE * places
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        # A dict keeps the order of insertion, so its first connection has been idle for the longest time.
        self._idle: dict[socket.socket, None] = {}
        self._serving: set[socket.socket] = set()

    def opened(self, connection: socket.socket) -> None:
        """Note a new connection, which is idle. If too many are open, close the one that has been idle for the longest time."""
        with self._changed:
            if len(self._idle) + len(self._serving) >= self._most:
                # There is always an idle one, because there are more open connections than places.
                oldest = next(iter(self._idle))
                del self._idle[oldest]
                _end(oldest)
            self._open.add(connection)
            self._idle[connection] = None

    def take(self, connection: socket.socket) -> bool:
        """Give a connection, whose request's head is known, a place. Return False if none becomes free; raise Gone if it was closed as idle."""
        with self._changed:
            self._changed.wait_for(lambda: len(self._serving) < self._places, GRACE)
            if connection not in self._idle:
                raise Gone
            if len(self._serving) >= self._places:
                return False
            del self._idle[connection]
            self._serving.add(connection)
            return True

    def give_back(self, connection: socket.socket) -> None:
        """Make a connection, whose answer is sent, idle again."""
        with self._changed:
            self._serving.discard(connection)
            self._idle[connection] = None
            self._changed.notify_all()

    def closed(self, connection: socket.socket) -> None:
        """Forget a connection."""
        with self._changed:
            self._open.discard(connection)
            self._idle.pop(connection, None)
            self._serving.discard(connection)
            self._changed.notify_all()

    def end(self, timeout: float = 30.0) -> None:
        """Wake every thread that waits for its client, and wait for the threads' end."""
        with self._changed:
            for connection in self._open:
                _end(connection)
            self._changed.wait_for(lambda: not self._open, timeout)


def _end(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # It has ended meanwhile.


def linger(connection: socket.socket) -> None:
    """End the sending half of a connection, and throw away what the client still sends, up to a bound.

    The system resets a connection that is closed with unread bytes, and the client may then lose the answer that it was sent.
    """
    end, left = time.monotonic() + LINGER_SECONDS, LINGER_BYTES
    try:
        connection.shutdown(socket.SHUT_WR)
        while left > 0 and (seconds := end - time.monotonic()) > 0:
            connection.settimeout(seconds)
            piece = connection.recv(1 << 16)
            if not piece:
                return
            left -= len(piece)
    except OSError:
        pass  # The client is gone, or it waits for more than there is.


class RequestReader(io.RawIOBase):
    """Reads a connection so that a whole request has one deadline: a line now and then must not hold a place of the server for ever."""

    def __init__(self, connection: socket.socket, seconds: float) -> None:
        self._connection, self._seconds = connection, seconds
        self._end: float | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._seconds if self._end is None else min(self._seconds, self._end - time.monotonic())
        if left <= 0:
            raise TimeoutError("the request did not arrive in time")
        self._connection.settimeout(left)
        try:
            count = self._connection.recv_into(buffer)
        finally:
            self._connection.settimeout(self._seconds)
        if self._end is None:
            self._end = time.monotonic() + self._seconds
        return count

    def complete(self) -> None:
        """Let the next byte begin another request."""
        self._end = None
