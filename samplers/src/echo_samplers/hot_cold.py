"""Stratified replay: a share of every batch comes from a hot stratum, the rest from a cold one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from echo_core.store.sampler import Keys

from . import _native
from .native import NativeSampler

__all__ = ["HotCold"]

WEIGHTINGS = ("proportional", "softmax", "rank", "robust")  # in the order of hot_cold.hpp
EXTENT = 3  # in "numbers" of the state: all rows that were ever used are below this


class HotCold(NativeSampler):
    """Hot samples are new or score highly; a batch takes `hot_ratio` of its keys from them.

    Samples move between the strata as follows (a score is a priority that `insert` or `update` gave):

    * New samples are hot. Without a score they get the largest score given so far, initially 1.
    * A hot sample becomes cold in three cases: when the hot stratum is over its capacity and the sample
      has the lowest score (among equal scores, the oldest); when it has been hot for more than
      `age_threshold` inserts or versions of the policy; and when an update lowers its score below the `demote_below` quantile of
      all scores.
    * A cold sample becomes hot when an update raises its score to the `promote_above` quantile of all
      scores, if there is room or its score is above that of the lowest hot sample, which then becomes
      cold.
    * `victims` gives cold samples before hot ones, and in each stratum the lowest scores first.

    Within a stratum, a sample of score s is drawn in proportion to its weight:

    * `"proportional"`: (s + eps)**alpha
    * `"softmax"`: exp((s - highest) / temperature), but at least exp(-80). With raw squared distances
      as scores, only a few samples are drawn; `effective_sample_size` shows that.
    * `"rank"`: (1 + number of higher scores)**-alpha (the rank-based variant of Schaul et al. 2016)
    * `"robust"`: exp(clip((s - median) / deviation, -5, 5) / temperature), with the interquartile
      range / 1.349 as deviation.

    The probability of a hot sample is hot_ratio * weight / (sum of the hot weights). The probability of
    a cold one is (1 - hot_ratio) * weight / (sum of the cold weights). If one stratum has nothing to
    draw, all keys come from the other. The number of hot keys in a batch is n * hot_ratio, rounded up or
    down at random so that the average is exact. A mean over batches with importance weights of
    1 / (N * probability) is therefore unbiased.

    Quantiles, median and ranks come from up to 1024 scores. They are computed anew once an eighth of the
    samples (at least 16) has changed. For the last three weightings this recomputes all weights, in
    O(N). Ranks are therefore as fine as N / 1024, and the best samples share a rank. In between, weights
    keep their scale, and the probabilities follow the weights as they are. All other operations cost
    O(n log N). It takes 59 bytes per sample.
    """

    evicts = True

    @dataclass(frozen=True)
    class Options:
        """Options of `hot_cold`.

        Attributes:
            capacity: how many samples the table holds.
            hot_capacity: how many of them can be hot; by default a fifth. The cold stratum has the
                others, and can use the places that hot samples leave free.
            hot_ratio: the share of a batch that is hot, between 0 and 1.
            age_threshold: for how long a sample stays hot, in units of `age_unit`; None means no limit.
            age_unit: `"inserts"`, or `"versions"` of the policy: every `Server.publish` makes the samples older by the
                versions that have passed since the last one.
            weighting: how a score becomes a weight; see `HotCold`.
            alpha: exponent of `"proportional"` and `"rank"`.
            eps: number that `"proportional"` adds to the scores.
            temperature: temperature of `"softmax"` (in units of the score) and of `"robust"` (in
                units of the scores' deviation). It can be changed while the sampler is used: see `HotCold.temperature`.
            promote_above: quantile of all scores, from 0 to 1.
            demote_below: quantile of all scores, at most `promote_above`.
        """

        capacity: int
        hot_capacity: int | None = None
        hot_ratio: float = 0.7
        age_threshold: int | None = None
        age_unit: Literal["inserts", "versions"] = "inserts"
        weighting: Literal["proportional", "softmax", "rank", "robust"] = "proportional"
        alpha: float = 0.6
        eps: float = 1e-6
        temperature: float = 1.0
        promote_above: float = 0.8
        demote_below: float = 0.5

        def __post_init__(self) -> None:
            if self.hot_capacity is not None and not 1 <= self.hot_capacity <= self.capacity:
                raise ValueError(f"hot_capacity must be from 1 to the capacity of {self.capacity}, not {self.hot_capacity}")
            if not 0 < self.hot_ratio < 1:
                raise ValueError(f"hot_ratio must be between 0 and 1, not {self.hot_ratio}: the other stratum would never be drawn")
            if self.age_threshold is not None and self.age_threshold < 1:
                raise ValueError(f"age_threshold must be at least 1, not {self.age_threshold}; leave it out for no limit")
            for name in ("alpha", "eps"):
                value = getattr(self, name)
                if not (math.isfinite(value) and 0 <= value <= 1e6):
                    raise ValueError(f"{name} must be from 0 to 1e6, not {value}")
            if not (math.isfinite(self.temperature) and self.temperature > 0):
                raise ValueError(f"temperature must be positive, not {self.temperature}")
            if not 0 <= self.demote_below <= self.promote_above <= 1:
                raise ValueError(
                    "demote_below and promote_above must be quantiles, 0 <= demote_below <= promote_above <= 1, not "
                    f"{self.demote_below} and {self.promote_above}"
                )

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.refuses_zero = self.options.weighting == "proportional" and self.options.eps == 0 and self.options.alpha > 0

    def _make(self) -> _native.NativeSampler:
        options = self.options
        return _native.hot_cold(
            options.capacity,
            options.hot_capacity or max(1, options.capacity // 5),
            options.hot_ratio,
            options.age_threshold or 0,
            WEIGHTINGS.index(options.weighting),
            options.alpha,
            options.eps,
            options.temperature,
            options.age_unit == "versions",
            options.promote_above,
            options.demote_below,
        )

    @property
    def temperature(self) -> float:
        """The temperature of the weighting. It may be set at any time, from any thread, also while a table uses the sampler.

        The next insert, update or draw computes all weights anew, in O(N). Batches that were drawn before keep the probabilities with
        which they were drawn. A checkpoint contains a temperature that was set; a restored sampler goes on with it.

        Raises:
            ValueError: it is not positive and finite, or the weighting has no temperature.
        """
        return cast(float, self._rows.temperature)

    @temperature.setter
    def temperature(self, value: float) -> None:
        if self.options.weighting not in ("softmax", "robust"):
            raise ValueError(f"the weighting {self.options.weighting!r} has no temperature; use 'softmax' or 'robust'")
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"temperature must be positive, not {value}")
        self._rows.temperature = value

    def moved(self, state: Mapping[str, npt.NDArray[Any]], rows: Keys) -> dict[str, npt.NDArray[Any]]:
        made = super().moved(state, rows)
        made["numbers"] = state["numbers"].copy()
        made["numbers"][EXTENT] = int(made["keys"].max()) + 1 if made["keys"].size else 0
        return made

    def victims(self, n: int) -> Keys:
        return self._rows.victims(n)

    def hot(self, keys: Keys) -> npt.NDArray[np.bool_]:
        """Which of n held keys are hot, as bool of shape (n,). Raises UnknownKeyError."""
        return self._rows.hot(keys)
