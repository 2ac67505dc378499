"""The samples of lowest or highest priority first: best-first learners, curricula, and removers."""

from __future__ import annotations

from typing import ClassVar

from . import _native
from .native import NativeSampler

__all__ = ["MaxHeap", "MinHeap"]


class _Heap(NativeSampler):
    replacement = False
    highest_first: ClassVar[bool]

    def _make(self) -> _native.Rows:
        return _native.heap(self.options.capacity, self.highest_first)


class MinHeap(_Heap):
    """The n keys of a batch are the n of lowest priority, lowest first, with probability 1.

    Of equal priorities the one that arrived first comes first. A new sample without a priority gets
    the largest given so far, at first 1. An indexed 4-ary heap: insert, delete and update cost
    O(log N) per key, drawing n costs O(n log n), whatever is held; 28 bytes per sample. As a remover
    it removes the lowest priority.
    """

    highest_first = False


class MaxHeap(_Heap):
    """The n keys of a batch are the n of highest priority, highest first, with probability 1.

    In everything else as `MinHeap`. As a remover it removes the highest priority, such as the
    policy's age in a table that shall keep young experience.
    """

    highest_first = True
