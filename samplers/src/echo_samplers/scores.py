"""Functions that compute the priorities of a batch's samples, so that valuable samples are replayed.

Each function takes arrays whose first axis is the batch and returns float64 of shape (n,), finite and
not negative. `update_priorities` takes the result, also as scores for `hot_cold`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core.spec.arrays import as_float64

__all__ = ["TrajectoryScore", "effective_sample_size", "plain_priority", "td_error"]

Scores = npt.NDArray[np.float64]


def plain_priority(priorities: npt.ArrayLike) -> Scores:
    """Return given priorities of shape (n,) or (n, 1) unchanged.

    Raises:
        ValueError: the shape is another one, or a number is negative or not finite; the message names the first such sample.
    """
    return _checked(_column(priorities, "priorities"), "priority")


def td_error(errors: npt.ArrayLike) -> Scores:
    """The absolute temporal-difference errors |error| (Schaul et al. 2016). For sequences, shape (n, T),
    it is 0.9 * max + 0.1 * mean over the steps (R2D2, Kapturowski et al. 2019).

    Raises:
        ValueError: the shape is another one, or an error is not finite.
    """
    array = np.abs(as_float64(errors, "errors"))
    if array.ndim == 2 and array.shape[1] > 1:
        array = 0.9 * array.max(axis=1) + 0.1 * array.mean(axis=1)
    return _checked(_column(array, "errors"), "TD error")


class TrajectoryScore:
    """The score ‖τ − τ̄‖² + α·|r|, which is high for unusual or rewarded trajectories.

    τ is a sample's trajectory as one vector, τ̄ is an exponential moving average of all trajectories so
    far, and r is the reward. The mean of the first batch becomes the first τ̄; if it started from zeros,
    all trajectories would look unusual for 1 / (1 − decay) batches.

    These scores are squared distances that span orders of magnitude. Use the weighting `rank` or
    `robust` with them, because a softmax over them has an effective sample size of about 1.

    Args:
        alpha: weight of the reward, not negative.
        decay: decay of the average per batch: τ̄ ← decay·τ̄ + (1 − decay)·mean of the batch.
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
        """The scores of one batch, computed with the average after this batch.

        Args:
            trajectories: shape (n, ...), of any numeric dtype.
            rewards: shape (n,), or (n, ...), whose absolute values are added up per trajectory.
            update: False leaves the average unchanged; use it to score samples again.

        Raises:
            ValueError: the shapes do not fit, or a sample is not finite. The average is then
                unchanged.
        """
        flat = as_float64(trajectories, "trajectories")
        if flat.ndim == 0 or not len(flat):
            raise ValueError(f"trajectories must be a batch with at least one sample, not of shape {flat.shape}")
        flat = flat.reshape(len(flat), -1)
        reward = np.abs(as_float64(rewards, "rewards"))
        if reward.ndim == 0 or len(reward) != len(flat):
            raise ValueError(f"{len(flat)} trajectories need {len(flat)} rewards, not shape {reward.shape}")
        if self.average is not None and self.average.shape != flat.shape[1:]:
            raise ValueError(f"trajectories have {flat.shape[1]} numbers, but earlier ones had {self.average.size}")
        average = flat.mean(axis=0) if self.average is None else self.average
        if update and self.average is not None:
            average = self.decay * self.average + (1 - self.decay) * flat.mean(axis=0)
        with np.errstate(invalid="ignore", over="ignore"):  # `_checked` reports it together with the sample
            distance = np.square(flat - average).sum(axis=1)
            scores: npt.NDArray[np.float64] = distance + self.alpha * reward.reshape(len(flat), -1).sum(axis=1)
        _checked(scores, "score")
        if update:
            self.average = average
        return scores

    def state(self) -> dict[str, npt.NDArray[np.float64]]:
        """The average as plain arrays, for a checkpoint. The dict is empty before the first batch."""
        return {} if self.average is None else {"average": self.average.copy()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        """Load the average from a result of `state`. Raises ValueError if the state is invalid."""
        if not set(state) <= {"average"}:
            raise ValueError(f"the state of a TrajectoryScore is one array 'average', not {sorted(state)}")
        average = None if not state else np.array(state["average"], np.float64)
        if average is not None and (average.ndim != 1 or not np.isfinite(average).all()):
            raise ValueError("array 'average' must be finite and have one dimension; this is not a state of a TrajectoryScore")
        self.average = average


def effective_sample_size(weights: npt.ArrayLike) -> float:
    """(Σ w)² / Σ w² (Kish 1965): the number of equally weighted samples that would have the same effect.

    For the probabilities of all samples, it says over how many samples the draws are spread: N if they
    are uniform, 1 if all draws give one sample. For the importance weights of a batch, it says how many
    of its samples count.

    Args:
        weights: an array of any shape, finite and not negative, not all 0; they need not sum to 1.

    Raises:
        ValueError: the weights do not meet these conditions.
    """
    array = as_float64(weights, "weights").ravel()
    if not (array.size and np.isfinite(array).all() and (array >= 0).all() and array.max() > 0):
        raise ValueError("weights must be finite, not negative, and at least one of them positive")
    scaled = array / array.max()  # squares of small probabilities would vanish
    return float(scaled.sum() ** 2 / np.square(scaled).sum())


def _column(values: npt.ArrayLike, what: str) -> npt.NDArray[np.float64]:
    array = as_float64(values, what)
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
