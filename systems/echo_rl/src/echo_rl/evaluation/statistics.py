"""Intervals and tests for means of episodes. The t interval over seeds is ``echo_rl.training.metrics.mean_interval``."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

__all__ = ["bca_interval", "holm", "paired_permutation_test"]

_EXACT = 14  # pairs up to which all 2^n assignments of signs are counted
_CHUNK = 1 << 20  # numbers that are drawn at once, so that many episodes do not need much memory


def bca_interval(values: Sequence[float], level: float = 0.95, resamples: int = 9_999, seed: int = 0) -> tuple[float, float]:
    """The bias-corrected and accelerated bootstrap interval of a mean (Efron 1987). The same values give the same interval.

    With fewer than two values it has no bounds. If all values are equal, it is this value: a bootstrap cannot see more.
    """
    x = np.asarray(values, np.float64)
    if len(x) < 2:
        return -math.inf, math.inf
    mean = float(x.mean())
    if np.ptp(x) == 0:
        return mean, mean
    rng, normal, rows = np.random.default_rng(seed), NormalDist(), max(1, _CHUNK // len(x))
    means = np.concatenate([x[rng.integers(0, len(x), (min(rows, resamples - at), len(x)))].mean(axis=1) for at in range(0, resamples, rows)])
    # Sums in another order differ by rounding, which must not decide whether a mean is less than the mean of the values.
    edge = 1e-12 * float(np.abs(x).max())
    below = (np.count_nonzero(means < mean - edge) + 0.5 * np.count_nonzero(np.abs(means - mean) <= edge)) / resamples
    bias = normal.inv_cdf(min(max(below, 0.5 / resamples), 1 - 0.5 / resamples))
    away = x - mean  # the jackknife's means differ from their own mean by -away / (n - 1)
    acceleration = float((away**3).sum()) / (6 * float((away**2).sum()) ** 1.5)

    def end(share: float) -> float:
        z = bias + normal.inv_cdf(share)
        return float(np.quantile(means, normal.cdf(bias + z / (1 - acceleration * z))))

    return end((1 - level) / 2), end((1 + level) / 2)


def paired_permutation_test(first: Sequence[float], second: Sequence[float], samples: int = 20_000, seed: int = 0) -> float:
    """The two-sided p value of the mean difference of pairs, if each pair's two values could as well be exchanged (Fisher 1935).

    Up to 14 pairs all assignments are counted, and the value is exact. Of more pairs ``samples`` assignments are drawn, and the observed one counts as one of
    them, so that p is never 0.

    Raises ValueError if there are no pairs, or if the lengths differ.
    """
    if len(first) != len(second) or not len(first):
        raise ValueError(f"a paired test needs as many values of both, at least 1, got {len(first)} and {len(second)}")
    differences = np.asarray(first, np.float64) - np.asarray(second, np.float64)
    observed = abs(float(differences.sum()))
    edge = observed - 1e-9 * float(np.abs(differences).sum())  # an equal sum counts although rounding has made it less
    if len(differences) <= _EXACT:
        signs = np.array(list(itertools.product((1.0, -1.0), repeat=len(differences))))
        return float((np.abs(signs @ differences) >= edge).mean())
    rng, extreme, rows = np.random.default_rng(seed), 0, max(1, _CHUNK // len(differences))
    for at in range(0, samples, rows):
        signs = rng.integers(0, 2, (min(rows, samples - at), len(differences))) * 2.0 - 1.0
        extreme += int(np.count_nonzero(np.abs(signs @ differences) >= edge))
    return (extreme + 1) / (samples + 1)


def holm(p_values: Sequence[float]) -> list[float]:
    """The p values adjusted for their number (Holm 1979), in their order. Those below a level hold together with a family-wise error of at most this level."""
    found, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        found[index] = largest
    return found
