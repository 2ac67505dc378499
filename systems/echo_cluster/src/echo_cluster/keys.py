"""The key of an item in a cluster: which shard has it, by which connection it was drawn, and its key there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core import SpecError

if TYPE_CHECKING:
    import numpy.typing as npt

__all__ = ["KEY", "MOST_SHARDS", "check_keys", "keys_of"]

#: The dtype of keys. Treat them as opaque: compare them, keep them, and give them back. "life" counts the connections to a shard, so a key of a
#: shard that was restarted since does nothing there.
KEY = np.dtype([("shard", "<u2"), ("life", "<u2"), ("key", "<u8")])

MOST_SHARDS = 1 << 16
LIVES = 1 << 16  # a life is this many lives later the same again, which is long after the last of its keys is gone


def keys_of(parts: Iterable[tuple[int, int, npt.NDArray[np.uint64]]]) -> npt.NDArray[np.void]:
    """The keys of items, shape (n,); of each part the number of its shard, the life, and the keys there."""
    given = list(parts)
    made = np.empty(sum(len(keys) for _, _, keys in given), KEY)
    shards, lives, numbers = made["shard"], made["life"], made["key"]
    start = 0
    for shard, life, keys in given:
        rows = slice(start, start := start + len(keys))
        shards[rows], lives[rows], numbers[rows] = shard, life % LIVES, keys
    return made


def check_keys(keys: Any) -> npt.NDArray[np.void]:
    """The keys as an array of shape (n,). Raises SpecError if they are not keys of a cluster."""
    given = np.asarray(keys)
    if given.dtype != KEY or given.ndim != 1:
        raise SpecError(
            f"keys of a cluster are an array of shape (n,) as ClusterLearner.sample() returns it, not {given.dtype} of shape {given.shape}; "
            "a key of a single server's table does not say which shard has the item"
        )
    return given
