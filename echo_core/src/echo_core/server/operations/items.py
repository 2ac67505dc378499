"""Operations on the items of a replay table: they look up items by key, or insert new ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...base.errors import EchoError, EchoTimeoutError
from ...store.steps.step_table import StepTable
from ...wire.blobs import MAX_KEYS, join, max_rows, pieces, split
from .operation import Answer, count_of, table_of

if TYPE_CHECKING:
    from ...store.replay.replay_table import ReplayTable
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["ack", "delete", "insert", "peek", "priority_histogram", "top", "update_items", "update_priorities"]


def update_priorities(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    keys, priorities = split(blob, (np.uint64, (n,)), (np.float64, (n,)))
    return {"gone": table_of(server, body).update_priorities(keys, priorities)}, b""


def delete(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    return {"deleted": table_of(server, body).delete(split(blob, (np.uint64, (n,)))[0])}, b""


def ack(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = count_of(body, MAX_KEYS)
    return {"acknowledged": table_of(server, body).ack(split(blob, (np.uint64, (n,)))[0])}, b""


def _samples(server: ServerState, body: dict[str, Any]) -> ReplayTable:
    """The requested table, whose items must be samples themselves (not items over steps)."""
    table = table_of(server, body)
    if isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} stores steps; give the client Steps(example) and use send()")
    return table


def insert(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Insert items with their priorities without waiting; the answer is their keys."""
    table = _samples(server, body)
    n = count_of(body, max_rows(table.spec))
    shapes = [(leaf.dtype, (n, *leaf.shape)) for leaf in table.spec.leaves]
    given = [(np.float64, (n,))] if body.get("priorities") else []
    arrays = split(blob, *given, *shapes)
    priorities = arrays.pop(0) if given else None
    try:
        keys = table.submit_batch(table.spec.flattener.unflatten(arrays), 0, priorities)
    except EchoTimeoutError as error:
        if error.inserted:
            raise EchoError(f"{error.inserted} of {n} items were inserted, then: {error}") from error
        return {"wait": table.who_blocks_writers()}, b""
    return {}, join(keys)


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
