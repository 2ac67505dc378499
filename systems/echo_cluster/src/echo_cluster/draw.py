"""Draws one batch from several shards: all are asked at once, and their parts become one batch with probabilities and weights of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_replay.remote.remote_records import RemoteRecordTable, joined
from echo_replay.remote.remote_sample import RemoteSample
from echo_replay.remote.weights import lag_factors
from echo_replay.tables.replay_info import importance_weights

from .keys import keys_of
from .shard import UNAVAILABLE

if TYPE_CHECKING:
    from echo_replay.remote.batch_memory import BatchMemory
    from echo_replay.remote.remote_table import RemoteTable

    from .shard import Reached, Shard

__all__ = ["ClusterInfo", "ClusterSample", "Draw"]


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
    """The items that one shard has drawn.

    Attributes:
        n: items.
        info: a `RemoteInfo`.
        records: samples of varying length; None for others, which lie in the memory of the batch.
    """

    shard: Shard
    reached: Reached
    n: int
    info: Any
    records: Any


class Draw:
    """One batch that is being drawn: shards were asked for parts of it, and parts have come. For one thread at a time.

    Args:
        n: items.
        beta: exponent of the weights; None is the tables' own.

    Attributes:
        masses: of all shards that could be asked, when they could. The batch is drawn by them, and they may change meanwhile.
        missing: how many items have not come, once `collect` has returned.
        failed: shards that were asked and did not answer. failures: how often that happened.
        degraded: whether a shard was left out.
    """

    def __init__(self, n: int, beta: float | None) -> None:
        self.n, self.missing, self._beta = n, n, beta
        self.masses: dict[Shard, float] = {}
        self.failed: set[Shard] = set()
        self.failures = 0
        self.degraded = False
        self.parts: list[Part] = []
        self._asked: list[tuple[Shard, Reached, int, Any]] = []
        self._memory: BatchMemory | None = None

    def ask(self, shard: Shard, reached: Reached, count: int, seconds: float) -> None:
        """Ask a shard for so many items. The request waits `seconds` at its table at most."""
        try:
            self._asked.append((shard, reached, count, reached.table.sample_begin(count, seconds, self._beta)))
        except UNAVAILABLE as reason:
            self._fail(shard, reason)

    def _fail(self, shard: Shard, reason: BaseException) -> None:
        shard.failed(reason)
        self.failed.add(shard)
        self.failures += 1

    def collect(self) -> None:
        """Take the parts of all shards that were asked. A shard that does not answer is in `failed` then, and what it was asked for is `missing`.

        Raises the error of a shard that has refused the request; the other parts are taken anyway.
        """
        error: Exception | None = None
        while self._asked:
            shard, reached, count, pending = self._asked[0]
            try:
                info, records = self._collected(reached.table, pending)
            except UNAVAILABLE as reason:
                self._fail(shard, reason)
            except Exception as reason:
                error = error or reason
            else:
                shard.told(info.mass, info.store_size)
                self.parts.append(Part(shard, reached, count, info, records))
                self.missing -= count
            del self._asked[0]  # last: after Ctrl-C, `withdraw` takes back what nobody waits for
        if error is not None:
            raise error

    def _collected(self, table: RemoteTable, pending: Any) -> tuple[Any, Any]:
        if isinstance(table, RemoteRecordTable):
            records = pending.collect(comes_back=False)
            return records.info, records
        if self._memory is None:
            self._memory = table.memory(self.n)
        return pending.collect_into(self._memory), None

    def withdraw(self) -> None:
        """Nobody waits for this batch any more. Parts that have come are lost."""
        for *_, pending in self._asked:
            pending.withdraw()
        self._asked.clear()

    def made(self, shares: dict[Shard, float], name: str | None) -> Any:
        """The batch, of which nothing is missing: a `ClusterSample`, or a `StepSample` or `RecordSample` of tables that have these.

        Args:
            shares: the probability of each shard.
            name: of the table.
        """
        parts, memory = self.parts, self._memory
        if memory is not None:
            raw, probabilities = memory.keys, memory.probabilities
            versions = memory.policy_versions
        else:
            raw = np.concatenate([part.records.keys for part in parts])
            probabilities = np.concatenate([part.records.probabilities for part in parts])
        rows, start = [], 0
        for part in parts:
            rows.append(slice(start, start := start + part.n))
            probabilities[rows[-1]] *= shares[part.shard]
        keys = keys_of((part.shard.number, part.reached.life, raw[row]) for part, row in zip(parts, rows))
        if any(part.info.policy_versions is None for part in parts):
            versions = None
        elif memory is None:
            versions = np.concatenate([part.info.policy_versions for part in parts])
        weights = importance_weights(probabilities, parts[0].info.beta)
        for part, row in zip(parts, rows):
            if (factors := lag_factors(part.info)) is not None:
                weights[row] *= factors
        inverse = 1.0 / probabilities
        latest = {part.shard: part.info for part in parts}.values()  # of the last part of each shard
        size = inserted = sampled = redrawn = newest = 0
        for one in latest:
            size, inserted, sampled, redrawn = size + one.store_size, inserted + one.inserted, sampled + one.sampled, redrawn + one.redrawn
            newest = max(newest, one.policy_version)
        items: dict[int, int] = {}
        for part in parts:
            items[part.shard.number] = items.get(part.shard.number, 0) + part.n
        effective = float(inverse.sum() ** 2 / inverse.dot(inverse))
        info = ClusterInfo(name, size, inserted, sampled, redrawn, effective, newest, versions, self.degraded, items)
        if memory is None:
            return joined([part.records for part in parts], info, keys, probabilities, weights)
        sample = parts[0].reached.table.made(memory.leaves, info, keys, probabilities, weights)
        return ClusterSample(sample.batch, info, keys, probabilities, weights) if isinstance(sample, RemoteSample) else sample
