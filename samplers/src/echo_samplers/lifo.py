"""Last in, first out: the newest samples, and as a remover a table that keeps its oldest ones."""

from __future__ import annotations

from . import _native
from .native import NativeSampler

__all__ = ["Lifo"]


class Lifo(NativeSampler):
    """The n keys of a batch are the n that arrived last, newest first, with probability 1.

    Every cost is O(n), whatever is held. Priorities are checked and ignored. 8 bytes per sample.
    """

    replacement = False

    def _make(self) -> _native.Rows:
        return _native.ordered(self.options.capacity, True)
