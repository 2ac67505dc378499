"""Remote batches that are larger than a message. Each is drawn once, as a whole, and kept until the client has fetched its last part."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

__all__ = ["MOST_BYTES", "HeldBatches"]

MOST = 8  # batches of one client: at most this many of its threads may fetch a large batch at the same time
MOST_BYTES = 1 << 30  # the limit for one batch, and for all batches that are kept for one client


class _Held(NamedTuple):
    figures: dict[str, Any]
    columns: list[np.ndarray]

    def size(self) -> int:
        return sum(column.nbytes for column in self.columns)


class HeldBatches:
    """The kept batches, by client and by the number that the client gave each batch. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, dict[int, _Held]] = {}

    def put(self, client: int, number: int, figures: dict[str, Any], columns: list[np.ndarray]) -> None:
        """Keep a batch. If the client has too many, its oldest is dropped: the client has given it up, or gets an error for its next part."""
        with self._lock:
            batches = self._of.setdefault(client, {})
            batches[number] = _Held(figures, columns)
            while len(batches) > MOST or (len(batches) > 1 and sum(held.size() for held in batches.values()) > MOST_BYTES):
                del batches[next(iter(batches))]

    def part(self, client: int, number: int, start: int, rows: int) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        """`rows` items from `start` on; None if there is no such batch. The batch is dropped when its last items are returned."""
        with self._lock:
            batches = self._of.get(client, {})
            held = batches.get(number)
            if held is None:
                return None
            if start + rows >= len(held.columns[0]):
                del batches[number]
        return held.figures, [column[start : start + rows] for column in held.columns]

    def forget(self, client: int) -> None:
        """Drop all batches of a client that has left."""
        with self._lock:
            self._of.pop(client, None)
