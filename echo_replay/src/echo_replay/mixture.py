"""Makes one batch from several replay tables in given shares, such as demonstrations and online samples (Ball et al. 2023, RLPD)."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import optree

from echo_core.base.errors import ConfigError
from echo_core.spec.packed import PackedBatch
from echo_core.spec.ragged import RaggedSpec

from .tables.records.record_sample import PackedSample, RecordSample

if TYPE_CHECKING:
    from collections.abc import Iterator

    from echo_core.spec.spec import Spec

__all__ = ["MixedRecordSample", "MixedSample", "draw", "shares_of"]


class Part(Protocol):
    """A batch of one table: a `Sample`, or a `RemoteSample` if the table is in another process."""

    @property
    def batch(self) -> Any: ...
    @property
    def weights(self) -> Any: ...
    def with_batch(self, batch: Any) -> Any: ...


class Drawable(Protocol):
    """A table from which batches are drawn: a `ReplayTable` or a `RemoteTable`."""

    @property
    def spec(self) -> Spec: ...
    def sample(self, n: int, timeout: float | None = None, beta: float | None = None) -> Any: ...


class MixedSample(NamedTuple):
    """A batch whose rows come from several tables.

    Attributes:
        batch: leaves of shape `(n, *leaf.shape)`, the tables' rows one after another.
        parts: the `Sample` of each table, whose batch is a view of that table's rows. Pass its keys to
            `update_priorities(..., table=name)`.
        weights: float32 of shape (n,): the importance weights of the parts, one after another.
    """

    batch: Any
    parts: dict[str, Any]
    weights: np.ndarray


class MixedRecordSample(PackedSample):
    """A packed batch of samples of varying length from several tables; unpacks as `batch, parts, weights`.

    Attributes:
        packed: the `PackedBatch`: the tables' samples one after another. `batch`, `offsets`, `lengths`, `row` and `padded` are its own.
        parts: the `RecordSample` of each table, whose arrays are views of that table's samples. Pass its keys to
            `update_priorities(..., table=name)`.
        weights: as in `MixedSample`.
    """

    __slots__ = ("parts", "weights")
    __match_args__ = ("batch", "parts", "weights")

    def __init__(self, packed: PackedBatch, parts: dict[str, RecordSample], weights: np.ndarray) -> None:
        super().__init__(packed)
        self.parts, self.weights = parts, weights

    def __iter__(self) -> Iterator[Any]:
        return iter((self.batch, self.parts, self.weights))

    def __repr__(self) -> str:
        return f"MixedRecordSample({self.packed!r}, parts={list(self.parts)})"


def shares_of(shares: Mapping[str, float], n: int) -> dict[str, int]:
    """How many of n items come from each table: in proportion, rounded by largest remainder, so that the sum is n.

    Raises:
        ConfigError: a share is not positive and finite, or there are more tables than items, or n is not a whole number.
    """
    if not hasattr(type(n), "__index__"):
        raise ConfigError(f"n must be a whole number, not {n!r}")
    if not isinstance(shares, Mapping):
        raise ConfigError(f"shares must map the name of each table to its part of the batch, such as {{'demonstrations': 0.5, 'online': 0.5}}, not {shares!r}")
    bad = [name for name, share in shares.items() if isinstance(share, bool) or not isinstance(share, Real) or not 0 < share < math.inf]
    if bad or not shares or len(shares) > n:
        raise ConfigError(f"a batch of {n} needs from 1 to {n} tables, each with a positive share, not {dict(shares)}")
    total = sum(shares.values())
    exact = {name: n * share / total for name, share in shares.items()}
    counts = {name: max(1, int(value)) for name, value in exact.items()}
    while sum(counts.values()) < n:
        counts[max(counts, key=lambda name: exact[name] - counts[name])] += 1
    while sum(counts.values()) > n:
        counts[max(counts, key=lambda name: counts[name] - exact[name] if counts[name] > 1 else -math.inf)] -= 1
    return counts


def draw(tables: Mapping[str, Drawable], counts: Mapping[str, int], timeout: float | None, beta: float | None) -> MixedSample | MixedRecordSample | None:
    """Draw a batch of `counts[name]` items from each table; None once the server is closed. Samples of varying length come packed.

    Raises:
        ConfigError: the tables' specs differ (the message names the leaf), or their items over steps differ.
        ValueError: samples of varying length could have more rows together than offsets of 32 bits number; nothing was drawn.
        EchoTimeoutError: a table gave no items in time. The items that other tables gave still count as sampled.
    """
    names = list(counts)
    spec = tables[names[0]].spec
    for name in names[1:]:
        if difference := spec.difference(tables[name].spec, f"in {names[0]!r}", f"in {name!r}"):
            raise ConfigError(f"tables of one batch need the same spec: {difference}")
    records: RaggedSpec | None = getattr(tables[names[0]], "records", None)
    if records is not None:
        _check_rows(records, sum(counts.values()))
    layouts = {name: layout.to_json() for name in names if (layout := getattr(tables[name], "layout", None)) is not None}
    if any(layouts.get(name) != layouts.get(names[0]) for name in names):
        raise ConfigError(f"tables of one batch need the same items and stacks, but {', '.join(map(repr, names))} differ in them")
    deadline = None if timeout is None else time.monotonic() + timeout
    parts: dict[str, Part] = {}
    for name in names:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        sample = tables[name].sample(counts[name], left, beta)
        if sample is None:
            return None
        parts[name] = sample
    if records is not None:
        return _packed(parts)
    batch = optree.tree_map(lambda *rows: np.concatenate(rows), *(part.batch for part in parts.values()), namespace=spec.namespace)
    weights = np.concatenate([part.weights for part in parts.values()])
    start = 0
    for name, part in parts.items():
        rows = slice(start, start + counts[name])
        parts[name] = part.with_batch(optree.tree_map(lambda leaf, rows=rows: leaf[rows], batch, namespace=spec.namespace))
        start += counts[name]
    return MixedSample(batch, parts, weights)


def _check_rows(records: RaggedSpec, n: int) -> None:
    for axis, most in zip(records.axes, records.most):
        if n * most >= 1 << 31:
            raise ValueError(
                f"a batch of {n} samples of up to {most} rows could have more than {(1 << 31) - 1} along the axis {axis!r}, which offsets of "
                f"32 bits cannot number; draw fewer at once"
            )


def _packed(parts: Mapping[str, Any]) -> MixedRecordSample:
    """One packed batch of the batches of several tables."""
    packed = PackedBatch.joined([part.packed for part in parts.values()])
    start, views = 0, {}
    for name, part in parts.items():
        end = start + len(part.packed)
        views[name] = part.with_batch(packed[start:end].batch)
        start = end
    return MixedRecordSample(packed, views, np.concatenate([part.weights for part in parts.values()]))
