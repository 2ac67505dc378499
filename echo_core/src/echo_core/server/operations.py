"""What clients may ask a server by `request()`: statistics, and the operations of replay tables.

A request and its answer carry JSON and raw bytes, 1 MiB together, over every transport. Arrays travel as their bytes, little-endian and one
after another: for a table operation first `n` keys (u64), then what belongs to them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import __version__
from ..base.errors import EchoError, EchoTimeoutError, ProtocolError
from ..security.tokens import needs
from ..store.steps.step_table import StepTable
from ..wire.protocol import MAX_CONTROL_BYTES
from .large_draws import MOST_BYTES
from .tap import answer as _tap

if TYPE_CHECKING:
    from ..spec.spec import Spec
    from ..store.replay.replay_table import ReplayTable
    from ..store.steps.step_layout import StepSample
    from ..wire.protocol import Blob, Buffer
    from ..wire.transport import Peer
    from .server import Server

__all__ = ["MAX_KEYS", "OPERATIONS", "Answer", "Operation", "fill", "join", "max_rows", "pieces", "split"]

Answer = tuple[dict[str, Any], "Blob"]
Operation = Callable[["Server", "Peer", dict[str, Any], bytes], Answer]

ROOM = 4096  # bytes of a message that are left for its JSON
MAX_BYTES = MAX_CONTROL_BYTES - ROOM
MAX_KEYS = MAX_BYTES // 16  # keys with their priorities in one message
DRAWN = 24  # bytes of an item's key (u64), probability (f64) and policy version (u64)


def max_rows(spec: Spec) -> int:
    """The most items that fit into one answer."""
    return MAX_BYTES // max(1, spec.sample_bytes + DRAWN)


def split(blob: Buffer, *parts: tuple[Any, tuple[int, ...]]) -> list[np.ndarray]:
    """`blob` as arrays of these dtypes and shapes, which must fill it exactly; they are copies, and writable.

    Raises:
        ProtocolError: it has another length.
    """
    # Before anything is allocated: the shapes are what the other end says.
    _check_length(blob, sum(np.dtype(dtype).itemsize * math.prod(shape) for dtype, shape in parts))
    arrays = [np.empty(shape, dtype) for dtype, shape in parts]
    fill(blob, arrays)
    return arrays


def _check_length(blob: Buffer, wanted: int) -> None:
    if wanted != len(blob):
        raise ProtocolError(f"a message of {len(blob)} bytes where {wanted} belong; install the same echo-core at both ends")


def fill(blob: Buffer, arrays: Sequence[np.ndarray]) -> None:
    """Copy `blob` into contiguous arrays, one after another, which it must fill exactly.

    Raises:
        ProtocolError: it has another length; nothing was copied.
    """
    _check_length(blob, sum(array.nbytes for array in arrays))
    at = 0
    for array in arrays:
        if array.nbytes:
            _bytes_of(array)[:] = np.frombuffer(blob, np.uint8, array.nbytes, at)
        at += array.nbytes


def pieces(*arrays: np.ndarray) -> list[memoryview]:
    """The bytes of arrays, to be sent one after another; contiguous ones are not copied."""
    return [_bytes_of(np.ascontiguousarray(array)).data for array in arrays if array.size]


def join(*arrays: np.ndarray) -> bytes:
    """The bytes of arrays, one after another, copied once."""
    return b"".join(pieces(*arrays))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """A view of a contiguous array that is not empty."""
    return array.reshape(-1).view(np.uint8)


def _table(server: Server, body: dict[str, Any]) -> ReplayTable:
    name = body.get("table")
    if name is not None and not isinstance(name, str):
        raise ProtocolError("a table's name must be text")
    return server.table(name)


def _count(body: dict[str, Any], most: int) -> int:
    n = body.get("n")
    if type(n) is not int or not 1 <= n <= most:
        raise EchoError(f"n must be a whole number from 1 to {most}, not {n!r}")
    return n


def _of_clients(operation: Operation) -> Operation:
    """Values that a client got wrong are its error, told to it; the learner's log is for the learner's."""

    def checked(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
        try:
            return operation(server, peer, body, blob)
        except ValueError as error:
            raise error if isinstance(error, EchoError) else EchoError(str(error)) from error

    return checked


def _update_priorities(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = _count(body, MAX_KEYS)
    keys, priorities = split(blob, (np.uint64, (n,)), (np.float64, (n,)))
    return {"gone": _table(server, body).update_priorities(keys, priorities)}, b""


def _delete(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = _count(body, MAX_KEYS)
    return {"deleted": _table(server, body).delete(split(blob, (np.uint64, (n,)))[0])}, b""


def _ack(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = _count(body, MAX_KEYS)
    return {"acknowledged": _table(server, body).ack(split(blob, (np.uint64, (n,)))[0])}, b""


def _sample(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """One batch, if there is one now: a server answers requests one after another, and must not wait in one.

    One that is larger than a message has a number, which the client chose, and is fetched in parts; the first draws all of it.
    """
    table = _table(server, body)
    layout = table.layout if isinstance(table, StepTable) else None
    keys_only = layout is not None and body.get("keys_only") is True
    fit = max_rows(table.spec) if layout is None else MAX_KEYS if keys_only else MAX_BYTES // (layout.item_bytes + DRAWN)
    if "batch" not in body:
        figures, columns = _drawn(server, peer, table, _count(body, fit), body, keys_only)
        return figures, pieces(*columns)
    n = _count(body, fit * (MOST_BYTES // MAX_BYTES))
    number, start, rows = (body.get(name) for name in ("batch", "start", "rows"))
    if type(number) is not int or type(start) is not int or type(rows) is not int or not (0 <= start < n and 1 <= rows <= min(fit, n - start)):
        raise EchoError(f"a part of a batch of {n} needs whole numbers as batch, start and rows, and at most {fit} rows")
    if start == 0:
        figures, columns = _drawn(server, peer, table, n, body, keys_only)
        if not columns:
            return figures, b""
        server._held.put(id(peer), number, figures, columns)
        if not server.has(peer):
            server._held.forget(id(peer))
            return {"gone": True}, b""
    part = server._held.part(id(peer), number, start, rows)
    return ({"gone": True}, b"") if part is None else (part[0], pieces(*part[1]))


def _drawn(
    server: Server, peer: Peer, table: ReplayTable, n: int, body: dict[str, Any], keys_only: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """A batch: figures about it, and its columns; none where there is no batch now."""
    import optree

    beta = body.get("beta")
    if beta is not None and type(beta) not in (int, float):
        raise EchoError(f"beta must be a number from 0 to 1, not {beta!r}")
    borrower = 0 if table.lease_timeout is None else id(peer)
    try:
        sample = table.draw(n, 0, beta, borrower)
    except EchoTimeoutError:
        return {"wait": table.who_blocks_learner(n)}, []
    if sample is None:
        return {"closed": True}, []
    if borrower and not server.has(peer):  # it left meanwhile, and what it had was taken back before this batch was drawn
        table.take_back(borrower)
    if keys_only:
        leaves = []
    elif isinstance(table, StepTable):
        leaves = table.layout.to_leaves(cast("StepSample", sample))
    else:
        leaves = optree.tree_leaves(sample.batch, namespace=table.spec.namespace)
    info = sample.info
    figures = {"store_size": info.store_size, "inserted": info.inserted, "sampled": info.sampled, "redrawn": info.redrawn}
    figures["beta"] = table.beta if beta is None else beta
    columns = [sample.keys, sample.probabilities, *leaves]
    if table.lags is not None:
        figures |= {"versions": True, "policy_version": info.policy_version, "lag_weight": table.lags.weight}
        columns.append(info.policy_versions)
    return figures, columns


def _item(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Part of one leaf of an item over steps that is larger than a message: `n` bytes from `start` on."""
    table = _table(server, body)
    n = _count(body, MAX_BYTES)
    key, leaf, start = (body.get(name) for name in ("key", "leaf", "start"))
    if not isinstance(table, StepTable) or type(key) is not int or type(leaf) is not int or type(start) is not int:
        raise EchoError("item needs a table of steps, and whole numbers as key, leaf and start")
    if not (0 <= key < 1 << 64 and 0 <= leaf < len(table.layout.leaves) and 0 <= start <= table.layout.leaves[leaf].nbytes - n):
        raise EchoError(f"no {n} bytes from {start} on of leaf {leaf} of an item {key}")
    sample, here = table.peek(np.array([key], np.uint64))
    if not here[0]:
        return {"gone": True}, b""
    data = np.ascontiguousarray(table.layout.to_leaves(sample)[leaf]).reshape(-1).view(np.uint8)
    return {}, data[start : start + n].tobytes()


