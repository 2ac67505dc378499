"""Cached prefixes, softmax draws and hashes of states, in numpy."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def prefix_match(sequence: ArrayLike, cached: Sequence[ArrayLike] | NDArray[Any]) -> tuple[int, int]:
    """Which cached sequence shares the longest prefix with `sequence`, and how long it is; (-1, 0) if none does.

    Tokens are compared one by one, so a hit is exact. Of equally long prefixes the first one wins. An array (n, t) of cached sequences of
    one length is compared in one go, which is much faster than a list.
    """
    wanted = np.asarray(sequence)
    if isinstance(cached, np.ndarray) and cached.ndim == 2:
        return _match_rows(wanted, cached)
    best, longest = -1, 0
    for i, candidate in enumerate(cached):
        other = np.asarray(candidate)
        shared = min(len(wanted), len(other))
        if shared <= longest:
            continue
        different = wanted[:shared] != other[:shared]
        length = int(different.argmax()) if different.any() else shared
        if length > longest:
            best, longest = i, length
    return best, longest


def _match_rows(wanted: NDArray[Any], rows: NDArray[Any]) -> tuple[int, int]:
    most = min(len(wanted), rows.shape[1])
    if not most or not len(rows):
        return -1, 0
    different = rows[:, :most] != wanted[:most]
    first = different.argmax(axis=1)
    # argmax is 0 for a row without a difference, too.
    lengths = np.where(different[np.arange(len(rows)), first], first, most)
    best = int(lengths.argmax())
    return (best, int(lengths[best])) if lengths[best] else (-1, 0)


def priority_sample(
    priorities: ArrayLike, n: int, temperature: float = 1.0, beta: float = 1.0, seed: int | None = None, *, normalize: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Draws `n` indices with replacement from softmax(priorities / temperature).

    Returns the indices and the weights (N q)^-beta; `normalize` divides the weights by the greatest of them.
    """
    values = priorities_of(priorities, temperature)
    masses = np.exp((values - values.max()) / temperature)
    sums = masses.cumsum()
    drawn = np.searchsorted(sums, np.random.default_rng(seed).random(n) * sums[-1], side="right")
    # Rounding can make the product equal to the last sum.
    indices = np.minimum(drawn, len(values) - 1).astype(np.int64)
    weights = (len(values) * masses[indices] / sums[-1]) ** -beta
    return indices, weights / weights.max() if normalize and n else weights


def state_hash(state: ArrayLike) -> int:
    """A hash of 64 bits of the values, dtype and shape of an array; strides don't change it.

    It is fast and not cryptographic: compare the states themselves where a wrong match would do harm. Raises TypeError for objects.
    """
    words, total = words_of(state)
    positions = np.arange(1, len(words) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    mixed = _mixed(words + positions) * (positions | np.uint64(1))
    return int(_mixed(mixed.sum(dtype=np.uint64, keepdims=True) + np.uint64(total))[0])


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele et al. 2014)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


# What the compiled kernels use, too.


def priorities_of(priorities: ArrayLike, temperature: float) -> NDArray[np.float64]:
    """The priorities as float64 (N,). Raises ValueError if N is 0, if one is not finite, if they have another shape, or if the temperature is not positive."""
    values = np.asarray(priorities, np.float64)
    if values.ndim != 1 or not len(values) or not np.isfinite(values).all():
        raise ValueError("priorities must be one row of at least one finite number")
    if not temperature > 0:
        raise ValueError(f"temperature must be greater than 0, got {temperature}")
    return values


def words_of(state: ArrayLike) -> tuple[NDArray[np.uint64], int]:
    """The bytes of an array as words, with zeros at the end, and a number that its dtype and shape decide; raises TypeError for objects."""
    array = np.asarray(state)
    if array.dtype.hasobject:
        raise TypeError("state_hash takes numbers, not objects: their bytes are addresses")
    data = array.tobytes()
    return np.frombuffer(data + bytes(-len(data) % 8), np.uint64), _begin(array.dtype.str, array.shape)


@lru_cache(1024)
def _begin(dtype: str, shape: tuple[int, ...]) -> int:
    return int.from_bytes(hashlib.blake2b(f"{dtype}{shape}".encode(), digest_size=8).digest(), "little")
