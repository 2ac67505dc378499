"""Batches that a client draws and that are larger than a message: drawn once, as a whole, and kept until their last part was fetched."""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import numpy as np

__all__ = ["MOST_BYTES", "HeldBatches"]

MOST = 8  # of one client; more than that many threads of it, each in the middle of a large batch, are too many
MOST_BYTES = 1 << 30  # of one batch, and of all that are kept for one client


class _Held(NamedTuple):
    figures: dict[str, Any]
    columns: list[np.ndarray]

    def size(self) -> int:
        return sum(column.nbytes for column in self.columns)


class HeldBatches:
    """By client, and by the number that the client gave the batch. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._of: dict[int, dict[int, _Held]] = {}

    def put(self, client: int, number: int, figures: dict[str, Any], columns: list[np.ndarray]) -> None:
        """Keep a batch. Of a client that has too many, the oldest is dropped: it gave that up, or is told when it asks."""
        with self._lock:
            batches = self._of.setdefault(client, {})
            batches[number] = _Held(figures, columns)
            while len(batches) > MOST or (len(batches) > 1 and sum(held.size() for held in batches.values()) > MOST_BYTES):
                del batches[next(iter(batches))]

    def part(self, client: int, number: int, start: int, rows: int) -> tuple[dict[str, Any], list[np.ndarray]] | None:
        """`rows` items from `start` on; None where there is no such batch. With the last of them the batch is gone."""
        with self._lock:
            batches = self._of.get(client, {})
            held = batches.get(number)
            if held is None:
                return None
            if start + rows >= len(held.columns[0]):
                del batches[number]
        return held.figures, [column[start : start + rows] for column in held.columns]

    def forget(self, client: int) -> None:
        """It left."""
        with self._lock:
            self._of.pop(client, None)
