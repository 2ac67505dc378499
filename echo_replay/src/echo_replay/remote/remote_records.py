"""Accesses a learner's table of samples of varying length from another process or machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from echo_core.base.errors import ClosedError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, ProtocolError, SpecError
from echo_core.base.memory.recycled import empty
from echo_core.base.waiting import Wait
from echo_core.spec.packed import PackedBatch, offsets_of
from echo_core.spec.pytree.ragged_flattener import RaggedFlattener
from echo_core.spec.ragged import ChunkSpec, RaggedSpec
from echo_core.store.sampler import Keys, check_keys, check_priorities
from echo_core.wire.blobs import MAX_BYTES, MAX_KEYS, MOST_BYTES, fill, join, split

from ..tables.records.record_sample import RecordSample
from ..tables.records.record_table import MOST_UNITS_ITEMS
from . import asking_again
from .asking_again import FINAL, patience
from .remote_sample import RemoteInfo
from .remote_table import RemoteTable
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
                self._fetch("sample", asked.number, arrays, wait)
            except ConnectionClosedError as error:
                if isinstance(error, FINAL) or not comes_back or not wait.left():
                    raise
                # The server has dropped the batch with the connection: it is drawn again.
                turn = Turn(self._requests, "sample", asked.body, b"", wait.left(), asked.number, True)
                continue
            return self._made(columns, arrays, figures)

    def _announced(self, wanted: dict[str, Any], figures: dict[str, Any], blob: Buffer, peeked: bool = False) -> tuple[list[np.ndarray], list[np.ndarray], int]:
        """The columns of a batch, empty arrays for its packed leaves, and the bytes of the columns. All that the server says about the size is
        checked before anything is allocated. A batch that was looked up (`peeked`) says which items are there; a drawn one has keys and so on.

        Raises:
            ProtocolError: it cannot be true.
        """
        records, n = self.records, figures.get("items")
        if type(n) is not int or not 1 <= n <= MOST_UNITS_ITEMS or n != wanted.get("n", n) or type(figures.get("whole")) is not bool:
            raise ProtocolError(f"the server announces a batch of {n!r} items, and {wanted} was asked for; install the same echo-core at both ends")
        shapes: list[tuple[Any, tuple[int, ...]]] = [(np.bool_, (n,))] if peeked else [(np.uint64, (n,)), (np.float64, (n,))]
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

    def _fetch(self, caller: str, number: int, arrays: list[np.ndarray], wait: Wait) -> None:
        """Fill the packed leaves with the parts of a batch that the server keeps. Two parts are on the way at a time."""
        views = [array.reshape(-1).view(np.uint8) for array in arrays if array.nbytes]
        size = sum(view.size for view in views)
        starts = iter(range(0, size, MAX_BYTES))

        def ask() -> list[tuple[int, Any]]:
            start = next(starts, None)
            return [] if start is None else [(start, self._send("sample", 1, batch=number, start=start, bytes=min(MAX_BYTES, size - start)))]

        reconnects = self._requests.reconnects()
        under_way, which, at = ask() + ask(), 0, 0
        while under_way:
            start, pending = under_way.pop(0)
            late = f"{caller}() received only {start:,} of {size:,} bytes in time; ask for fewer, or wait longer (timeout=)"
            if not wait.left():
                raise EchoTimeoutError(late)
            try:
                body, blob = pending(patience(wait.left()))
            except EchoTimeoutError as error:
                raise EchoTimeoutError(late) from error
            if body.get("gone"):
                if self._requests.reconnects() != reconnects:
                    raise ConnectionClosedError(f"{caller}() received a part of its batch, and the connection was lost")
                raise EchoError(f"{caller}(): the server has dropped the rest of this batch; ask for such large batches in fewer threads")
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
        return RecordSample(self.records, arrays, offsets_of(lengths), info, DrawnColumns(keys, probabilities, weights_of(probabilities, info)))

    def peek(self, keys: Any, timeout: float | None = None) -> tuple[RecordSample, np.ndarray]:
        """Like `RecordTable.peek`: a packed batch of items by key, and which of them exist (bool). The others have length 0, and zeros in their
        other leaves. Items that arrive in different messages may be from different moments."""
        checked = check_keys(keys)
        if checked.size == 0:
            raise ValueError("peek() needs at least one key")
        # The server reserves memory for the longest samples. Usually they are shorter, so that the answer is one message nevertheless.
        step = min(MAX_KEYS, max(1, 4 * MAX_BYTES // self.records.max_record_bytes))
        wait = Wait(self._seconds(timeout))
        parts, found = [], []
        for start in range(0, checked.size, step):
            packed, here = self._peeked(checked[start : start + step], wait)
            parts.append(packed)
            found.append(here)
        whole = parts[0] if len(parts) == 1 else PackedBatch.joined(parts)
        return RecordSample(self.records, whole.arrays, list(whole.offsets.values())), np.concatenate(found)

    def _peeked(self, keys: Keys, wait: Wait) -> tuple[PackedBatch, np.ndarray]:
        number = next(asking_again.numbers)
        while True:
            figures, blob = self._ask("peek", len(keys), join(keys), wait.left(), batch=number)
            (here, lengths), arrays, head = self._announced({"n": len(keys)}, figures, blob, peeked=True)
            if figures["whole"]:
                fill(memoryview(blob)[head:], arrays)
            else:
                try:
                    self._fetch("peek", number, arrays, wait)
                except ConnectionClosedError as error:
                    if isinstance(error, FINAL) or not wait.left():
                        raise
                    continue  # the server has dropped what it kept for the lost connection
            return PackedBatch(self.records, arrays, offsets_of(lengths)), here

    def insert(self, samples: Sequence[Any], priorities: Any = None, timeout: float | None = None) -> Keys:
        """Insert a list of samples, and return their keys, uint64 of shape (N,). See `RemoteTable.insert`. For many samples in a row,
        `send_batch` is faster."""
        if not isinstance(samples, (list, tuple)):
            raise SpecError(f"insert() takes a list of samples where they vary in length, not one {type(samples).__name__}: insert([one, two, ...])")
        fit, leaves = RaggedFlattener(self.records), []
        for i, sample in enumerate(samples):
            try:
                leaves.append(fit.flatten(sample))
            except SpecError as error:
                raise SpecError(f"sample {i} of the batch: {error}") from error
        values = None if priorities is None else check_priorities(priorities, np.arange(len(leaves), dtype=np.uint64), what="sample")
        keys, start = [np.empty(0, np.uint64)], 0
        wait = Wait(self._seconds(timeout))
        while start < len(leaves):
            end, size = start, 0
            while end < len(leaves) and end - start < MAX_KEYS and (end == start or size + self._carried(leaves[end]) <= MAX_BYTES):
                size += self._carried(leaves[end])
                end += 1
            try:
                keys.append(self._inserted(leaves[start:end], None if values is None else values[start:end], wait.left()))
            except EchoTimeoutError as error:
                error.inserted = start
                raise
            except EchoError as error:
                if start:
                    raise type(error)(f"{start} of {len(leaves)} were inserted; among the others, counted from the first of them: {error}") from error
                raise
            start = end
        return np.concatenate(keys)

    def _carried(self, leaves: list[np.ndarray]) -> int:
        """Bytes of one sample in the message of an insert, with its priority and lengths."""
        return sum(leaf.nbytes for leaf in leaves) + 8 + 4 * len(self.records.axes)

    def _inserted(self, samples: list[list[np.ndarray]], values: np.ndarray | None, timeout: float) -> Keys:
        """Insert samples in one message; returns their keys."""
        first = [next(i for i, leaf in enumerate(self.records.leaves) if leaf.axis == axis) for axis in range(len(self.records.axes))]
        lengths = np.array([[len(leaves[i]) for i in first] for leaves in samples], np.int32)
        blob = join(*([] if values is None else [values]), lengths, *(array for column in zip(*samples) for array in column))
        body = {"n": len(samples), **self._named(), "priorities": values is not None}
        answer = Turn(self._requests, "insert", body, blob, timeout).wait()
        return split(answer[1], (np.uint64, (len(samples),)))[0]

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
    whole = samples[0].packed if len(samples) == 1 else PackedBatch.joined([sample.packed for sample in samples])
    return RecordSample(whole.spec, whole.arrays, list(whole.offsets.values()), info, DrawnColumns(keys, probabilities, weights))


def check_count(n: Any) -> None:
    """Raises ValueError if this is not a number of items that one draw may have."""
    if not hasattr(type(n), "__index__") or isinstance(n, bool) or not 1 <= n <= MOST_UNITS_ITEMS:
        raise ValueError(f"n must be a whole number from 1 to {MOST_UNITS_ITEMS}, not {n!r}")
