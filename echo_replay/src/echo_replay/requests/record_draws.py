"""Draws packed batches of samples of varying length for clients: first the keys and the lengths, then the packed leaves in parts."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from echo_core.base.errors import ClosedError, EchoError, EchoTimeoutError
from echo_core.server.operations.operation import count_of
from echo_core.wire.blobs import MAX_BYTES, MOST_BYTES, pieces

from ..tables.records.record_table import MOST_UNITS_ITEMS, RecordTable
from .waiting_line import Want

if TYPE_CHECKING:
    from echo_core.server.state import ServerState
    from echo_core.wire.later import Answer, Later
    from echo_core.wire.peer import Peer

    from .carried_out import CarriedOut
    from .table_state import TableState

__all__ = ["sample_records"]


def sample_records(of: TableState, table: RecordTable, server: ServerState, peer: Peer, body: dict[str, Any]) -> Answer | Later:
    """Draw `n` items, or by "units"; or return a part, `bytes` bytes from `start` on, of the packed leaves of a batch that was drawn before.

    The client chose the number of the batch, "batch". The answer to a draw holds the keys, the probabilities, the policy versions if the table
    keeps them, and the lengths, int32 of shape (n, axes). The packed leaves follow in the same message if they fit into it ("whole").
    """
    number, start = body.get("batch"), body.get("start", 0)
    if type(number) is not int or type(start) is not int or start < 0:
        raise EchoError(f"table {table.name!r} stores samples of varying length: a draw needs whole numbers as batch and start; update the client")
    if "bytes" in body:
        return _part(server, peer, number, start, body["bytes"])
    units = body.get("units")
    n = 1 if units is not None else count_of(body, MOST_UNITS_ITEMS)
    draw = _RecordDraw(of.carried_out, server, peer, body, table, n, units, number)
    if body.get("again") and (done := of.carried_out.by(peer, body.get("number"))):
        return {"carried_out": done}, b""
    return of.lines.ask(of.lines.draws, peer, body, draw)


class _RecordDraw(Want):
    """One packed batch that a client wants. It does not refer to the server, which can be dropped while this waits. A draw by units waits as one of
    a single item does, and then looks again until the items fill its budget."""

    def __init__(
        self, carried_out: CarriedOut, server: ServerState, peer: Peer, body: dict[str, Any], table: RecordTable, n: int, units: Any, batch: int
    ) -> None:
        self._server, self._carried_out = weakref.ref(server), carried_out
        self.n = n
        self._peer, self._table, self._units, self._batch = peer, table, units, batch
        self._beta, self._number = body.get("beta"), body.get("number")
        if self._beta is not None and type(self._beta) not in (int, float):
            raise EchoError(f"beta must be a number from 0 to 1, not {self._beta!r}")

    def attempt(self) -> Answer | None:
        server, peer, table = self._server(), self._peer, self._table
        if server is None:
            raise ClosedError("the server is gone")
        if table.max_times_sampled and table.lease_timeout is None and server.draining:  # see `_Draw`
            raise ClosedError("the server is draining")
        reserved = self._most_bytes()
        account = server.held.make_room(peer, reserved)  # before the draw, so that no item is drawn for which there is no memory
        kept = 0
        try:
            borrower = 0 if table.lease_timeout is None else id(peer)
            try:
                if self._units is None:
                    drawn: Any = table.draw(self.n, 0, self._beta, borrower)
                else:
                    drawn = table.draw_units(self._units, 0, self._beta, borrower)
            except EchoTimeoutError:
                return None
            if drawn is None:
                return {"closed": True}, b""
            if borrower and not server.has(peer):  # it has left, and its leased items were taken back before this batch was drawn
                table.take_back(borrower)
            if table.max_times_sampled and table.lease_timeout is None:
                self._carried_out.add(peer, self._number)
            figures, head, leaves = _described(table, drawn, self._beta)
            size = figures["bytes"]
            figures["whole"] = sum(map(len, head)) + size <= MAX_BYTES
            if figures["whole"]:
                return figures, [*head, *leaves]
            server.held.keep(peer, ("batch", self._batch), leaves, size)
            kept = size
            return figures, head
        finally:
            account.give(reserved - kept)

    def _most_bytes(self) -> int:
        """Bytes that the packed leaves of the batch cannot exceed."""
        records, units = self._table.records, self._units
        if units is None:
            most = self.n * records.max_record_bytes
        else:
            items = min(MOST_UNITS_ITEMS, self._table.capacity)
            budget = units if isinstance(units, dict) else {}
            most = items * records.fixed_bytes
            for axis, longest, row in zip(records.axes, records.most, records.row_bytes):
                rows = budget.get(axis)
                most += row * (min(max(rows, 0), items * longest) if type(rows) is int else items * longest)
        if most > MOST_BYTES:
            raise EchoError(f"table {self._table.name!r}: the batch could have {most:,} bytes, and a client is sent at most {MOST_BYTES:,} at once; draw fewer")
        return most

    def why(self) -> str:
        return self._table.who_blocks_learner(self.n)

    def check(self) -> None:
        self._table.can_ever(self.n)


def _described(table: RecordTable, drawn: Any, beta: float | None) -> tuple[dict[str, Any], list[memoryview], list[memoryview]]:
    """Information about a batch, the columns that come first, and its packed leaves."""
    info = drawn.info
    figures = {"store_size": info.store_size, "inserted": info.inserted, "sampled": info.sampled, "redrawn": info.redrawn}
    figures["beta"] = table.beta if beta is None else beta
    if info.mass is not None:
        figures["mass"] = info.mass
    columns = [drawn.keys, drawn.probabilities]
    if table.lags is not None:
        figures |= {"versions": True, "policy_version": info.policy_version, "lag_weight": table.lags.weight}
        columns.append(info.policy_versions)
    columns.append(np.stack([drawn.lengths[axis] for axis in table.records.axes], axis=1))
    leaves = pieces(*optree.tree_leaves(drawn.batch, namespace=table.records.namespace))
    figures |= {"items": len(drawn.keys), "bytes": sum(map(len, leaves))}
    return figures, pieces(*columns), leaves


def _part(server: ServerState, peer: Peer, number: int, start: int, size: Any) -> Answer:
    """A part of the packed leaves. The batch is dropped with its last part."""
    leaves = server.held.get(peer, ("batch", number))
    if leaves is None:
        return {"gone": True}, b""
    total = sum(map(len, leaves))
    if type(size) is not int or not 1 <= size <= min(MAX_BYTES, total - start):
        raise EchoError(f"a part of a batch of {total} bytes cannot have {size!r} from {start} on")
    if start + size == total:
        server.held.drop(peer, ("batch", number))
    found, at = [], 0
    for leaf in leaves:
        begin, end = max(start - at, 0), min(start + size - at, len(leaf))
        if begin < end:
            found.append(leaf[begin:end])
        at += len(leaf)
    return {}, found
