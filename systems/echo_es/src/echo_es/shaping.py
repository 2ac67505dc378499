"""Shaping turns the rewards of one generation into weights whose size the strategy can rely on."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echo_core import ConfigError

from .arguments import real_rewards

__all__ = ["SHAPINGS", "centered_rank", "clean", "raw", "shaping_by_name", "z_score"]

Shaping = Callable[[NDArray[np.float64]], NDArray[np.float64]]


def clean(rewards: ArrayLike, count: int) -> tuple[NDArray[np.float64], int]:
    """The rewards as float64 of shape (count,), with -inf in place of NaN, inf and -inf, and how many of these there were.

    A reward that is no number is thus worse than every other. Raises ValueError if there are not `count` rewards, or if one is not real.
    """
    values = real_rewards(rewards)
    if values.shape != (count,):
        raise ValueError(f"rewards: there must be {count}, in an array of shape ({count},), not of shape {values.shape}")
    good = np.isfinite(values)
    if good.all():
        return values, 0
    values[~good] = -np.inf
    return values, count - int(good.sum())


def centered_rank(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The ranks of the rewards, spread over [-0.5, 0.5]; equal rewards get the mean of their ranks, so their order does not count."""
    count = len(rewards)
    if count < 2:
        return np.zeros(count)
    order = np.argsort(rewards, kind="stable")
    _, group, sizes = np.unique(rewards[order], return_inverse=True, return_counts=True)
    last = np.cumsum(sizes)
    ranks = np.empty(count)
    ranks[order] = (last - (sizes + 1) / 2)[group]
    return ranks / (count - 1) - 0.5


def _finite(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rewards with the worst number in place of -inf, because arithmetic with infinity gives NaN; zeros if there is no number."""
    known = np.isfinite(rewards)
    return np.where(known, rewards, rewards.min(where=known, initial=np.inf)) if known.any() else np.zeros(len(rewards))


def z_score(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rewards minus their mean, divided by their standard deviation; zeros if all are equal."""
    values = _finite(rewards)
    if values.max(initial=-np.inf) == values.min(initial=np.inf):  # their deviation would be rounding, not 0
        return np.zeros(len(values))
    values = values / np.abs(values).max()  # or squares of large rewards would be infinite
    centred: NDArray[np.float64] = values - values.mean()
    centred /= centred.std()
    return centred


def raw(rewards: NDArray[np.float64]) -> NDArray[np.float64]:
    """The rewards as they are."""
    return _finite(rewards)


SHAPINGS: dict[str, Shaping] = {"centered_rank": centered_rank, "z_score": z_score, "none": raw}


def shaping_by_name(name: str) -> Shaping:
    """The function of this name. Raises ConfigError, which lists the names, if there is no such function."""
    if name not in SHAPINGS:
        raise ConfigError(f"shaping: there is no {name!r}; choose one of {', '.join(SHAPINGS)}")
    return SHAPINGS[name]
