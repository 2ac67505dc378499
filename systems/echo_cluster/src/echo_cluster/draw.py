"""Draws one batch from several shards: all are asked at once, and their parts become one batch with probabilities and weights of the whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_core import EchoError
from echo_replay.remote.remote_records import DrawnColumns, RemoteRecordTable, joined
from echo_replay.remote.remote_sample import RemoteSample
from echo_replay.remote.weights import lag_factors
from echo_replay.tables.records.record_sample import RecordSample
from echo_replay.tables.replay_info import importance_weights

from .keys import keys_of
from .shard import UNAVAILABLE

if TYPE_CHECKING:
    from collections import deque

    from echo_replay.remote.batch_memory import BatchMemory
    from echo_replay.remote.remote_table import RemoteTable

    from .shard import Reached, Shard

__all__ = ["ClusterInfo", "ClusterSample", "Draw", "Kept"]


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
        mass: of the shard, when it was asked.
        kept: it came for an earlier batch.
    """

    shard: Shard
    reached: Reached
    n: int
    info: Any
    records: Any
    mass: float
    kept: bool = False


class Kept(NamedTuple):
    """A part that came for a batch that was given up. Without records, its items lie in `memory` from `first` on."""

    part: Part
    memory: BatchMemory | None
    first: int


class Draw:
    """One batch that is being drawn: shards were asked for parts of it, and parts have come. For one thread at a time.

    Args:
        n: items.
        beta: exponent of the weights; None is the tables' own.

    Attributes:
        masses: of all shards that could be asked, when they could. The batch is drawn by them, and they may change meanwhile.
        missing: how many items have not come, once `collect` has returned.
        failed: shards that were asked and gave nothing, or were not asked because their tables wait. failures: how often somebody was asked in vain.
        degraded: whether a shard was left out.
    """

    def __init__(self, n: int, beta: float | None) -> None:
        self.n, self.missing, self._beta = n, n, beta
        self.masses: dict[Shard, float] = {}
        self.failed: set[Shard] = set()
        self.failures = 0
        self.degraded = False
        self.parts: list[Part] = []
        self._asked: list[tuple[Shard, Reached, int, float, Any]] = []
        self._memory: BatchMemory | None = None

    def take(self, kept: deque[Kept]) -> None:
        """Begin with what was kept, as much as the batch needs. The rest stays in `kept`."""
        while kept and self.missing:
            part, memory, first = kept.popleft()
            n = min(part.n, self.missing)
            mine, rest = _rows(part, 0, n), _rows(part, n, part.n)
            if memory is not None:
                if self._memory is None:
                    self._memory = part.reached.table.memory(self.n)
                columns = [memory.keys, memory.probabilities, *memory.leaves]
                if versions := part.info.policy_versions is not None:
                    assert memory.policy_versions is not None
                    columns.append(memory.policy_versions)
                self._memory.copy(b"".join(column[first : first + n].tobytes() for column in columns), n, versions)
            self.parts.append(mine)
            self.missing -= n
            if rest.n:
                kept.appendleft(Kept(rest, memory, first + n))

    def spent(self, seconds: float) -> list[Kept]:
        """The parts that have come, without those whose table still has their items: these can be drawn again. It raises nothing.

        Args:
            seconds: how long to wait for a shard that is asked for its items. If it does not answer, its part is kept.
        """
        found, first = [], 0
        for part in self.parts:
            if part.kept or not self._has(part, first, seconds):
                found.append(Kept(part._replace(kept=True), self._memory if part.records is None else None, first))
            first += part.n
        return found

    def _has(self, part: Part, first: int, seconds: float) -> bool:
        if part.records is not None:
            keys = part.records.keys
        else:
            assert self._memory is not None
            keys = self._memory.keys[first : first + part.n]
        try:
            return part.shard.ready() and bool(part.reached.table.peek(keys, seconds)[1].all())
        except EchoError:
            return False

    def ask(self, shard: Shard, reached: Reached, count: int, seconds: float) -> None:
        """Ask a shard for so many items. The request waits `seconds` at its table at most."""
        try:
            self._asked.append((shard, reached, count, seconds, reached.table.sample_begin(count, seconds, self._beta)))
        except UNAVAILABLE as reason:
            self._fail(shard, reason, seconds)

    def _fail(self, shard: Shard, reason: BaseException, seconds: float) -> None:
        shard.failed(reason, seconds)
        self.failed.add(shard)
        self.failures += 1

    def collect(self) -> None:
        """Take the parts of all shards that were asked. A shard that does not answer is in `failed` then, and what it was asked for is `missing`.

        Raises the error of a shard that has refused the request; the other parts are taken anyway.
        """
        error: Exception | None = None
        while self._asked:
            shard, reached, count, seconds, pending = self._asked[0]
            try:
                info, records = self._collected(reached.table, pending)
            except UNAVAILABLE as reason:
                self._fail(shard, reason, seconds)
            except Exception as reason:
                error = error or reason
            else:
                shard.gave()
                shard.told(info.mass, info.store_size)
                self.parts.append(Part(shard, reached, count, info, records, self.masses.get(shard, 0.0)))
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
        """Nobody waits any more for what was asked for."""
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
        # The last part is not a kept one, unless all are.
        weights = importance_weights(probabilities, parts[-1].info.beta if self._beta is None else self._beta)
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


def _rows(part: Part, start: int, end: int) -> Part:
    """A part with only these rows."""
    if (start, end) == (0, part.n):
        return part
    info, records = part.info, part.records
    if info.policy_versions is not None:
        info = info._replace(policy_versions=info.policy_versions[start:end])
    if records is not None:
        packed = records.packed[start:end]
        columns = DrawnColumns(records.keys[start:end], records.probabilities[start:end], records.weights[start:end])
        records = RecordSample(packed.spec, packed.arrays, list(packed.offsets.values()), info, columns)
    return part._replace(n=end - start, info=info, records=records)
