"""Calls that wait to be accepted, fairly: one connection's many do not keep another's out."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

__all__ = ["Arrivals"]

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Who has arrived, by connection: every connection has its turn, and its calls theirs in order.

    Args:
        most: that wait at a time. Of more, the oldest of the connection with the most gives way, if that has several: a crowd throws out its own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[str, dict[T, None]] = {}  # of a connection, oldest first; connections in the order of their turns
        self._count = 0
        self._look = self._closed = False

    def put(self, connection: str, item: T) -> T | None:
        """Who has to give way for it, if anybody."""
        with self._changed:
            self._waiting.setdefault(connection, {})[item] = None
            self._count += 1
            self._changed.notify()
            if self._count <= self._most:
                return None
            crowd = max(self._waiting, key=lambda name: len(self._waiting[name]))
            return self._take(crowd) if len(self._waiting[crowd]) > 1 else None

    def discard(self, connection: str, item: T) -> None:
        """It has gone; so it may have before, or been taken."""
        with self._changed:
            if item in self._waiting.get(connection, ()):
                self._remove(connection, item)

    def get(self, timeout: float | None) -> T | None:
        """The next one; None if there is none in time, or `look` was called. Raises EOFError once closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._count or self._look or self._closed, timeout)
            if self._closed:
                raise EOFError
            if self._look or not self._count:
                self._look = False
                return None
            connection = next(iter(self._waiting))
            item = self._take(connection)
            if connection in self._waiting:
                self._waiting[connection] = self._waiting.pop(connection)  # its turn comes after the others'
            return item

    def look(self) -> None:
        """Have `get` come back."""
        with self._changed:
            self._look = True
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _take(self, connection: str) -> T:
        item = next(iter(self._waiting[connection]))
        self._remove(connection, item)
        return item

    def _remove(self, connection: str, item: T) -> None:
        del self._waiting[connection][item]
        self._count -= 1
        if not self._waiting[connection]:
            del self._waiting[connection]
