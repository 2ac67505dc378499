"""A batch that a client has asked for and that nobody waits for yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batch_memory import BatchMemory
    from .remote_sample import Drawing, RemoteInfo, RemoteSample
    from .turn import Turn

__all__ = ["PendingSample"]


class PendingSample:
    """A batch that was asked for by `sample_begin`. Collect it once, or withdraw it. If it is dropped instead, its items may still be drawn at the
    server, and are lost then."""

    def __init__(self, drawing: Drawing, turn: Turn, finish: Callable[[], RemoteSample], finish_part: Callable[[], RemoteInfo]) -> None:
        self._drawing, self._turn, self._finish, self._finish_part = drawing, turn, finish, finish_part

    def collect(self) -> RemoteSample:
        """Wait for the batch. It raises the errors of `RemoteTable.sample`; its timeout is the one that `sample_begin` was given."""
        return self._finish()

    def collect_into(self, memory: BatchMemory) -> RemoteInfo:
        """Wait for the batch, and copy it behind what `memory` has, without memory of its own. The effective sample size of a part is not
        computed, and is NaN.

        Raises:
            ConnectionClosedError: the connection was lost; this does not wait until it stands again. The rest as `collect`. `memory` then has what
                it had before.
        """
        self._drawing.memory, self._drawing.comes_back = memory, False
        return self._finish_part()

    def withdraw(self) -> None:
        """Nobody waits for this batch any more."""
        self._turn.withdraw()
