"""What a training run says of itself, and means with their confidence intervals."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, stdev
from typing import Any

__all__ = ["TrainingMetrics", "mean_interval", "share_interval"]

_LEVEL = 0.95


@dataclass
class TrainingMetrics:
    """The figures of a run. Counts include those of the run that was restored; seconds are this run's.

    Attributes:
        evaluation_results: of the last evaluation: ``avg_reward`` and ``success_rate`` with the bounds ``_low`` and ``_high`` of their 95 % confidence
            intervals, the number of ``episodes`` that count, of ``timeouts`` (the environment did not answer in time) and of ``failures`` (it failed
            otherwise). The last two count in no mean. ``success_rate`` is there if the environment says whether it is solved.
        evaluations: all of them, each with its ``steps`` and ``seconds``.
        updates, steps, episodes, tokens: trained on; tokens are those of the policy.
        throughput: steps for each second of training. tokens_per_second: the same of tokens.
        lags: how many groups (or segments) were trained at each age, in versions.
        failed: rollouts, or steps, whose environment failed. skipped_groups: groups whose rewards were all equal, or whose rollouts have failed.
        duplicates: results that were refused, since the same ticket had one already. It is the number of rollouts' groups that were thrown away.
        handed_back: groups that an actor has handed back before they were finished. anew: those of them that the next actor has begun anew.
        restarted: actors that were started again.
        hit_rate: the share of prompt tokens that the actors' engines found in their caches.
        waited: the share of the time for which the learner waited for rollouts.
        eta_bw: the bandwidth efficiency of ``echo_rl.core.bandwidth``.
        seconds: of training.
        history: the figures of each update.
    """

    evaluation_results: dict[str, float] = field(default_factory=dict)
    evaluations: list[dict[str, float]] = field(default_factory=list)
    updates: int = 0
    steps: int = 0
    episodes: int = 0
    tokens: int = 0
    throughput: float = 0.0
    tokens_per_second: float = 0.0
    lags: Counter[int] = field(default_factory=Counter)
    failed: int = 0
    skipped_groups: int = 0
    duplicates: int = 0
    handed_back: int = 0
    anew: int = 0
    restarted: int = 0
    hit_rate: float = 0.0
    waited: float = 0.0
    eta_bw: float = 0.0
    seconds: float = 0.0
    history: list[dict[str, Any]] = field(default_factory=list)


def share_interval(good: int, of: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share (Wilson 1927). Without observations it is 0 to 1."""
    if not of:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + _LEVEL) / 2)
    share, middle = good / of, z * z / of
    half = z * math.sqrt(share * (1 - share) / of + middle / (4 * of))
    return max(0.0, (share + middle / 2 - half) / (1 + middle)), min(1.0, (share + middle / 2 + half) / (1 + middle))


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of a mean, by Student's t. With fewer than two values it has no bounds."""
    if len(values) < 2:
        return -math.inf, math.inf
    half = _t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def _t_quantile(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t; exact for 1 and 2 degrees of freedom, else by the expansion of Abramowitz and Stegun, 26.7.5."""
    if freedom == 1:
        return math.tan(math.pi * _LEVEL / 2)
    if freedom == 2:
        return _LEVEL * math.sqrt(2 / (1 - _LEVEL * _LEVEL))
    z, n = NormalDist().inv_cdf((1 + _LEVEL) / 2), freedom
    found = z + (z**3 + z) / (4 * n) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2) + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
    return found + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92_160 * n**4)
