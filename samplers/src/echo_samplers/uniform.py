"""Uniform replay (Lin 1992; Mnih et al. 2015): every sample equally likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _native
from .native import NativeSampler

__all__ = ["Uniform"]


class Uniform(NativeSampler):
    """Each of the n keys of a batch is any of the N held, with probability 1/N.

    Inserting and deleting cost O(1) per key, drawing O(1) per key; 8 bytes per sample. Priorities
    are checked and ignored. As a remover it removes any sample, all equally likely.
    """

    @dataclass(frozen=True)
    class Options:
        """Options of `uniform`.

        Attributes:
            capacity: how many samples the table holds.
            replacement: whether a sample may come twice in one batch. False draws n different
                ones, so n is at most the number held.
        """

        capacity: int
        replacement: bool = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.replacement = self.options.replacement

    def _make(self) -> _native.Rows:
        return _native.uniform(self.options.capacity, self.options.replacement)
