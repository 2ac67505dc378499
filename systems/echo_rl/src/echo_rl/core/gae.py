"""Generalised advantage estimates that bootstrap where an episode was cut off."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def gae(
    rewards: ArrayLike, values: ArrayLike, next_values: ArrayLike, terminated: ArrayLike, truncated: ArrayLike, gamma: float = 0.99, gae_lambda: float = 0.95
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages and returns, float64 (T, ...), of arguments that all have the shape (T, ...).

    `next_values[t]` is the value of the state that step t led to, also of the last state of an episode that was cut off.
    A terminated step has no value after it. Neither a terminated nor a truncated step takes advantages from the next episode.
    Raises ValueError if the shapes differ, if a number is not finite, or if a flag is neither 0 nor 1.
    """
    reward, value, following = (np.asarray(x, np.float64) for x in (rewards, values, next_values))
    for name, given in (("rewards", reward), ("values", value), ("next_values", following)):
        if not np.isfinite(given).all():
            raise ValueError(f"{name} holds a number that is not finite")
    terminal, cut = _flags("terminated", terminated), _flags("truncated", truncated)
    if len({x.shape for x in (reward, value, following, terminal, cut)}) != 1 or not reward.ndim:
        raise ValueError("rewards, values, next_values, terminated and truncated must have one shape (T, ...)")
    deltas = reward + gamma * np.where(terminal, 0.0, following) - value
    decay = np.where(terminal | cut, 0.0, gamma * gae_lambda)
    advantages = np.zeros_like(deltas)
    later = np.zeros(deltas.shape[1:])
    for t in range(len(deltas) - 1, -1, -1):
        later = deltas[t] + decay[t] * later
        advantages[t] = later
    return advantages, advantages + value


def _flags(name: str, given: ArrayLike) -> NDArray[np.bool_]:
    found = np.asarray(given)
    if found.dtype != bool and not np.isin(found, (0, 1)).all():
        raise ValueError(f"{name} must be True or False for each step, and one is {found[~np.isin(found, (0, 1))].flat[0]}")
    return found.astype(bool)
