"""What buffers that processes share have in common, as unilab.ipc has it."""

from __future__ import annotations

from typing import Any

from .segments.rows import Rows

__all__ = ["SharedBufferBase"]


class SharedBufferBase:
    """A table of rows in shared memory.

    Args:
        capacity: how many rows it keeps.
        device: where samples go: a device of torch; or "numpy", and they are arrays.
        defer_gpu: is ignored; nothing is kept on the device.
        columns: the columns of a row, as for `Rows`.

    Attributes:
        rows: the table.
    """

    def __init__(self, capacity: int, device: str, defer_gpu: bool = False, *, columns: Any) -> None:
        del defer_gpu
        self.capacity = capacity
        self.device = device
        self.rows = Rows(columns, capacity)

    @property
    def ptr(self) -> Any:
        """int64 [1]: how many rows were added so far. Each time a new one; writing to it has no effect."""
        return self._number(self.rows.committed)

    @property
    def size(self) -> Any:
        """int64 [1]: how many rows there are. Each time a new one; writing to it has no effect."""
        return self._number(len(self.rows))

    def _number(self, value: int) -> Any:
        if self.device == "numpy":
            import numpy as np

            return np.array([value])
        import torch

        return torch.tensor([value])

    def close(self) -> None:
        """Stop using the memory here."""
        self.rows.close()

    def cleanup(self) -> None:
        """Close; nobody can attach any more."""
        self.rows.cleanup()
