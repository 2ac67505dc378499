"""The ceiling of a uniform batch: one memcpy of as many bytes, from a random place of a store as large into a buffer that is used again."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import numpy as np

from benchmarks.payloads import Payload, Tree
from benchmarks.replay.adapters.base import Buffer, System


class CopiedRows(Buffer):
    """Rows next to each other, all leaves of one after another: less than any sampler that draws rows on their own can do."""

    def __init__(self, payload: Payload, capacity: int, batch: int) -> None:
        super().__init__(payload, capacity, batch)
        self._rows = np.zeros((capacity, payload.sample_bytes), np.uint8)
        self._out = np.zeros((batch, payload.sample_bytes), np.uint8)
        self._filled = 0
        starts = cycle(np.random.default_rng(1).integers(0, capacity - batch, 4096).tolist())
        rows, out, copy = self._rows, self._out, np.copyto

        def sample() -> np.ndarray:
            start = next(starts)
            copy(out, rows[start : start + batch])
            return out

        self.sample = sample

    def extend(self, items: Tree) -> None:  # type: ignore[override]
        leaves = [leaf.reshape(len(leaf), -1).view(np.uint8) for leaf in self.payload.arrays(items)]
        rows = np.concatenate(leaves, axis=1)
        self._rows[self._filled : self._filled + len(rows)] = rows
        self._filled += len(rows)

    def arrays(self, batch: Any) -> list[np.ndarray]:
        columns = []
        for leaf, offset, size in zip(self.payload.leaves, self.payload.offsets, self.payload.sizes, strict=True):
            column = np.ascontiguousarray(batch[:, offset : offset + size])
            columns.append(column.view(leaf.dtype).reshape(len(batch), *leaf.shape))
        return columns

    def touch(self, batch: Any) -> None:
        for offset in self.payload.offsets:
            batch.item(offset)


class Memcpy(System):
    name = "memcpy"
    can = frozenset({"uniform"})

    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        return CopiedRows(payload, capacity, batch)
