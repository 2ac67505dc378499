"""What makes a sample worth replaying: functions from a batch to the priorities of its samples.

Each is called with arrays whose first axis is the batch and returns float64 of shape (n,), finite and
not negative: what `update_priorities` takes, and the scores of `hot_cold`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["TrajectoryScore", "effective_sample_size", "plain_priority", "td_error"]

Scores = npt.NDArray[np.float64]


def plain_priority(priorities: npt.ArrayLike) -> Scores:
    """The priorities as they are: a column of numbers, shape (n,) or (n, 1).

    Raises:
        ValueError: another shape, or a number that is negative or not finite; names the first sample.
    """
    return _checked(_column(priorities, "priorities"), "priority")


def td_error(errors: npt.ArrayLike) -> Scores:
    """|error| of the temporal-difference errors (Schaul et al. 2016); of sequences, shape (n, T),
    0.9 * max + 0.1 * mean over the steps (R2D2, Kapturowski et al. 2019).

    Raises:
        ValueError: another shape, or a sample with an error that is not finite.
    """
    array = np.abs(np.asarray(errors, np.float64))
    if array.ndim == 2 and array.shape[1] > 1:
        array = 0.9 * array.max(axis=1) + 0.1 * array.mean(axis=1)
    return _checked(_column(array, "errors"), "TD error")


class TrajectoryScore:
    """‖τ − τ̄‖² + α·|r|: far from what is usual, or rewarded.

    τ is a sample's trajectory as one vector, τ̄ an exponential moving average of all seen so far,
    r the reward. The first batch becomes τ̄ as it is (its mean); starting from zeros would make
    everything look unusual for 1 / (1 − decay) batches.

    These scores are squared distances and span orders of magnitude: draw by `rank` or `robust`, as
    a softmax over them has an effective sample size of about 1.

    Args:
        alpha: weight of the reward, not negative.
        decay: of the average, per batch: τ̄ ← decay·τ̄ + (1 − decay)·mean of the batch.
    """

    def __init__(self, alpha: float = 1.0, decay: float = 0.99) -> None:
        if not (np.isfinite(alpha) and alpha >= 0):
            raise ValueError(f"alpha must be finite and not negative, not {alpha}")
        if not 0 <= decay < 1:
            raise ValueError(f"decay must be at least 0 and less than 1, not {decay}")
        self.alpha = alpha
        self.decay = decay
        self.average: npt.NDArray[np.float64] | None = None
        """τ̄, flat; None before the first batch."""

    def __call__(self, trajectories: npt.ArrayLike, rewards: npt.ArrayLike, update: bool = True) -> Scores:
        """The scores of one batch, by the average as it is after this batch.

        Args:
            trajectories: shape (n, ...), of any numeric dtype.
            rewards: shape (n,), or (n, ...) with the absolute rewards of a trajectory added up.
            update: False scores without moving the average: samples that are scored again.

        Raises:
            ValueError: shapes that do not fit, or a sample that is not finite. The average has not
                moved then.
        """
        flat = np.asarray(trajectories, np.float64)
        if flat.ndim == 0 or not len(flat):
            raise ValueError(f"trajectories must be a batch of at least one, not of shape {flat.shape}")
        flat = flat.reshape(len(flat), -1)
        reward = np.abs(np.asarray(rewards, np.float64))
        if reward.ndim == 0 or len(reward) != len(flat):
            raise ValueError(f"{len(flat)} trajectories need as many rewards, not shape {reward.shape}")
        if self.average is not None and self.average.shape != flat.shape[1:]:
            raise ValueError(f"trajectories have {flat.shape[1]} numbers, those before had {self.average.size}")
        average = flat.mean(axis=0) if self.average is None else self.average
        if update and self.average is not None:
            average = self.decay * self.average + (1 - self.decay) * flat.mean(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):  # told by `_checked`, with the sample it is in
            distance = np.square(flat - average).sum(axis=1)
            scores: npt.NDArray[np.float64] = distance + self.alpha * reward.reshape(len(flat), -1).sum(axis=1)
        _checked(scores, "score")
        if update:
            self.average = average
        return scores

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """The average as plain arrays, for a checkpoint; empty before the first batch."""
        return {} if self.average is None else {"average": self.average.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Take the average from what `state` returned. Raises ValueError where it is none."""
        if not set(state) <= {"average"}:
            raise ValueError(f"the state of a TrajectoryScore is one array 'average', not {sorted(state)}")
        average = None if not state else np.array(state["average"], np.float64)
        if average is not None and (average.ndim != 1 or not np.isfinite(average).all()):
            raise ValueError("array 'average' must be finite and have one dimension; this is no state of a TrajectoryScore")
        self.average = average


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """(Σ w)² / Σ w² (Kish 1965): as how many equally weighted samples these count.

    Of the probabilities of all samples: over how many the draws are spread, N when they are uniform and
    1 when all draws are one sample. Of the importance weights of a batch: how many of its samples count.

    Args:
        weights: any shape, finite and not negative, not all 0; they need not sum to 1.

    Raises:
        ValueError: they are not; says which.
    """
    array = np.asarray(weights, np.float64).ravel()
    if not (array.size and np.isfinite(array).all() and (array >= 0).all() and array.max() > 0):
        raise ValueError("weights must be finite, not negative, and at least one of them positive")
    scaled = array / array.max()  # squares of small probabilities would vanish
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def _column(values: npt.ArrayLike, what: str) -> npt.NDArray[np.float64]:
    array = np.asarray(values, np.float64)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise ValueError(f"{what} must have shape (n,), not {array.shape}")
    return array


def _checked(scores: npt.NDArray[np.float64], what: str) -> Scores:
    bad = ~(np.isfinite(scores) & (scores >= 0))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(f"{what} {scores[i]} of sample {i} of the batch must be finite and not negative")
    return scores
