"""Prioritized experience replay, the proportional variant (Schaul, Quan, Antonoglou, Silver 2016)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from . import _native
from .native import NativeSampler

__all__ = ["Prioritized"]


class Prioritized(NativeSampler):
    """Draws a key of priority p with probability (p + eps)**alpha / sum of all (p + eps)**alpha.

    The table computes the importance weights of a batch, (N * probability)**-beta. A new sample
    without a priority gets the largest priority given so far, initially 1, which is then transformed
    like any other. A sample with priority 0 is drawn only because of `eps`. If `eps` is 0 it would
    never be drawn, so a table refuses that priority with the key.
    `sample` raises ValueError if no held sample may be drawn.

    Weights are kept as float32. Both the draws and the reported probabilities come from these weights,
    so the probabilities are exact. `priorities()` returns the priority that a weight represents, to
    about seven digits (always 1 with an alpha of 0). A priority above 3.4e38 counts as 3.4e38, and a
    positive one below 1.2e-38 counts as 1.2e-38.

    Sums never need rebuilding: after each update, every sum above it is added up anew from its 16
    children in float64; sums are never changed by a difference. After 10**9 updates they are the same
    as in a fresh table with the same priorities, such as a restored checkpoint.

    It is a 16-ary tree. All operations cost O(n log N), and it takes 4.7 bytes per sample.
    """

    @dataclass(frozen=True)
    class Options:
        """Options of `prioritized`.

        Attributes:
            capacity: how many samples the table holds.
            alpha: how much priorities matter: with 0 they have no effect, with 1 draws are proportional.
            eps: added to every priority before the power, so that every sample can be drawn.
            stratified: draw the i-th of n keys from the i-th of n equal parts of the total weight. On
                average each key is drawn as often as without it, but batches differ less. The keys of
                a batch are then in the order of their rows.
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

    def _make(self) -> _native.NativeSampler:
        options = self.options
        return _native.prioritized(options.capacity, options.alpha, options.eps, options.stratified)
