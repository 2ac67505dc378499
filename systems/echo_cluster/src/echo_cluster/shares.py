"""How many items of a batch come from each shard, and with which probability and weight each of them was drawn.

A shard is drawn with the probability of its mass divided by the sum of all masses, and the shard draws the item. So every item has the probability
that it would have in one table with the items of all shards. The counts are rounded systematically (Madow 1949, "systematic sampling"): one uniform
number moves all boundaries together, so a count differs from its expectation by less than one, and is exact on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["chances", "counts", "importance_weights"]


def chances(masses: Sequence[float]) -> npt.NDArray[np.float64]:
    """The probability of each shard, shape (shards,).

    Raises:
        ValueError: a mass is negative or not finite, or all of them are 0.
    """
    given = np.asarray(masses, np.float64)
    total = float(given.sum())
    if not np.isfinite(given).all() or (given < 0).any() or not total > 0 or not np.isfinite(total):
        raise ValueError(f"the masses of the shards must be finite numbers of at least 0, with a sum above 0, not {list(masses)}")
    return given / total


def counts(shares: npt.NDArray[np.float64], n: int, uniform: float) -> npt.NDArray[np.int64]:
    """How many of n items come from each shard. Each count is `n * share`, rounded up or down, and its mean is `n * share`.

    Args:
        shares: float64 of shape (shards,) with the sum 1.
        n: items of the batch.
        uniform: a random number from 0 to below 1; each batch needs a new one.

    Returns:
        int64 of shape (shards,) with the sum n.
    """
    bounds = np.cumsum(shares) * n
    bounds[-1] = n  # rounding errors of the sum would lose an item
    if shares[-1] == 0:  # no item may fall on a shard without mass because of such an error
        bounds[int(np.flatnonzero(shares)[-1]) :] = n
    ends = np.minimum(np.floor(bounds + uniform).astype(np.int64), n)
    ends[bounds >= n] = n
    return np.diff(ends, prepend=0)


def importance_weights(probabilities: npt.NDArray[np.float64], beta: float) -> npt.NDArray[np.float32]:
    """The weights `(1 / (N p))^beta` of a batch, divided by the largest of them (Schaul et al. 2016). N cancels out in this.

    Args:
        probabilities: float64 of shape (n,), all above 0.
        beta: exponent, from 0 to 1.

    Returns:
        float32 of shape (n,); the largest is 1.
    """
    if beta == 0:
        return np.ones(probabilities.shape, np.float32)
    return np.asarray((probabilities.min() / probabilities) ** beta, np.float32)
