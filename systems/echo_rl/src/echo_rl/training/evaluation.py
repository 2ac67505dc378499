"""Evaluation episodes: their means, with confidence intervals; episodes that ended by a fault of the environment count apart."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Protocol

from echo_rl.training.metrics import mean_interval, share_interval

__all__ = ["EVALUATION_TASKS", "Played", "evaluated"]

EVALUATION_TASKS = 1 << 30
"""The first task of an evaluation. Tasks of the training are less than this."""


class Played(Protocol):
    """An episode that was played to its end."""

    @property
    def reward(self) -> float:
        """Of the whole episode."""

    @property
    def success(self) -> bool | None:
        """Whether the task is solved; None if the environment does not say."""

    @property
    def fault(self) -> str:
        """Why the environment has failed, or an empty text."""

    @property
    def late(self) -> bool:
        """Whether it has failed because it did not answer in time."""


def evaluated(episodes: Sequence[Played]) -> dict[str, float]:
    """See ``TrainingMetrics.evaluation_results``."""
    counted = [episode for episode in episodes if not episode.fault]
    rewards = [episode.reward for episode in counted]
    low, high = mean_interval(rewards)
    late = sum(episode.late for episode in episodes)
    found: dict[str, float] = {
        "avg_reward": fmean(rewards) if rewards else float("nan"),
        "avg_reward_low": low,
        "avg_reward_high": high,
        "episodes": len(counted),
        "timeouts": late,
        "failures": len(episodes) - len(counted) - late,
    }
    if known := [episode.success for episode in counted if episode.success is not None]:
        low, high = share_interval(sum(known), len(known))
        found |= {"success_rate": sum(known) / len(known), "success_rate_low": low, "success_rate_high": high}
    return found
