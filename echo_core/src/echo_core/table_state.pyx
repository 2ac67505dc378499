# cython: language_level=3, boundscheck=False, wraparound=False
"""The state of a replay table, for checkpoints: taken at one moment, and put into a new table."""
import numpy as np

from libc.stdint cimport uint8_t, uint32_t
from libc.string cimport memcpy

from echo_core.keyed_table cimport KeyedTable


def snapshot(KeyedTable table not None, most=64 << 20) -> dict:
    """The table at one moment: writers wait only while this is copied.

    Args:
        most: bytes of items that are copied with it; a larger table's are not, and its writers do not wait for them.

    Returns:
        `batch`: the items as a pytree, oldest first, or None;
        figures `inserts`, `samples`, `random` (the generator's state); arrays `keys` and `rows` of the items, oldest first,
        `generations`, `high` and `times` of every row; `sampler` and `remover`: their states.
    """
    cdef size_t capacity = table.opened().capacity()
    cdef uint32_t[::1] g, h, t
    arrays = [np.empty(capacity, np.uint32) for _ in range(3)]
    g, h, t = arrays
    with table.lock:
        with nogil:
            table.table.pause()
        try:
            if table.told is not None:
                table.told.catch_up()
            table.table.columns(&g[0], &h[0], &t[0])
            keys, rows, _ = table._items(False)
            counters = table.counters()
            batch = table.peek(keys)[0] if 0 < len(keys) * table.sample_bytes <= most else None
            return {
                "batch": batch,
                "inserts": counters["inserts"], "samples": counters["samples"], "random": table.rng.bit_generator.state,
                "keys": keys.copy(), "rows": rows.copy(), "generations": arrays[0], "high": arrays[1], "times": arrays[2],
                "sampler": table.sampler.state(),
                "remover": {} if table.remover is None or table.remover is table.sampler else table.remover.state(),
            }
        finally:
            table.table.resume()


def restore(KeyedTable table not None, snapshot, leaves, gone) -> None:
    """Become what `snapshot()` told of; only of a new table.

    Args:
        leaves: for each leaf the items' bytes, shape `(n, *leaf.shape)`, in the snapshot's order without `gone`.
        gone: rows whose items were overwritten before their bytes were copied.
    """
    cdef uint32_t[::1] r, g, h, t
    cdef const uint8_t[::1] data
    cdef size_t i, n, size
    cdef uint32_t leaf
    if table.opened().counters().inserts:
        raise ValueError(f"table {table.name!r} was written to already; restore into a new one")
    rows = np.ascontiguousarray(snapshot["rows"][~np.isin(snapshot["rows"], gone)], np.uint32)
    columns = [np.ascontiguousarray(snapshot[name], np.uint32) for name in ("generations", "high", "times")]
    g, h, t = columns
    n = rows.size
    r = rows if n else np.zeros(1, np.uint32)
    with table.lock:
        with nogil:
            table.table.pause()
        try:
            for leaf in range(table.leaves):
                size = table.table.leaf_bytes(leaf)
                if size == 0 or n == 0:
                    continue
                data = leaves[leaf].reshape(-1).view(np.uint8)
                for i in range(n):
                    memcpy(table.table.rows().at(leaf, r[i]), &data[i * size], size)
            table.sampler.restore(snapshot["sampler"])
            if len(gone):
                table.sampler.delete(gone.astype(np.uint64))
            if table.remover is not None and table.remover is not table.sampler:
                table.remover.restore(snapshot["remover"])
                if len(gone):
                    table.remover.delete(gone.astype(np.uint64))
            table.rng.bit_generator.state = snapshot["random"]
            table.table.restore(&r[0], <uint32_t>n, &g[0], &h[0], &t[0], snapshot["inserts"], snapshot["samples"])
        finally:
            table.table.resume()
