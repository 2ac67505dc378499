"""Costs of attention over sequences, and the priorities and figures made from them, in numpy. All arithmetic is float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def lengths_of(name: str, values: ArrayLike) -> NDArray[np.float64]:
    """The values as float64; raises ValueError if one is negative or not finite."""
    array = np.asarray(values, np.float64)
    if not np.isfinite(array).all() or (array < 0).any():
        raise ValueError(f"{name} must be finite and at least 0")
    return array


def attention_bandwidth_cost_batch(seq_len: ArrayLike, scale: float = 1.0) -> NDArray[np.float64]:
    """scale * t * (t + 1) / 2 for each length t (tokens), in the shape of `seq_len`."""
    t = lengths_of("seq_len", seq_len)
    return np.asarray(scale * t * (t + 1) / 2)


def attention_bandwidth_cost(seq_len: float, scale: float = 1.0) -> float:
    """scale * t * (t + 1) / 2: what attention over t tokens costs without a cache."""
    return float(attention_bandwidth_cost_batch(seq_len, scale))


def effective_bandwidth_cost(seq_len: float, reuse_len: float, scale: float = 1.0) -> float:
    """The cost of `seq_len` tokens of which the first `reuse_len` are cached; `reuse_len` is cut to [0, seq_len]."""
    t = float(lengths_of("seq_len", seq_len))
    reused = min(max(reuse_len, 0.0), t)
    # Equal to the difference of both costs, which could round to less than 0.
    return scale * (t - reused) * (t + reused + 1) / 2


def bandwidth_aware_priorities(rewards: ArrayLike, bandwidth: ArrayLike, queue_times: ArrayLike, epsilon: float = 1e-8) -> NDArray[np.float64]:
    """r / (b + q + epsilon), element by element; float64."""
    return schedule_priorities(rewards, bandwidth, queue_times, epsilon=epsilon)


def schedule_priorities(
    rewards: ArrayLike,
    bandwidth: ArrayLike,
    queue_times: ArrayLike,
    bandwidth_weight: float = 1.0,
    queue_weight: float = 1.0,
    epsilon: float = 1e-8,
) -> NDArray[np.float64]:
    """r / (bandwidth_weight * b + queue_weight * q + epsilon), element by element; float64."""
    check_weights(bandwidth_weight, queue_weight, epsilon)
    cost = bandwidth_weight * lengths_of("bandwidth", bandwidth) + queue_weight * lengths_of("queue_times", queue_times)
    return np.asarray(np.asarray(rewards, np.float64) / (cost + epsilon))


def bandwidth_efficiency(reward: float, rollout_bandwidth: float, learner_cost: float = 0.0) -> float:
    """reward / (rollout_bandwidth + learner_cost); raises ValueError if nothing was spent."""
    spent = rollout_bandwidth + learner_cost
    check_spent(spent)
    return float(reward / spent)


def check_weights(bandwidth_weight: float, queue_weight: float, epsilon: float) -> None:
    """Raises ValueError for a negative weight, and for an epsilon that is not positive."""
    if not (bandwidth_weight >= 0 and queue_weight >= 0 and epsilon > 0):
        raise ValueError("bandwidth_weight and queue_weight must be at least 0, and epsilon greater than 0")


def check_spent(spent: float) -> None:
    """Raises ValueError if nothing was spent."""
    if not spent > 0:
        raise ValueError(f"the efficiency needs a cost greater than 0, got {spent}")
