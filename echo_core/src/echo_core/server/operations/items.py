"""Operations on the items of a replay table: they look up items by key, or insert new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import ClosedError, EchoError, EchoTimeoutError
from ...store.steps.step_table import StepTable
from ...wire.blobs import MAX_KEYS, join, max_rows, pieces, split
from ..requests.waiting_line import Want
from .operation import count_of, table_of

if TYPE_CHECKING:
    from ...store.replay.replay_table import ReplayTable
    from ...wire.later import Answer, Later
    from ...wire.peer import Peer
    from ..requests.carried_out import CarriedOut
    from ..state import ServerState

__all__ = ["ack", "delete", "insert", "peek", "priority_histogram", "top", "update_items", "update_priorities"]


def update_priorities(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    keys, priorities = split(blob, (np.uint64, (n,)), (np.float64, (n,)))
    return {"gone": table_of(server, body).update_priorities(keys, priorities)}, b""


def delete(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    table, keys = table_of(server, body), split(blob, (np.uint64, (n,)))[0]
    return server._ended.once(peer, body, lambda: {"deleted": table.delete(keys)}), b""


def ack(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    table, keys = table_of(server, body), split(blob, (np.uint64, (n,)))[0]
    return server._ended.once(peer, body, lambda: {"acknowledged": table.ack(keys)}), b""


def _samples(server: ServerState, body: dict[str, Any]) -> ReplayTable:
    """The requested table, whose items must be samples themselves (not items over steps)."""
    table = table_of(server, body)
    if isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} stores steps; give the client Steps(example) and use send()")
    return table


def insert(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer | Later:
    """Insert items with their priorities, now or when the request's turn comes (see server/requests/waiting_line.py); the answer is their keys.

    "again" means that the client lost the connection by which it had sent this request, and does not know whether it was carried out.
    """
    table = _samples(server, body)
    n = count_of(body, max_rows(table.spec))
    shapes = [(leaf.dtype, (n, *leaf.shape)) for leaf in table.spec.leaves]
    given = [(np.float64, (n,))] if body.get("priorities") else []
    arrays = split(blob, *given, *shapes)
    priorities = arrays.pop(0) if given else None
    number = body.get("number")
    if body.get("again") and (done := server._carried_out.by(peer, number)):
        return {"carried_out": done}, b""
    lines = server._lines.of(table)
    return lines.ask(lines.inserts, peer, body, _Insert(server._carried_out, peer, number, table, n, arrays, priorities))


class _Insert(Want):
    """Items that a client inserts. If there is room for some of them, the others go on waiting."""

    def __init__(
        self, carried_out: CarriedOut, peer: Peer, number: object, table: ReplayTable, n: int, arrays: list[np.ndarray], priorities: np.ndarray | None
    ) -> None:
        self._carried_out, self._peer, self._number = carried_out, peer, number
        self._table, self._n, self._arrays, self._priorities = table, n, arrays, priorities
        self._keys: list[np.ndarray] = []
        self._done = 0

    def attempt(self) -> Answer | None:
        samples = self._table.spec.flattener.unflatten([array[self._done :] for array in self._arrays])
        try:
            keys = self._table.submit_batch(samples, 0, None if self._priorities is None else self._priorities[self._done :])
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


def peek(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    import optree

    table = _samples(server, body)
    n = count_of(body, max_rows(table.spec))
    batch, here = table.peek(split(blob, (np.uint64, (n,)))[0])
    return {}, pieces(here, *optree.tree_leaves(batch, namespace=table.spec.namespace))


def update_items(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    table = _samples(server, body)
    n = count_of(body, MAX_KEYS)
    known = {leaf.path: leaf for leaf in table.spec.leaves}
    paths = body.get("leaves")
    if not isinstance(paths, list) or not all(isinstance(path, str) and path in known for path in paths):
        raise EchoError(f"leaves must be paths of table {table.name!r}, which has {', '.join(map(repr, known))}")
    keys, *arrays = split(blob, (np.uint64, (n,)), *((known[path].dtype, (n, *known[path].shape)) for path in paths))
    return {}, join(table.update_items(keys, dict(zip(paths, arrays))))


def top(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    keys, priorities = table_of(server, body).top(count_of(body, MAX_KEYS))
    return {"n": len(keys)}, join(keys, priorities)


def priority_histogram(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, 1 << 14)
    counts, edges = table_of(server, body).priority_histogram(n)
    return {}, join(counts.astype(np.int64), edges.astype(np.float64))
