"""Where a collector packs batches: some tensors in shared memory without a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..segments.rows import Rows

__all__ = ["SharedSlots"]


class SharedSlots(Sequence[Any]):
    """`count` tensors float32 [rows, width] that processes share. Hand it to a process as an argument.

    Args:
        rows: how many rows a batch has.
        width: how many numbers a row has: `replay._storage.shape[1]`.
        count: how many batches there are at once.

    Raises MemoryError if there is not enough memory.
    """

    def __init__(self, rows: int, width: int, count: int = 2) -> None:
        self._rows, self._count = rows, count
        self._memory = Rows({"row": ((width,), "float32")}, rows * count)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: Any) -> Any:
        import torch

        if not -self._count <= index < self._count:
            raise IndexError(f"there are {self._count} slots, and {index} is none of them")
        start = index % self._count * self._rows
        return torch.from_numpy(self._memory.storage().view(np.float32)[start : start + self._rows])

    def close(self) -> None:
        """Stop using the memory here."""
        self._memory.close()

    def cleanup(self) -> None:
        """Close; nobody can attach any more."""
        self._memory.cleanup()
