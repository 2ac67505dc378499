"""Looks up and inserts samples of varying length for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import EchoError, ProtocolError
from echo_core.server.operations.operation import count_of
from echo_core.spec.packed import PackedBatch, offsets_of
from echo_core.wire.blobs import MAX_BYTES, MAX_KEYS, MOST_BYTES, fill, pieces, split

if TYPE_CHECKING:
    from echo_core.server.state import ServerState
    from echo_core.spec.ragged import RaggedSpec
    from echo_core.wire.later import Answer
    from echo_core.wire.peer import Peer

    from ..tables.records.record_table import RecordTable

__all__ = ["peek_records", "samples_of"]


def peek_records(table: RecordTable, server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Items by key. The answer holds which keys are there (bool), and the lengths, int32 of shape (n, axes). The packed leaves follow in the same
    message if they fit into it ("whole"). Otherwise they are fetched in parts, as those of a drawn batch are: the client chose its number, "batch".
    """
    n, number = count_of(body, MAX_KEYS), body.get("batch")
    keys = split(blob, (np.uint64, (n,)))[0]
    if type(number) is not int:
        raise EchoError(f"table {table.name!r} stores samples of varying length: peek needs a whole number as batch; update the client")
    reserved = n * table.records.max_record_bytes
    if reserved > MOST_BYTES:
        raise EchoError(f"table {table.name!r}: {n} items could have {reserved:,} bytes, and a client is sent at most {MOST_BYTES:,} at once; ask for fewer")
    account = server.held.make_room(peer, reserved)
    kept = 0
    try:
        found, here = table.peek(keys)
        for leaf, array in zip(table.records.leaves, found.packed.arrays):
            if leaf.axis < 0:
                array[~here] = 0  # otherwise bytes of other batches would travel
        leaves = pieces(*found.packed.arrays)
        head = pieces(here, np.stack([found.lengths[axis] for axis in table.records.axes], axis=1))
        size = sum(map(len, leaves))
        figures = {"items": n, "bytes": size, "whole": sum(map(len, head)) + size <= MAX_BYTES}
        if figures["whole"]:
            return figures, [*head, *leaves]
        server.held.keep(peer, ("batch", number), leaves, size)
        kept = size
        return figures, head
    finally:
        account.give(reserved - kept)


def samples_of(records: RaggedSpec, n: int, priorities: bool, blob: bytes) -> tuple[list[Any], np.ndarray | None]:
    """The n samples of an insert, and their priorities. The blob has the priorities, the lengths, int32 of shape (n, axes), and the packed leaves.

    Raises:
        ProtocolError: the lengths are not possible, or the blob has not the bytes that they say. This is checked before anything is allocated.
    """
    shapes: list[tuple[Any, tuple[int, ...]]] = [(np.float64, (n,))] if priorities else []
    shapes.append((np.int32, (n, len(records.axes))))
    head = sum(np.dtype(dtype).itemsize * int(np.prod(shape)) for dtype, shape in shapes)
    if len(blob) < head:
        raise ProtocolError(f"an insert of {n} samples has {len(blob)} bytes, fewer than their lengths have")
    columns = split(memoryview(blob)[:head], *shapes)
    lengths = columns[-1]
    if ((lengths < 0) | (lengths > np.array(records.most))).any():
        raise ProtocolError(f"a sample of an insert has an impossible length; the axes {records.axes} have at most {records.most} rows")
    totals = lengths.sum(axis=0, dtype=np.int64).tolist()
    if max(totals) >= 1 << 31:
        raise ProtocolError(f"an insert of {n} samples has {max(totals)} rows, more than {(1 << 31) - 1}")
    size = n * records.fixed_bytes + sum(rows * each for rows, each in zip(totals, records.row_bytes))
    if len(blob) - head != size:
        raise ProtocolError(f"an insert of {n} samples has {len(blob) - head} bytes, and their lengths say {size}")
    arrays = [np.empty((n if leaf.axis < 0 else totals[leaf.axis], *leaf.shape), leaf.dtype) for leaf in records.leaves]
    fill(memoryview(blob)[head:], arrays)
    return list(PackedBatch(records, arrays, offsets_of(lengths))), columns[0] if priorities else None
