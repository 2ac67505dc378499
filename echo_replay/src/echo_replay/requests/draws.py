"""Operations that draw batches from replay tables, or fetch items of tables of steps that are larger than a message."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from echo_core.base.errors import ClosedError, EchoError, EchoTimeoutError
from echo_core.server.operations.operation import count_of
from echo_core.wire.blobs import DRAWN, MAX_BYTES, MAX_KEYS, MOST_BYTES, pieces

from ..steps.step_table import StepTable
from ..tables.records.record_table import RecordTable
from .record_draws import sample_records
from .waiting_line import Want

if TYPE_CHECKING:
    from echo_core.server.state import ServerState
    from echo_core.wire.later import Answer, Later
    from echo_core.wire.peer import Peer

    from ..steps.step_layout import StepSample
    from ..tables.replay_table import ReplayTable
    from .carried_out import CarriedOut
    from .table_state import TableState

__all__ = ["item", "layout", "sample", "withdraw"]


def sample(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer | Later:
    """Draw one batch, now or when the request's turn comes; see waiting_line.py. With "patience" it waits for so many seconds at most.

    A batch that is larger than a message has a number, "batch", which the client chose, and is fetched in parts. The first request draws all of
    it; the others do not wait. "again" means that the client lost the connection by which it had sent this request.
    """
    table = of.table
    if isinstance(table, RecordTable):
        return sample_records(of, table, server, peer, body)
    layout = table.layout if isinstance(table, StepTable) else None
    keys_only = layout is not None and body.get("keys_only") is True
    row = DRAWN if keys_only else DRAWN + (table.spec.sample_bytes if layout is None else layout.item_bytes)
    fit = MAX_KEYS if keys_only else max(1, MAX_BYTES // row)
    beta = body.get("beta")
    if beta is not None and type(beta) not in (int, float):
        raise EchoError(f"beta must be a number from 0 to 1, not {beta!r}")
    if "batch" not in body:
        n = count_of(body, fit if row <= MAX_BYTES else max(1, MOST_BYTES // row))
        draw = _Draw(of.carried_out, server, peer, body, table, n, row, keys_only)
    else:
        n = count_of(body, max(1, fit * (MOST_BYTES // MAX_BYTES)))
        number, start, rows = (body.get(name) for name in ("batch", "start", "rows"))
        if type(number) is not int or type(start) is not int or type(rows) is not int or not (0 <= start < n and 1 <= rows <= min(fit, n - start)):
            raise EchoError(f"a part of a batch of {n} needs whole numbers as batch, start and rows, and rows of at most {fit}")
        if start:
            return _part(server, peer, number, start, rows)
        draw = _Draw(of.carried_out, server, peer, body, table, n, row, keys_only, number, rows)
    if body.get("again") and (done := of.carried_out.by(peer, body.get("number"))):
        return {"carried_out": done}, b""
    return of.lines.ask(of.lines.draws, peer, body, draw)


class _Draw(Want):
    """One batch that a client wants. It does not refer to the server, which can be dropped while this waits.

    Args:
        row: bytes of an item and of what is told about it.
        batch, rows: of a batch that is fetched in parts, its number and the items in the first part.
    """

    def __init__(
        self,
        carried_out: CarriedOut,
        server: ServerState,
        peer: Peer,
        body: dict[str, Any],
        table: ReplayTable,
        n: int,
        row: int,
        keys_only: bool,
        batch: int | None = None,
        rows: int = 0,
    ) -> None:
        self._server, self._carried_out = weakref.ref(server), carried_out
        self.n = n
        self._peer, self._table, self._row, self._keys_only = peer, table, row, keys_only
        self._beta, self._number = body.get("beta"), body.get("number")
        self._batch, self._rows = batch, rows
        self._spends = bool(table.max_times_sampled) and table.lease_timeout is None  # items that it draws may be gone then

    def attempt(self) -> Answer | None:
        """The batch, or the first part of it; None if it cannot be drawn now."""
        server, peer, size = self._server(), self._peer, self.n * self._row
        if server is None:
            raise ClosedError("the server is gone")
        if self._spends and server.draining:  # the answer could come behind the goodbye, and its items would be lost
            raise ClosedError("the server is draining")
        account = server.held.make_room(peer, size)  # before it is drawn, as memory is allocated for it then
        kept = False
        try:
            drawn = _drawn(server, peer, self._table, self.n, self._beta, self._keys_only)
            if drawn is None:
                return None
            figures, columns = drawn
            kept = self._batch is not None and bool(columns)
        finally:
            if not kept:
                account.give(size)
        if self._spends and columns:
            self._carried_out.add(peer, self._number)
        if not kept:
            return figures, pieces(*columns) if columns else b""
        assert self._batch is not None
        server.held.keep(peer, ("batch", self._batch), drawn, size)
        return _part(server, peer, self._batch, 0, self._rows)

    def why(self) -> str:
        return self._table.who_blocks_learner(self.n)

    def check(self) -> None:
        self._table.can_ever(self.n)


def _part(server: ServerState, peer: Peer, number: int, start: int, rows: int) -> Answer:
    """A part of a batch that was drawn before. The batch is dropped with its last part."""
    held = server.held.get(peer, ("batch", number))
    if held is None:
        return {"gone": True}, b""
    figures, columns = held
    if start + rows >= len(columns[0]):
        server.held.drop(peer, ("batch", number))
    return figures, pieces(*(column[start : start + rows] for column in columns))


def _drawn(
    server: ServerState, peer: Peer, table: ReplayTable, n: int, beta: float | None, keys_only: bool
) -> tuple[dict[str, Any], list[np.ndarray]] | None:
    """Draw a batch: information about it, and its columns, none if the server is closed. None if no batch can be drawn now."""
    import optree

    borrower = 0 if table.lease_timeout is None else id(peer)
    try:
        drawn = table.draw(n, 0, beta, borrower)
    except EchoTimeoutError:
        return None
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
    if info.mass is not None:
        figures["mass"] = info.mass
    columns = [drawn.keys, drawn.probabilities, *leaves]
    if table.lags is not None:
        figures |= {"versions": True, "policy_version": info.policy_version, "lag_weight": table.lags.weight}
        columns.append(info.policy_versions)
    return figures, columns


def withdraw(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """The client does not wait any more for the request with this number, a draw or an insert."""
    return {"withdrawn": of.lines.withdraw(peer, body.get("number"))}, b""


def item(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """A part (`n` bytes from `start` on) of one leaf of an item over steps that is larger than a message."""
    table = of.table
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


def layout(of: TableState, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Describe the items of a table of steps."""
    table = of.table
    if not isinstance(table, StepTable):
        raise EchoError(f"table {table.name!r} does not store steps; give the client the example itself, not Steps(example)")
    return table.layout.to_json(), b""
