"""Operations that draw batches from replay tables, or fetch items of tables of steps that are larger than a message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...base.errors import EchoError, EchoTimeoutError
from ...store.steps.step_table import StepTable
from ...wire.blobs import DRAWN, MAX_BYTES, MAX_KEYS, MOST_BYTES, pieces
from .operation import Answer, count_of, table_of

if TYPE_CHECKING:
    from ...store.replay.replay_table import ReplayTable
    from ...store.steps.step_layout import StepSample
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["item", "layout", "sample"]


def sample(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Draw one batch if that is possible now. A server answers requests one after another, so an operation must not wait.

    A batch that is larger than a message has a number, which the client chose, and is fetched in parts. The first request draws all of it.
    """
    table = table_of(server, body)
    layout = table.layout if isinstance(table, StepTable) else None
    keys_only = layout is not None and body.get("keys_only") is True
    row = DRAWN if keys_only else DRAWN + (table.spec.sample_bytes if layout is None else layout.item_bytes)
    fit = MAX_KEYS if keys_only else max(1, MAX_BYTES // row)
    if "batch" not in body:
        n = count_of(body, fit if row <= MAX_BYTES else max(1, MOST_BYTES // row))
        account = server._held.make_room(peer, n * row)  # before it is drawn, as memory is allocated for it then
        try:
            figures, columns = _drawn(server, peer, table, n, body, keys_only)
        finally:
            account.give(n * row)
        return figures, pieces(*columns)
    n = count_of(body, max(1, fit * (MOST_BYTES // MAX_BYTES)))
    number, start, rows = (body.get(name) for name in ("batch", "start", "rows"))
    if type(number) is not int or type(start) is not int or type(rows) is not int or not (0 <= start < n and 1 <= rows <= min(fit, n - start)):
        raise EchoError(f"a part of a batch of {n} needs whole numbers as batch, start and rows, and rows of at most {fit}")
    if start == 0:
        account = server._held.make_room(peer, n * row)
        columns = []
        try:
            figures, columns = _drawn(server, peer, table, n, body, keys_only)
        finally:
            if not columns:
                account.give(n * row)
        if not columns:
            return figures, b""
        server._held.keep(peer, ("batch", number), (figures, columns), n * row)
    held = server._held.get(peer, ("batch", number))
    if held is None:
        return {"gone": True}, b""
    figures, columns = held
    if start + rows >= len(columns[0]):
        server._held.drop(peer, ("batch", number))
    return figures, pieces(*(column[start : start + rows] for column in columns))


def _drawn(
    server: ServerState, peer: Peer, table: ReplayTable, n: int, body: dict[str, Any], keys_only: bool
) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Draw a batch: information about it, and its columns; no columns if no batch can be drawn now."""
    import optree

    beta = body.get("beta")
    if beta is not None and type(beta) not in (int, float):
        raise EchoError(f"beta must be a number from 0 to 1, not {beta!r}")
    borrower = 0 if table.lease_timeout is None else id(peer)
    try:
        drawn = table.draw(n, 0, beta, borrower)
    except EchoTimeoutError:
        return {"wait": table.who_blocks_learner(n)}, []
    if drawn is None:
        return {"closed": True}, []
    if borrower and not server.has(peer):  # it has left, and its leased items were taken back before this batch was drawn
        table.take_back(borrower)
    if keys_only:
        leaves = []
    elif isinstance(table, StepTable):
        leaves = table.layout.to_leaves(cast("StepSample", drawn))
    else:
        leaves = optree.tree_leaves(drawn.batch, namespace=table.spec.namespace)
    info = drawn.info
    figures = {"store_size": info.store_size, "inserted": info.inserted, "sampled": info.sampled, "redrawn": info.redrawn}
    figures["beta"] = table.beta if beta is None else beta
    columns = [drawn.keys, drawn.probabilities, *leaves]
    if table.lags is not None:
        figures |= {"versions": True, "policy_version": info.policy_version, "lag_weight": table.lags.weight}
        columns.append(info.policy_versions)
    return figures, columns


def item(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """A part (`n` bytes from `start` on) of one leaf of an item over steps that is larger than a message."""
    table = table_of(server, body)
    n = count_of(body, MAX_BYTES)
    key, leaf, start = (body.get(name) for name in ("key", "leaf", "start"))
    if not isinstance(table, StepTable) or type(key) is not int or type(leaf) is not int or type(start) is not int:
        raise EchoError("item needs a table of steps, and whole numbers as key, leaf and start")
    if not (0 <= key < 1 << 64 and 0 <= leaf < len(table.layout.leaves) and 0 <= start <= table.layout.leaves[leaf].nbytes - n):
        raise EchoError(f"leaf {leaf} of item {key} does not have {n} bytes from {start} on")
    sample, here = table.peek(np.array([key], np.uint64))
    if not here[0]:
        return {"gone": True}, b""
    data = np.ascontiguousarray(table.layout.to_leaves(sample)[leaf]).reshape(-1).view(np.uint8)
    return {}, data[start : start + n].tobytes()


def layout(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Describe the items of a table of steps."""
    table = table_of(server, body)
    if not isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} does not store steps; give the client the example itself, not Steps(example)")
    return table.layout.to_json(), b""
