"""A batch that a client has asked for and that nobody waits for yet."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch_memory import BatchMemory
    from .remote_table import Drawing, RemoteInfo, RemoteSample, RemoteTable
    from .turn import Turn

__all__ = ["PendingSample"]


class PendingSample:
    """A batch that was asked for by `sample_begin`. Collect it once, or withdraw it. If it is dropped instead, its items may still be drawn at the
    server, and are lost then."""

    def __init__(self, table: RemoteTable, drawing: Drawing, turn: Turn, seconds: float) -> None:
        self._table, self._drawing, self._turn, self._seconds = table, drawing, turn, seconds

    def collect(self) -> RemoteSample:
        """Wait for the batch. It raises the errors of `RemoteTable.sample`; its timeout is the one that `sample_begin` was given."""
        sample: RemoteSample = self._table._finish(self._drawing, self._seconds)
        return sample

    def collect_into(self, memory: BatchMemory) -> RemoteInfo:
        """Wait for the batch, and copy it behind what `memory` has, without memory of its own. The effective sample size of a part is not
        computed, and is NaN.

        Raises:
            ConnectionClosedError: the connection was lost; this does not wait until it stands again. The rest as `collect`. `memory` then has what
                it had before.
        """
        self._drawing.memory, self._drawing.comes_back = memory, False
        first = memory.filled
        return self._table._info(self._table._draw(self._drawing, self._seconds)[1], memory, first, math.nan)

    def withdraw(self) -> None:
        """Nobody waits for this batch any more."""
        self._turn.withdraw()
