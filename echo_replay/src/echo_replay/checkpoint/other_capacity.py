"""Fits the snapshot of a table into one of another capacity. Tables of samples of varying length can be restored so; their bytes have room of their own.

An item keeps its row if the new table has it, and with it its key. The others get free rows. They get new keys, too, because a row's number is a
part of its key; so does every item if the keys of the two tables have different forms (generations.hpp).
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core.base.errors import CheckpointError

if TYPE_CHECKING:
    from ..tables.replay_table import ReplayTable

__all__ = ["fitted"]

SHORT_KEYS = 1 << 16  # a table of so many rows or fewer uses 16 bits of a key for the row, and a larger one 32 bits
NOWHERE = np.uint64(0xFFFF_FFFF)
OF_ROWS = ("generations", "high", "times", "versions")


def fitted(table: ReplayTable, snapshot: dict[str, Any], stored: np.ndarray, saved: int) -> tuple[dict[str, Any], np.ndarray]:
    """The snapshot and the rows `stored` of a table of `saved` rows, as they are in `table`. They were checked.

    Raises:
        CheckpointError: there are more items than the table may have. ValueError: a sampler cannot move its state to other rows.
    """
    capacity, rows = table.capacity, snapshot["rows"]
    if len(rows) > capacity:
        raise CheckpointError(f"table {table.name!r}: the checkpoint has {len(rows):,} items, and the capacity is {capacity:,}; raise it")
    stays = rows < capacity
    place = np.full(saved, NOWHERE, np.uint64)
    place[rows[stays]] = rows[stays]
    if not stays.all():
        free = np.ones(capacity, np.bool_)
        free[rows[stays]] = False
        place[rows[~stays]] = np.flatnonzero(free)[: int((~stays).sum())]
    moved = dict(snapshot)
    moved["rows"], moved["loaned"] = (place[snapshot[name]].astype(np.uint32) for name in ("rows", "loaned"))
    for name in OF_ROWS:
        moved[name] = np.zeros(capacity, snapshot[name].dtype)
        moved[name][moved["rows"]] = snapshot[name][rows]
    renamed = moved["rows"] if (saved <= SHORT_KEYS) != (capacity <= SHORT_KEYS) else moved["rows"][~stays]
    # Random as those with which a table begins, so that no key that somebody still has names another item than it did.
    moved["generations"][renamed] = [secrets.randbits(31) & ~1 for _ in renamed]
    moved["high"][renamed] = [secrets.randbits(16) for _ in renamed]
    if capacity < saved:
        moved["sampler"] = table.sampler.moved(snapshot["sampler"], place)
        if table.remover is not None and table.remover is not table.sampler:
            moved["remover"] = table.remover.moved(snapshot["remover"], place)
    return moved, place[stored].astype(np.uint32)
