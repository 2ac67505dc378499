"""Copies a few samples of a store without removing them (`Observer.tap`, `echoctl tap`); operations/looks.py sends the copies.

In a replay table, it copies the newest items. In a stream, it copies the samples that are committed and not yet taken (tap.hpp). If the
learner takes every batch as soon as it is complete, the store is always empty. In that case a wish is recorded, and the learner's next
`sample()` copies a few samples of its batch before anybody can change them. Without a wish, this costs one comparison per batch.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.errors import EchoError
from ..wire.protocol import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from ..store.storage import Storage

__all__ = ["ROOM", "Taps"]

ROOM = 4096  # bytes of an answer for its JSON, in addition to the spec
FRESH = 10.0  # seconds after which a look that nobody fetched is dropped


@dataclass
class _Wish:
    """A wish for `most` samples. `granted` is `(n, [bytes of each leaf])` once a learner has taken a batch."""

    most: int
    made_at: float = field(default_factory=time.monotonic)
    granted: tuple[int, list[bytes]] | None = None


class Taps:
    """The looks of one server: the open wish, and the last look that needs more than one message."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # requests of several observers may arrive at the same time
        self._wish: _Wish | None = None
        self._number = 0
        self._held = b""
        self._held_at = 0.0

    def wished(self, storage: Storage, most: int) -> tuple[int, list[bytes]] | None:
        """The samples that a learner's batch has provided since the last call. Without any, it records a wish and returns None."""
        with self._lock:
            wish, self._wish = self._wish, None
            if wish is not None and wish.granted is not None and time.monotonic() - wish.made_at < FRESH:
                return wish.granted
            if wish is None or wish.granted is not None or wish.most < most:
                wish = _Wish(most)
            self._wish = wish if storage.wish(wish) else None
        return None

    def hold(self, data: bytes) -> int:
        """Keep a look for `part` instead of the previous one, and return its number."""
        with self._lock:
            self._number += 1
            self._held, self._held_at = data, time.monotonic()
            return self._number

    def part(self, number: int, at: int) -> bytes:
        """The bytes of the kept look from `at` on, as many as fit into one message."""
        with self._lock:
            if number != self._number or time.monotonic() - self._held_at > FRESH:
                self._held = b""
                raise EchoError("this look is gone, because another one replaced it or it was not fetched in time; ask again")
            self._held_at = time.monotonic()
            data = self._held[at : at + MAX_CONTROL_BYTES - ROOM]
            if at + len(data) >= len(self._held):
                self._held = b""
            return data
