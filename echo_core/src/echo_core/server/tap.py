"""Looks at a few samples of a store that take none of them (`Observer.tap`, `echoctl tap`); operations/looks.py answers with them.

Of a replay table it copies the items that came last. Of a stream it copies what is committed and not yet taken (tap.hpp). Where a learner
takes every batch the moment it is there, the store is empty whenever one looks: then a wish is left, and the learner's next `sample()`
copies a few samples of its batch before anybody can change them. Without a wish that costs it one comparison for each batch.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..base.errors import EchoError
from ..wire.protocol import MAX_CONTROL_BYTES

if TYPE_CHECKING:
    from ..store.store import Store

__all__ = ["ROOM", "Taps"]

ROOM = 4096  # bytes of an answer for its JSON, beside the spec
FRESH = 10.0  # seconds after which a look that nobody fetched is no news any more


@dataclass
class _Wish:
    """`most` samples are wanted; `granted` is `(n, [bytes of each leaf])` once a learner has taken a batch."""

    most: int
    made_at: float = field(default_factory=time.monotonic)
    granted: tuple[int, list[bytes]] | None = None


class Taps:
    """The looks of one server: the wish that is open, and the last look that takes more than one message to fetch."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # requests of several observers come at the same time
        self._wish: _Wish | None = None
        self._number = 0
        self._held = b""
        self._held_at = 0.0

    def wished(self, store: Store, most: int) -> tuple[int, list[bytes]] | None:
        """What a learner's batch gave since the last call; None leaves a wish for the next batch."""
        with self._lock:
            wish, self._wish = self._wish, None
            if wish is not None and wish.granted is not None and time.monotonic() - wish.made_at < FRESH:
                return wish.granted
            if wish is None or wish.granted is not None or wish.most < most:
                wish = _Wish(most)
            self._wish = store._tap_wish = wish
        return None

    def hold(self, data: bytes) -> int:
        """Keep a look for `part`, in place of the one before; its number."""
        with self._lock:
            self._number += 1
            self._held, self._held_at = data, time.monotonic()
            return self._number

    def part(self, number: int, at: int) -> bytes:
        """The bytes of a held look from `at` on, as many as travel at once."""
        with self._lock:
            if number != self._number or time.monotonic() - self._held_at > FRESH:
                self._held = b""
                raise EchoError("this look is gone: another one took its place, or it waited too long to be fetched; ask again")
            self._held_at = time.monotonic()
            data = self._held[at : at + MAX_CONTROL_BYTES - ROOM]
            if at + len(data) >= len(self._held):
                self._held = b""
            return data
