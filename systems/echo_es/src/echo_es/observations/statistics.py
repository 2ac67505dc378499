"""Mean and deviation of observations, gathered by many workers and merged without error that grows with their number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["ObservationStats"]

_MOST = 2**53  # observations: a float counts up to here without error


class ObservationStats:
    """Count, mean and sum of squared deviations of observations of shape `shape`, float64.

    A worker adds what it sees and sends `take()`, which begins anew; the learner merges that. The order of merging does not matter beyond
    rounding, and large means lose no digits, unlike sums of squares.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.invalid = 0
        self.mean = np.zeros(shape)
        self.m2 = np.zeros(shape)

    def add(self, observations: ArrayLike) -> None:
        """Observations of shape (n, *shape). Those with NaN or infinity are left out and counted in `invalid`."""
        rows = np.asarray(observations, np.float64)
        if rows.shape[1:] != self.mean.shape:
            raise ValueError(f"observations: their shape must be (n, {', '.join(map(str, self.mean.shape))}), not {rows.shape}")
        good = np.isfinite(rows.reshape(len(rows), self.mean.size)).all(axis=1)
        self.invalid += len(rows) - int(good.sum())
        rows = rows[good]
        if len(rows):
            mean = rows.mean(axis=0)
            self._merge(len(rows), mean, ((rows - mean) ** 2).sum(axis=0))

    def merge(self, arrays: Mapping[str, ArrayLike]) -> None:
        """What another process took: `{"count", "mean", "m2"}`, or the sums `{"count", "sum", "sumsq"}` that OpenAI's ES sends.

        Raises ValueError, and changes nothing, if a shape is another, or a number is not finite or out of the range that it can have.
        """
        if not isinstance(arrays, Mapping):
            raise ValueError(f"observation statistics: they must be count, mean and m2, not {type(arrays).__name__}")
        if (number := np.asarray(arrays["count"])).shape != () or number.dtype.kind not in "biuf" or not float(number).is_integer():
            raise ValueError("observation statistics: the count must be one whole number")
        count = int(number)
        if "mean" in arrays:
            mean, m2 = np.asarray(arrays["mean"], np.float64), np.asarray(arrays["m2"], np.float64)
        else:
            total, squares = np.asarray(arrays["sum"], np.float64), np.asarray(arrays["sumsq"], np.float64)
            mean = total / max(count, 1)
            m2 = np.maximum(squares - total * mean, 0)  # rounding can bring it below zero
        if mean.shape != self.mean.shape or m2.shape != self.mean.shape:
            raise ValueError(f"observation statistics: the shape must be {self.mean.shape}, not {mean.shape} and {m2.shape}")
        if count < 0 or not np.isfinite(mean).all() or not np.isfinite(m2).all() or (m2 < 0).any():
            raise ValueError("observation statistics: counts and squares cannot be negative, and all must be finite")
        if self.count + count > _MOST:
            raise ValueError(f"observation statistics: a count of {count:,} is more than anybody has seen")
        if count:
            self._merge(count, mean, m2)

    def arrays(self) -> dict[str, NDArray[Any]]:
        """`{"count", "mean", "m2"}`, in memory of its own."""
        return {"count": np.array(self.count, np.int64), "mean": self.mean.copy(), "m2": self.m2.copy()}

    def take(self) -> dict[str, NDArray[Any]]:
        """`arrays()`, and begin anew."""
        taken = self.arrays()
        self.count, self.mean, self.m2 = 0, np.zeros_like(self.mean), np.zeros_like(self.m2)
        return taken

    @property
    def deviation(self) -> NDArray[np.float64]:
        """The standard deviation, at least 0.01, and 1 while there are fewer than two observations."""
        if self.count < 2:
            return np.ones_like(self.mean)
        deviation: NDArray[np.float64] = np.maximum(np.sqrt(self.m2 / self.count), 1e-2)
        return deviation

    def normalize(self, observations: ArrayLike, clip: float = 5.0) -> NDArray[np.float32]:
        """The observations minus the mean, divided by the deviation, cut at -clip and clip: float32 of the same shape."""
        return np.clip((np.asarray(observations) - self.mean) / self.deviation, -clip, clip).astype(np.float32)

    def _merge(self, count: int, mean: NDArray[np.float64], m2: NDArray[np.float64]) -> None:
        total = self.count + count
        with np.errstate(over="ignore", invalid="ignore"):  # it is looked at below
            apart = mean - self.mean
            merged = self.mean + apart * (count / total)
            squares = self.m2 + m2 + apart**2 * (self.count * count / total)
        if not np.isfinite(merged).all() or not np.isfinite(squares).all():
            raise ValueError("observation statistics: the values are too large to be merged")
        self.count, self.mean, self.m2 = total, merged, squares
