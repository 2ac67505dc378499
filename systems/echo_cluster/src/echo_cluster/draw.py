"""Puts the parts of a batch, which several shards have drawn, together to one batch with probabilities and weights of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optree

from .keys import keys_of
from .shares import importance_weights

if TYPE_CHECKING:
    from .shard import Shard

__all__ = ["ClusterInfo", "ClusterSample", "Part", "joined"]


class ClusterInfo(NamedTuple):
    """Information about a batch of a cluster.

    Attributes:
        table: its name; None is the first table.
        store_size, inserted, sampled, redrawn: sums over the shards that have given items.
        effective_sample_size: as in `ReplayInfo`.
        policy_version: the newest that a shard knew. policy_versions: uint64 of shape (n,), or None.
        degraded: whether a shard was left out.
        shards: the number of items from each shard, by its number in keys.
    """

    table: str | None
    store_size: int
    inserted: int
    sampled: int
    redrawn: int
    effective_sample_size: float
    policy_version: int
    policy_versions: np.ndarray | None
    degraded: bool
    shards: dict[int, int]


class ClusterSample(NamedTuple):
    """A batch of a cluster.

    Attributes:
        batch: leaves of shape `(n, *leaf.shape)`.
        info: `ClusterInfo`.
        keys: of dtype `KEY`, shape (n,).
        probabilities: float64 of shape (n,): with which each item was drawn, among the items of all shards.
        weights: float32 of shape (n,): importance weights, the largest 1.
    """

    batch: Any
    info: ClusterInfo
    keys: np.ndarray
    probabilities: np.ndarray
    weights: np.ndarray

    def with_batch(self, batch: Any) -> ClusterSample:
        """The same keys, weights and information with another batch."""
        return ClusterSample(batch, *self[1:])


class Part(NamedTuple):
    """What one shard has drawn: a `RemoteSample` of its life."""

    shard: Shard
    life: int
    sample: Any

    @property
    def n(self) -> int:
        return len(self.sample.keys)


def joined(parts: list[Part], shares: dict[Shard, float], degraded: bool, table: str | None) -> ClusterSample:
    """One batch of all parts, with the probability of each shard."""
    keys = _one([keys_of(part.shard.number, part.life, part.sample.keys) for part in parts])
    probabilities = _one([part.sample.probabilities * shares[part.shard] for part in parts])
    infos = {part.shard: part.sample.info for part in parts}  # of the last part of each
    if len(parts) == 1:
        batch, weights = parts[0].sample.batch, parts[0].sample.weights
    else:
        beta = parts[0].sample.info.beta
        weights = importance_weights(probabilities, beta)
        if any(part.sample.info.policy_versions is not None for part in parts):  # weights of old policies are reduced by the tables
            weights *= _one([part.sample.weights / importance_weights(part.sample.probabilities, part.sample.info.beta) for part in parts])
        batch = optree.tree_map(lambda *arrays: np.concatenate(arrays), *(part.sample.batch for part in parts))
    versions = [part.sample.info.policy_versions for part in parts]
    inverse = 1.0 / probabilities
    info = ClusterInfo(
        table=table,
        store_size=sum(one.store_size for one in infos.values()),
        inserted=sum(one.inserted for one in infos.values()),
        sampled=sum(one.sampled for one in infos.values()),
        redrawn=sum(one.redrawn for one in infos.values()),
        effective_sample_size=float(inverse.sum() ** 2 / np.square(inverse).sum()),
        policy_version=max(one.policy_version for one in infos.values()),
        policy_versions=None if any(one is None for one in versions) else _one(versions),
        degraded=degraded,
        shards={part.shard.number: sum(other.n for other in parts if other.shard is part.shard) for part in parts},
    )
    return ClusterSample(batch, info, keys, probabilities, weights)


def _one(arrays: list[Any]) -> Any:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
