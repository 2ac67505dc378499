"""The arrays of one batch, into which answers are copied as they arrive: those to one draw, or to several whose items make up one batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import ProtocolError
from echo_core.base.memory.recycled import LARGE, large

if TYPE_CHECKING:
    from echo_core.spec.leaf import LeafSpec
    from echo_core.wire.protocol import Buffer

__all__ = ["BatchMemory"]

KEY, PROBABILITY = np.dtype(np.uint64), np.dtype(np.float64)


class BatchMemory:
    """Memory for the n items of a batch.

    Args:
        n: items.
        leaves: of one item.

    Attributes:
        keys, probabilities: uint64 and float64 of shape (n,).
        leaves: an array of shape `(n, *leaf.shape)` for each leaf.
        policy_versions: uint64 of shape (n,); None if no answer had any.
        filled: how many items were copied in. A draw that fails sets it back to where it began.
    """

    def __init__(self, n: int, leaves: Sequence[LeafSpec]) -> None:
        self._n, self.filled = n, 0
        # Arrays of bytes are what answers are copied into, because slices of them are the cheapest.
        self._columns: list[tuple[memoryview, int]] = []
        self.keys = self._array(KEY, (), KEY.itemsize)
        self.probabilities = self._array(PROBABILITY, (), PROBABILITY.itemsize)
        arrays = [self._array(leaf.dtype, leaf.shape, leaf.nbytes) for leaf in leaves]
        self.leaves: list[np.ndarray] = arrays
        self.policy_versions: np.ndarray | None = None
        self._row_bytes = sum(row for _, row in self._columns)
        self._versions: memoryview | None = None

    def _array(self, dtype: np.dtype[Any], shape: tuple[int, ...], row: int) -> np.ndarray:
        size = self._n * row
        data = np.empty(size, np.uint8) if size < LARGE else large(size)
        self._columns.append((memoryview(data), row))
        return data.view(dtype).reshape(self._n, *shape)

    def copy(self, blob: Buffer, count: int, versions: bool) -> None:
        """Copy the next `count` items from an answer: its keys, its probabilities, its leaves, and with `versions` its policy versions.

        Raises:
            ProtocolError: the answer has another length. Nothing was copied.
        """
        wanted = count * (self._row_bytes + (8 if versions else 0))
        if len(blob) != wanted:
            raise ProtocolError(f"received a message of {len(blob)} bytes instead of {wanted}; install the same echo-core at both ends")
        source, at, first = memoryview(blob), 0, self.filled
        for column, row in self._columns:
            size = count * row
            column[first * row : first * row + size] = source[at : at + size]
            at += size
        if versions:
            if self.policy_versions is None:
                self.policy_versions = np.zeros(self._n, np.uint64)
                self._versions = memoryview(self.policy_versions.view(np.uint8))
            assert self._versions is not None
            self._versions[8 * first : 8 * (first + count)] = source[at:]
        self.filled += count
