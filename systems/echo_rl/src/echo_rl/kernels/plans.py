"""Plans: their running mean, their surprise and the divergence between two of them, in numpy. All arithmetic is float64."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


class EMAPlanTracker:
    """Keeps the running mean of plans: the first one is copied, later ones give mean = decay * mean + (1 - decay) * plan."""

    def __init__(self, dim: int, decay: float = 0.99) -> None:
        check_dim(dim)
        check_decay(decay)
        self.decay = decay
        self.initialized = False
        self._mean = np.zeros(dim)

    @property
    def mean(self) -> NDArray[np.float64]:
        """A copy of the mean, float64 (dim,): zeros before the first plan."""
        return self._mean.copy()

    def update(self, plan: ArrayLike) -> NDArray[np.float64]:
        """Takes in a plan (dim,) and returns the new mean. Raises ValueError for another shape or a value that isn't finite."""
        array = rows_of("plan", plan, 1)
        check_width("plan", array, "the mean", self._mean)
        if not np.isfinite(array).all():
            raise ValueError("plan holds a value that is not finite; the mean is unchanged")
        self._mean = self.decay * self._mean + (1 - self.decay) * array if self.initialized else array.copy()
        self.initialized = True
        return self.mean


def plan_surprise(plan: ArrayLike, mean: ArrayLike, reward: float, surprise_weight: float = 1.0, reward_weight: float = 1.0) -> float:
    """surprise_weight * |plan - mean|^2 + reward_weight * |reward| for plans of shape (dim,)."""
    return float(plan_surprise_batch(rows_of("plan", plan, 1)[None], mean, [reward], surprise_weight, reward_weight)[0])


def plan_surprise_batch(plans: ArrayLike, mean: ArrayLike, rewards: ArrayLike, surprise_weight: float = 1.0, reward_weight: float = 1.0) -> NDArray[np.float64]:
    """`plan_surprise` of each row: plans (n, dim), mean (dim,), rewards (n,) -> float64 (n,)."""
    rows, middle, given = rows_of("plans", plans, 2), rows_of("mean", mean, 1), rows_of("rewards", rewards, 1)
    check_width("plans", rows, "mean", middle)
    check_rewards(rows, given)
    return np.asarray(surprise_weight * np.square(rows - middle).sum(1) + reward_weight * np.abs(given))


def temporal_kl(plan: ArrayLike, previous: ArrayLike, sigma: float = 1.0) -> float:
    """|plan - previous|^2 / (2 sigma^2): the divergence of two Gaussians with one standard deviation; shapes (dim,)."""
    return float(temporal_kl_batch(rows_of("plan", plan, 1)[None], rows_of("previous", previous, 1)[None], sigma)[0])


def temporal_kl_batch(plans: ArrayLike, previous: ArrayLike, sigma: float = 1.0) -> NDArray[np.float64]:
    """`temporal_kl` of each pair of rows: (n, dim) and (n, dim) -> float64 (n,)."""
    check_sigma(sigma)
    a, b = rows_of("plans", plans, 2), rows_of("previous", previous, 2)
    check_pairs(a, b)
    return np.asarray(np.square(a - b).sum(1) / (2 * sigma**2))


# What the compiled kernels check, too.


def rows_of(name: str, values: ArrayLike, ndim: int) -> NDArray[np.float64]:
    """The values as float64; raises ValueError if they have another number of dimensions."""
    array = np.asarray(values, np.float64)
    if array.ndim != ndim:
        raise ValueError(f"{name} must have {ndim} dimension(s), got the shape {array.shape}")
    return array


def check_width(first: str, a: NDArray[Any], second: str, b: NDArray[Any]) -> None:
    """Raises ValueError if the last axes differ in length."""
    if a.shape[-1] != b.shape[-1]:
        raise ValueError(f"{first} and {second} must be equally wide, got {a.shape[-1]} and {b.shape[-1]}")


def check_rewards(plans: NDArray[Any], rewards: NDArray[Any]) -> None:
    """Raises ValueError unless there is one reward for each plan."""
    if len(rewards) != len(plans):
        raise ValueError(f"there are {len(plans)} plans and {len(rewards)} rewards")


def check_pairs(plans: NDArray[Any], previous: NDArray[Any]) -> None:
    """Raises ValueError unless both have one shape."""
    if plans.shape != previous.shape:
        raise ValueError(f"plans and previous must have one shape, got {plans.shape} and {previous.shape}")


def check_sigma(sigma: float) -> None:
    """Raises ValueError unless sigma is positive."""
    if not sigma > 0:
        raise ValueError(f"sigma must be greater than 0, got {sigma}")


def check_dim(dim: int) -> None:
    """Raises ValueError for an empty plan."""
    if dim < 1:
        raise ValueError(f"dim must be at least 1, got {dim}")


def check_decay(decay: float) -> None:
    """Raises ValueError unless the decay is at least 0 and less than 1."""
    if not 0 <= decay < 1:
        raise ValueError(f"decay must be in [0, 1), got {decay}")
