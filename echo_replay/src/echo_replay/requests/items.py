"""Operations on the items of a replay table: they look up items by key, or insert new ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import ClosedError, EchoError, EchoTimeoutError
from echo_core.server.operations.operation import count_of
from echo_core.wire.blobs import MAX_KEYS, join, max_rows, pieces, split

from ..steps.step_table import StepTable
from ..tables.records.record_table import RecordTable
from .record_items import peek_records, samples_of
from .waiting_line import Want

if TYPE_CHECKING:
    from echo_core.server.state import ServerState
    from echo_core.wire.later import Answer, Later
    from echo_core.wire.peer import Peer

    from ..tables.replay_table import ReplayTable
    from .carried_out import CarriedOut
    from .table_state import TableState

__all__ = ["ack", "delete", "insert", "peek", "priority_histogram", "top", "update_items", "update_priorities"]


def update_priorities(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    keys, priorities = split(blob, (np.uint64, (n,)), (np.float64, (n,)))
    return {"gone": of.table.update_priorities(keys, priorities)}, b""


def delete(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    table, keys = of.table, split(blob, (np.uint64, (n,)))[0]
    return of.ended.once(peer, body, lambda: {"deleted": table.delete(keys)}), b""


def ack(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    table, keys = of.table, split(blob, (np.uint64, (n,)))[0]
    return of.ended.once(peer, body, lambda: {"acknowledged": table.ack(keys)}), b""


def _samples(table: ReplayTable) -> ReplayTable:
    """The table, whose items must be samples themselves (not items over steps)."""
    if isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} stores steps; give the client Steps(example) and use send()")
    return table


def insert(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer | Later:
    """Insert items with their priorities, now or when the request's turn comes (see waiting_line.py); the answer is their keys.

    "again" means that the client lost the connection by which it had sent this request, and does not know whether it was carried out.
    """
    table = _samples(of.table)
    if isinstance(table, RecordTable):
        n = count_of(body, MAX_KEYS)
        samples, priorities = samples_of(table.records, n, bool(body.get("priorities")), blob)

        def rest(done: int) -> Any:
            return samples[done:]

    else:
        n = count_of(body, max_rows(table.spec))
        shapes = [(leaf.dtype, (n, *leaf.shape)) for leaf in table.spec.leaves]
        given = [(np.float64, (n,))] if body.get("priorities") else []
        arrays = split(blob, *given, *shapes)
        priorities = arrays.pop(0) if given else None
        unflatten = table.spec.flattener.unflatten

        def rest(done: int) -> Any:
            return unflatten([array[done:] for array in arrays])

    number = body.get("number")
    if body.get("again") and (done := of.carried_out.by(peer, number)):
        return {"carried_out": done}, b""
    return of.lines.ask(of.lines.inserts, peer, body, _Insert(of.carried_out, peer, number, table, n, rest, priorities))


class _Insert(Want):
    """Items that a client inserts. If there is room for some of them, the others go on waiting.

    Args:
        rest: returns the samples but for the first ones, whose number it is given.
    """

    def __init__(
        self, carried_out: CarriedOut, peer: Peer, number: object, table: ReplayTable, n: int, rest: Callable[[int], Any], priorities: np.ndarray | None
    ) -> None:
        self._carried_out, self._peer, self._number = carried_out, peer, number
        self._table, self._n, self._rest, self._priorities = table, n, rest, priorities
        self._keys: list[np.ndarray] = []
        self._done = 0

    def attempt(self) -> Answer | None:
        try:
            keys = self._table.submit_batch(self._rest(self._done), 0, None if self._priorities is None else self._priorities[self._done :])
        except EchoTimeoutError as error:
            if error.inserted:
                self._add(error.keys)
            return None
        except ClosedError as error:
            if error.inserted:
                self._add(error.keys)
            if not self._done:
                raise
            raise self._part(str(error)) from error
        self._add(keys)
        return {}, join(np.concatenate(self._keys))

    def why(self) -> str:
        return self._table.who_blocks_writers()

    def gave_up(self, why: str) -> Answer:
        if self._done:
            raise self._part(why)
        return super().gave_up(why)

    def _add(self, keys: np.ndarray) -> None:
        self._keys.append(keys)
        self._done += len(keys)
        self.begun = True
        self._carried_out.add(self._peer, self._number)

    def _part(self, why: str) -> EchoError:
        return EchoError(f"{self._done} of {self._n} items were inserted, then: {why}")


def peek(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    import optree

    table = _samples(of.table)
    if isinstance(table, RecordTable):
        return peek_records(table, server, peer, body, blob)
    n = count_of(body, max_rows(table.spec))
    batch, here = table.peek(split(blob, (np.uint64, (n,)))[0])
    return {}, pieces(here, *optree.tree_leaves(batch, namespace=table.spec.namespace))


def update_items(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    table = _samples(of.table)
    if isinstance(table, RecordTable):
        raise EchoError(f"table {table.name!r} stores samples of varying length, which cannot be overwritten in place: insert the changed sample")
    n = count_of(body, MAX_KEYS)
    known = {leaf.path: leaf for leaf in table.spec.leaves}
    paths = body.get("leaves")
    if not isinstance(paths, list) or not all(isinstance(path, str) and path in known for path in paths):
        raise EchoError(f"leaves must be paths of table {table.name!r}, which has {', '.join(map(repr, known))}")
    keys, *arrays = split(blob, (np.uint64, (n,)), *((known[path].dtype, (n, *known[path].shape)) for path in paths))
    return {}, join(table.update_items(keys, dict(zip(paths, arrays))))


def top(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    keys, priorities = of.table.top(count_of(body, MAX_KEYS))
    return {"n": len(keys)}, join(keys, priorities)


def priority_histogram(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, 1 << 14)
    counts, edges = of.table.priority_histogram(n)
    return {}, join(counts.astype(np.int64), edges.astype(np.float64))
