"""How many items of a batch come from each shard, and with which probability each shard is drawn.

A shard is drawn with the probability of its mass divided by the sum of all masses, and the shard draws the item. So every item has the probability
that it would have in one table with the items of all shards. The counts are rounded systematically (Madow 1949, "systematic sampling"): one uniform
number moves all boundaries together, so a count differs from its expectation by less than one, and is exact on average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["chances", "counts"]


def chances(masses: Sequence[float]) -> npt.NDArray[np.float64]:
    """The probability of each shard, shape (shards,).

    Raises:
        ValueError: a mass is negative or not finite, or all of them are 0.
    """
    total = math.fsum(masses)
    if not 0 < total < math.inf or not all(0 <= mass < math.inf for mass in masses):
        raise ValueError(f"the masses of the shards must be finite numbers of at least 0, with a sum above 0, not {list(masses)}")
    return np.asarray([mass / total for mass in masses], np.float64)


def counts(shares: npt.NDArray[np.float64], n: int, uniform: float) -> npt.NDArray[np.int64]:
    """How many of n items come from each shard. Each count is `n * share`, rounded up or down, and its mean is `n * share`.

    Args:
        shares: float64 of shape (shards,) with the sum 1.
        n: items of the batch.
        uniform: a random number from 0 to below 1; each batch needs a new one.

    Returns:
        int64 of shape (shards,) with the sum n.
    """
    # Plain numbers: for some shards they are faster than arrays.
    given = shares.tolist()
    last = max(number for number, share in enumerate(given) if share)
    found, bound, before = [], 0.0, 0
    for number, share in enumerate(given):
        bound += share * n
        # Rounding errors of the sum would lose an item, or give one to a shard without mass.
        end = n if number >= last else min(math.floor(bound + uniform), n)
        found.append(end - before)
        before = end
    return np.asarray(found, np.int64)
