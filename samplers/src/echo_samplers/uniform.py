"""Uniform replay (Lin 1992; Mnih et al. 2015): every sample is equally likely."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import _native
from .native import NativeSampler

__all__ = ["Uniform"]


class Uniform(NativeSampler):
    """Draws each of the n keys of a batch from the N held keys, each with probability 1/N.

    Inserting, deleting and drawing cost O(1) per key. It takes 8 bytes per sample. Priorities are
    checked and ignored. As a remover it removes a random sample; all are equally likely.
    """

    @dataclass(frozen=True)
    class Options:
        """Options of `uniform`.

        Attributes:
            capacity: how many samples the table holds.
            replacement: whether a sample may occur twice in one batch. False draws n different
                samples, so n is at most the number of held samples.
        """

        capacity: int
        replacement: bool = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.replacement = self.options.replacement

    def _make(self) -> _native.NativeSampler:
        return _native.uniform(self.options.capacity, self.options.replacement)
