"""Samplers that draw the lowest or highest priorities first, for best-first learners, curricula, and removers."""

from __future__ import annotations

from typing import ClassVar

from . import _native
from .native import NativeSampler

__all__ = ["MaxHeap", "MinHeap"]


class _Heap(NativeSampler):
    replacement = False
    highest_first: ClassVar[bool]

    def _make(self) -> _native.NativeSampler:
        return _native.heap(self.options.capacity, self.highest_first)


class MinHeap(_Heap):
    """Draws the n keys of lowest priority, lowest first, with probability 1.

    Among equal priorities, the first arrival comes first. A new sample without a priority gets the
    largest priority given so far, initially 1. It is an indexed 4-ary heap: insert, delete and update
    cost O(log N) per key, and drawing n keys costs O(n log n), for any number of held keys. It takes
    28 bytes per sample. As a remover it removes the lowest priority.
    """

    highest_first = False


class MaxHeap(_Heap):
    """Draws the n keys of highest priority, highest first, with probability 1.

    Everything else is as in `MinHeap`. As a remover it removes the highest priority. If the priority
    is the policy's age, the table keeps young experience.
    """

    highest_first = True