def _layout(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """What the items of a table of steps are."""
    table = _table(server, body)
    if not isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} is none of steps; give the client the example itself, not Steps(example)")
    return table.layout.to_json(), b""


def _samples(server: Server, body: dict[str, Any]) -> ReplayTable:
    """A table whose items are samples themselves."""
    table = _table(server, body)
    if isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} takes steps: give the client Steps(example) and use send()")
    return table


def _insert(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Items with their priorities, now; the answer is their keys."""
    table = _samples(server, body)
    n = _count(body, max_rows(table.spec))
    shapes = [(leaf.dtype, (n, *leaf.shape)) for leaf in table.spec.leaves]
    given = [(np.float64, (n,))] if body.get("priorities") else []
    arrays = split(blob, *given, *shapes)
    priorities = arrays.pop(0) if given else None
    try:
        keys = table.submit_batch(table.spec.flattener.unflatten(arrays), 0, priorities)
    except EchoTimeoutError as error:
        if error.inserted:
            raise EchoError(f"{error.inserted} of {n} were inserted, then: {error}") from error
        return {"wait": table.who_blocks_writers()}, b""
    return {}, join(keys)


def _peek(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    import optree

    table = _samples(server, body)
    n = _count(body, max_rows(table.spec))
    batch, here = table.peek(split(blob, (np.uint64, (n,)))[0])
    return {}, pieces(here, *optree.tree_leaves(batch, namespace=table.spec.namespace))


def _update_items(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    table = _samples(server, body)
    n = _count(body, MAX_KEYS)
    known = {leaf.path: leaf for leaf in table.spec.leaves}
    paths = body.get("leaves")
    if not isinstance(paths, list) or not all(isinstance(path, str) and path in known for path in paths):
        raise EchoError(f"leaves must be paths of table {table.name!r}, which has {', '.join(map(repr, known))}")
    keys, *arrays = split(blob, (np.uint64, (n,)), *((known[path].dtype, (n, *known[path].shape)) for path in paths))
    return {}, join(table.update_items(keys, dict(zip(paths, arrays))))


def _top(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    keys, priorities = _table(server, body).top(_count(body, MAX_KEYS))
    return {"n": len(keys)}, join(keys, priorities)


def _priority_histogram(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    n = _count(body, 1 << 14)
    counts, edges = _table(server, body).priority_histogram(n)
    return {}, join(counts.astype(np.int64), edges.astype(np.float64))


def _specs(server: Server, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    return {name: table.spec.to_json() for name, table in server.tables.items()}, b""


OPERATIONS: Mapping[str, Operation] = {
    "stats": needs("write", "read")(lambda server, peer, body, blob: (server.stats(), b"")),
    "ping": needs("write", "read")(lambda server, peer, body, blob: ({"time": time.time(), "version": __version__}, blob)),
    "tables": needs("write", "read")(_specs),
    "update_priorities": needs("read")(_of_clients(_update_priorities)),
    "delete": needs("admin")(_of_clients(_delete)),
    "sample": needs("read")(_of_clients(_sample)),
    "layout": needs("write", "read")(_of_clients(_layout)),
    "item": needs("read")(_of_clients(_item)),
    "peek": needs("read")(_of_clients(_peek)),
    "update_items": needs("read")(_of_clients(_update_items)),
    "top": needs("read")(_of_clients(_top)),
    "priority_histogram": needs("read")(_of_clients(_priority_histogram)),
    "ack": needs("read")(_of_clients(_ack)),
    "insert": needs("write")(_of_clients(_insert)),
    "tap": needs("read")(_tap),
}
