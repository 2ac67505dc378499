"""Prioritized experience replay, the proportional variant (Schaul, Quan, Antonoglou, Silver 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import _native
from .native import NativeSampler

__all__ = ["Prioritized"]


class Prioritized(NativeSampler):
    """A key of priority p is drawn with probability (p + eps)**alpha / sum of all (p + eps)**alpha.

    The importance weights of a batch, (N * probability)**-beta, are the table's. A new sample
    without a priority gets the largest priority given so far, at first 1: as given, and transformed
    like any other. A priority of 0 is drawn by virtue of `eps` alone; with `eps` of 0 it never would be,
    and a table refuses it by key.
    When nothing that is held may be drawn, `sample` is a ValueError.

    Weights are kept as float32, and what is drawn and what is told about it both come from those: the
    probabilities are exact. `priorities()` gives back what a weight stands for, to about seven digits
    (with alpha of 0, 1). Priorities above 3.4e38 count as that, and positive ones below 1.2e-38 as that.

    Sums never need rebuilding: after each update every sum above it is added up anew from its 16
    children in float64, and no difference is ever applied to one. They are the same after 10**9 updates
    as in a fresh table with the same priorities, which is what a restored checkpoint is.

    A 16-ary tree: all costs are O(n log N); 4.7 bytes per sample.
    """

    @dataclass(frozen=True)
    class Options:
        """Options of `prioritized`.

        Attributes:
            capacity: how many samples the table holds.
            alpha: how much priorities matter: 0 not at all, 1 in proportion.
            eps: added to every priority before the power, so that none is forgotten for good.
            stratified: draw the i-th of n keys from the i-th of n equal parts of all weight. A key is
                drawn as often on average, but batches differ less. They come in the order of their
                rows, then.
        """

        capacity: int
        alpha: float = 0.6
        eps: float = 1e-6
        stratified: bool = False

        def __post_init__(self) -> None:
            for name in ("alpha", "eps"):
                value = getattr(self, name)
                if not (math.isfinite(value) and 0 <= value <= 1e6):
                    raise ValueError(f"{name} must be from 0 to 1e6, not {value}")

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.refuses_zero = self.options.eps == 0 and self.options.alpha > 0

    def _make(self) -> _native.Rows:
        options = self.options
        return _native.prioritized(options.capacity, options.alpha, options.eps, options.stratified)
