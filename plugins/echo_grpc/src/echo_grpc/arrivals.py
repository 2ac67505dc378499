"""A fair queue of calls that wait to be accepted: many calls of one connection do not keep out those of another."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

__all__ = ["Arrivals"]

T = TypeVar("T")


class Arrivals(Generic[T]):
    """The calls that have arrived, by connection. Connections take turns, and the calls of each are taken in order.

    Args:
        most: the most calls that wait at a time. If there are more, the connection with the most calls loses its oldest, if it has several.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        self._waiting: dict[str, dict[T, None]] = {}  # by connection, oldest first; connections in the order of their turns
        self._count = 0
        self._look = self._closed = False

    def put(self, connection: str, item: T) -> T | None:
        """Add a call. Returns the call that has to give way for it, or None."""
        with self._changed:
            self._waiting.setdefault(connection, {})[item] = None
            self._count += 1
            self._changed.notify()
            if self._count <= self._most:
                return None
            crowd = max(self._waiting, key=lambda name: len(self._waiting[name]))
            return self._take(crowd) if len(self._waiting[crowd]) > 1 else None

    def discard(self, connection: str, item: T) -> None:
        """The call has ended. It may already have been discarded or taken."""
        with self._changed:
            if item in self._waiting.get(connection, ()):
                self._remove(connection, item)

    def get(self, timeout: float | None) -> T | None:
        """The next call; None if none comes in time, or `look` was called. Raises EOFError after `close`."""
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
        """Make `get` return."""
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
