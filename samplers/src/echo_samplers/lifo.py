"""Last in, first out: draws the newest samples. As a remover, it makes a table keep its oldest samples."""

from __future__ import annotations

from . import _native
from .native import NativeSampler

__all__ = ["Lifo"]


class Lifo(NativeSampler):
    """Draws the n keys that arrived last, newest first, with probability 1.

    Every operation on n keys costs O(n), for any number of held keys. Priorities are checked and
    ignored. It takes 8 bytes per sample.
    """

    replacement = False

    def _make(self) -> _native.NativeSampler:
        return _native.ordered(self.options.capacity, True)
