"""Accesses a learner's table of samples of varying length from another process or machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import optree

from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, ProtocolError
from echo_core.base.memory.recycled import empty
from echo_core.base.waiting import Wait
from echo_core.spec.ragged import ChunkSpec, RaggedSpec
from echo_core.store.sampler import Keys
from echo_core.wire.blobs import MAX_BYTES, MOST_BYTES, fill

from ..tables.records.record_sample import RecordSample
from ..tables.records.record_table import MOST_UNITS_ITEMS
from . import asking_again
from .asking_again import FINAL, patience
from .remote_table import RemoteInfo, RemoteTable
from .turn import Turn
from .weights import weights_of

if TYPE_CHECKING:
    from echo_core.client.requests import Requests
    from echo_core.wire.protocol import Buffer

__all__ = ["DrawnColumns", "PendingRecords", "RemoteRecordTable", "joined"]


class RemoteRecordTable(RemoteTable):
    """Like `RemoteTable`, but batches are packed `RecordSample`s.

    Attributes:
        records: the `RaggedSpec` of the samples.
    """

    def __init__(self, requests: Requests, spec: ChunkSpec, name: str | None, timeout: float) -> None:
        super().__init__(requests, spec, name, timeout)
        self.records: RaggedSpec = spec.records

    def sample(self, n: int, timeout: float | None = None, beta: float | None = None) -> RecordSample:  # type: ignore[override]
        """Draw n items, at most 65 536; see `RemoteTable.sample`.

        Raises:
            EchoError: n items of the longest length would take more than 1 GiB, or more than the client's share of `client_memory`.
            ProtocolError: the lengths that the server announced are not possible. The rest as `RemoteTable.sample`.
        """
        check_count(n)
        return self._packed(self._asked({"n": int(n)}, timeout, beta), timeout)

    def sample_begin(self, n: int, timeout: float | None = None, beta: float | None = None) -> PendingRecords:  # type: ignore[override]
        """Ask for a batch, and return at once: `collect()` of the result waits for it; see `RemoteTable.sample_begin`."""
        check_count(n)
        asked = self._asked({"n": int(n)}, timeout, beta)
        asked.turn.begin()
        return PendingRecords(self, asked, self._seconds(timeout))

    def sample_units(self, units: Mapping[str, int], timeout: float | None = None, beta: float | None = None) -> RecordSample:
        """Draw as many whole items as fit into a budget of rows, `{axis: rows}`; see `RecordTable.sample`."""
        if not isinstance(units, Mapping) or len(units) != 1 or not hasattr(type(next(iter(units.values()))), "__index__"):
            raise ValueError(f"units must name one axis and its rows, such as {{{self.records.axes[0]!r}: 100_000}}, not {units!r}")
        return self._packed(self._asked({"units": {axis: int(rows) for axis, rows in units.items()}}, timeout, beta), timeout)

    def batches(self, n: int, timeout: float | None, beta: float | None, prefetch: int) -> Iterator[RecordSample]:  # type: ignore[override]
        """Yield batches of n items until the server is closed. None is drawn ahead, whatever `prefetch` is: the server keeps each batch as a whole
        until its last part is fetched, and how large a batch is shows only when it is drawn."""
        try:
            while True:
                yield self.sample(n, timeout, beta)
        except FINAL:
            return

    def _asked(self, wanted: dict[str, Any], timeout: float | None, beta: float | None) -> _Asked:
        number = next(asking_again.numbers)
        body = {**wanted, **self._named(), "batch": number} | ({} if beta is None else {"beta": beta})
        return _Asked(wanted, body, number, Turn(self._requests, "sample", body, b"", self._seconds(timeout), number))

    def _packed(self, asked: _Asked, timeout: float | None, comes_back: bool = True) -> RecordSample:
        wait, turn = Wait(self._seconds(timeout)), asked.turn
        while True:
            figures, blob = turn.wait(comes_back)
            if figures.get("closed"):
                raise ClosedError("sample(): the server is closed")
            columns, arrays, head = self._announced(asked.wanted, figures, blob)
            if figures["whole"]:
                fill(memoryview(blob)[head:], arrays)
                return self._made(columns, arrays, figures)
            try:
                self._fetch(asked.number, arrays, wait)
            except ConnectionClosedError as error:
                if isinstance(error, FINAL) or not comes_back or not wait.left():
                    raise
                # The server has dropped the batch with the connection: it is drawn again.
                turn = Turn(self._requests, "sample", asked.body, b"", wait.left(), asked.number, True)
                continue
            return self._made(columns, arrays, figures)

    def _announced(self, wanted: dict[str, Any], figures: dict[str, Any], blob: Buffer) -> tuple[list[np.ndarray], list[np.ndarray], int]:
        """The columns of a batch, empty arrays for its packed leaves, and the bytes of the columns. All that the server says about the size is
        checked before anything is allocated.

        Raises:
            ProtocolError: it cannot be true.
        """
        records, n = self.records, figures.get("items")
        if type(n) is not int or not 1 <= n <= MOST_UNITS_ITEMS or n != wanted.get("n", n) or type(figures.get("whole")) is not bool:
            raise ProtocolError(f"the server announces a batch of {n!r} items, and {wanted} was asked for; install the same echo-core at both ends")
        shapes: list[tuple[Any, tuple[int, ...]]] = [(np.uint64, (n,)), (np.float64, (n,))]
        shapes += [(np.uint64, (n,))] if figures.get("versions") else []
        shapes.append((np.int32, (n, len(records.axes))))
        head = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in shapes)
        if len(blob) < head:
            raise ProtocolError(f"the server announces a batch of {n} items in {len(blob)} bytes instead of {head}")
        columns = [np.empty(shape, dtype) for dtype, shape in shapes]
        fill(memoryview(blob)[:head], columns)
        lengths = columns[-1]
        for axis, most, each in zip(records.axes, records.most, lengths.T):
            if (wrong := each[(each < 0) | (each > most)]).size:
                raise ProtocolError(f"the server announces an item with {wrong[0]} rows along the axis {axis!r}, which has from 0 to {most}")
            if (total := int(each.sum(dtype=np.int64))) > min((1 << 31) - 1, wanted.get("units", {}).get(axis, 1 << 31)):
                raise ProtocolError(f"the server announces {total} rows along the axis {axis!r}, more than were asked for")
        totals = lengths.sum(axis=0, dtype=np.int64).tolist()
        size = n * records.fixed_bytes + sum(rows * each for rows, each in zip(totals, records.row_bytes))
        sent = len(blob) - head
        if size > MOST_BYTES or figures.get("bytes") != size or sent != (size if figures["whole"] else 0):
            raise ProtocolError(f"the server announces {figures.get('bytes')!r} bytes and sends {sent} for items whose lengths make {size}")
        arrays = [empty((n if leaf.axis < 0 else totals[leaf.axis], *leaf.shape), leaf.dtype) for leaf in records.leaves]
        return columns, arrays, head

    def _fetch(self, number: int, arrays: list[np.ndarray], wait: Wait) -> None:
        """Fill the packed leaves with the parts of a batch that is drawn already. Two parts are on the way at a time."""
        views = [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes]
        size = sum(view.size for view in views)
        starts = iter(range(0, size, MAX_BYTES))

        def ask() -> list[tuple[int, Any]]:
            start = next(starts, None)
            return [] if start is None else [(start, self._send("sample", 1, batch=number, start=start, bytes=min(MAX_BYTES, size - start)))]

        under_way, which, at = ask() + ask(), 0, 0
        while under_way:
            start, pending = under_way.pop(0)
            late = f"sample() received only {start:,} of {size:,} bytes in time; draw fewer, or wait longer (timeout=)"
            if not wait.left():
                raise EchoTimeoutError(late)
            try:
                body, blob = pending(patience(wait.left()))
            except EchoTimeoutError as error:
                raise EchoTimeoutError(late) from error
            if body.get("gone"):
                raise EchoError("the server has dropped the rest of this batch; draw such large batches in fewer threads")
            data = np.frombuffer(blob, np.uint8)
            if data.size != min(MAX_BYTES, size - start):
                raise ProtocolError(f"a part of a batch has {data.size} bytes instead of {min(MAX_BYTES, size - start)}")
            under_way += ask()
            while data.size:
                k = min(data.size, views[which].size - at)
                views[which][at : at + k] = data[:k]
                data, at = data[k:], at + k
                if at == views[which].size:
                    which, at = which + 1, 0

    def _made(self, columns: list[np.ndarray], arrays: list[np.ndarray], figures: dict[str, Any]) -> RecordSample:
        keys, probabilities, *versions, lengths = columns
        w = 1.0 / probabilities
        info = RemoteInfo(
            table=self._name,
            store_size=int(figures["store_size"]),
            inserted=int(figures["inserted"]),
            sampled=int(figures["sampled"]),
            redrawn=int(figures["redrawn"]),
            effective_sample_size=float(w.sum() ** 2 / w.dot(w)),
            policy_version=int(figures.get("policy_version", 0)),
            policy_versions=versions[0] if versions else None,
            mass=figures.get("mass"),
            beta=float(figures["beta"]),
            lag_weight=float(figures.get("lag_weight", 1)),
        )
        offsets = [np.concatenate([[0], np.cumsum(each)]).astype(np.int32) for each in lengths.T]
        return RecordSample(self.records, arrays, offsets, info, DrawnColumns(keys, probabilities, weights_of(probabilities, info)))

    def insert(self, samples: Any, priorities: Any = None, timeout: float | None = None) -> Keys:
        """Raises ConfigError: samples of varying length are sent."""
        raise ConfigError("a table of samples of varying length has no insert() from a client; use send() or send_batch()")

    def update_items(self, keys: Any, leaves: Mapping[str, Any], timeout: float | None = None) -> np.ndarray:
        """Raises ConfigError: records have different lengths, so that no leaf can be overwritten in place."""
        raise ConfigError("samples of varying length cannot be overwritten in place; send the changed sample, and delete the old one by its key")


class DrawnColumns:
    """What a draw says about each item; in place of the lease of a batch of this process."""

    def __init__(self, keys: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> None:
        self._columns = {"keys": keys, "probabilities": probabilities, "weights": weights}

    def draw_columns(self) -> dict[str, np.ndarray]:
        return self._columns

    def copied(self) -> DrawnColumns:
        return self


class _Asked(NamedTuple):
    """A batch that is wanted, and its first request."""

    wanted: dict[str, Any]
    body: dict[str, Any]
    number: int
    turn: Turn


class PendingRecords:
    """A batch of samples of varying length that was asked for; like `PendingSample`."""

    def __init__(self, table: RemoteRecordTable, asked: _Asked, seconds: float) -> None:
        self._table, self._asked, self._seconds = table, asked, seconds

    def collect(self, comes_back: bool = True) -> RecordSample:
        """Wait for the batch; see `PendingSample.collect`. Without `comes_back`, a lost connection is an error at once."""
        return self._table._packed(self._asked, self._seconds, comes_back)

    def withdraw(self) -> None:
        """Nobody waits for this batch any more."""
        self._asked.turn.withdraw()


def joined(samples: Sequence[RecordSample], info: Any, keys: np.ndarray, probabilities: np.ndarray, weights: np.ndarray) -> RecordSample:
    """One batch of the items of several, in this order. The packed leaves are copied once."""
    spec = samples[0].packed.spec
    columns = DrawnColumns(keys, probabilities, weights)
    leaves = [optree.tree_leaves(sample.batch, namespace=spec.namespace) for sample in samples]
    arrays = leaves[0] if len(samples) == 1 else [np.concatenate(parts) for parts in zip(*leaves)]
    offsets = []
    for axis in spec.axes:
        lengths = np.concatenate([sample.lengths[axis] for sample in samples])
        offsets.append(np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]))
    if any(int(each[-1]) >= 1 << 31 for each in offsets):
        raise ValueError("the batch has more rows than an int32 can count; draw fewer items")
    return RecordSample(spec, arrays, [each.astype(np.int32) for each in offsets], info, columns)


def check_count(n: Any) -> None:
    """Raises ValueError if this is not a number of items that one draw may have."""
    if not hasattr(type(n), "__index__") or isinstance(n, bool) or not 1 <= n <= MOST_UNITS_ITEMS:
        raise ValueError(f"n must be a whole number from 1 to {MOST_UNITS_ITEMS}, not {n!r}")
