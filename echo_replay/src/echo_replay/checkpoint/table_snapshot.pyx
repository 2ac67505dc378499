# cython: language_level=3, boundscheck=False, wraparound=False
"""The state of a replay table, for checkpoints: it is copied as of one moment, and put into a new table.

`snapshot` pauses the table while its index, priorities and counts are copied. `copies` then yields the items' bytes while others write. If a
writer is about to change a row that has not been copied yet, it puts the row's bytes aside first, so that all bytes are those of that moment.
`end_copies` must be called in any case: writers wait if nobody takes what they put aside.
"""
import time

import numpy as np
import optree

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from echo_replay.tables.replay_info cimport ReplayLease, replay_lease
from echo_replay.tables.keyed_table cimport KeyedTable
from echo_core.spec.pytree.flattener cimport Flattener
from echo_replay.tables.table cimport Batch, Bytes


def snapshot(KeyedTable table not None) -> dict:
    """Return the table at one moment, without its items' bytes. `copies` has to follow, and `end_copies` in any case unless this raises.

    Returns:
        The figures `inserts`, `samples`, `policy_version`, `random` (the generator's state) and `paused` (the longest time in seconds that
        writers waited); the arrays `keys` and `rows` of the items, oldest first, `loaned` (the rows that a learner has not acknowledged), and
        `generations`, `high`, `times` and `versions` of every row; and the states of `sampler` and `remover`.
    """
    cdef size_t capacity = table.opened().capacity()
    cdef uint32_t[::1] g, h, t, r
    cdef uint64_t[::1] v
    arrays = [np.empty(capacity, np.uint32) for _ in range(3)]
    versions = np.empty(capacity, np.uint64)
    g, h, t = arrays
    v = versions
    begun = False
    with table.lock:
        began = time.perf_counter()
        with nogil:
            table.table.pause()
        try:
            if table.python_sampler is not None:
                table.python_sampler.catch_up()
            table.table.columns(&g[0], &h[0], &t[0], &v[0])
            keys, rows, _ = table._items(False)
            loaned = np.array(table.table.unacknowledged(), np.uint32)
            rows = np.concatenate([loaned, rows])
            r = rows
            table.table.begin_copy(&r[0] if rows.size else NULL, rows.size)
            begun = True
            counters = table.table.counters()
            return {
                # Unacknowledged items are given out again after a restart, so they do not count as sampled here.
                "inserts": counters.inserts, "samples": counters.samples - counters.on_loan, "policy_version": counters.policy_version,
                "random": table.rng.bit_generator.state,
                "keys": keys.copy(), "rows": rows, "loaned": loaned,
                "generations": arrays[0], "high": arrays[1], "times": arrays[2], "versions": versions,
                "sampler": table.sampler.state(), "below": table.below(rows),
                "remover": {} if table.remover is None or table.remover is table.sampler else table.remover.state(),
                "paused": time.perf_counter() - began,
            }
        except BaseException:
            if begun:
                table.table.end_copy()
            raise
        finally:
            table.table.resume()


def copies(KeyedTable table not None, rows, size_t step):
    """Yield the bytes of the snapshot's `rows`, not in their order: `(rows, leaves)` of at most `step` rows, or of a block that was put
    aside, with leaves of shape `(len(rows), *leaf.shape)`."""
    for start in range(0, len(rows), step):
        yield _unchanged(table, np.ascontiguousarray(rows[start:start + step]))
        # Blocks are yielded one by one, so that a writer that waits for room waits until one block is written, not until all are.
        while (aside := _put_aside(table)) is not None:
            yield aside


def end_copies(KeyedTable table not None) -> None:
    """From now on writers put nothing aside. This is not left to the end of `copies`, because a generator that is never started, or that
    somebody keeps, does not end."""
    table.opened().end_copy()


def _unchanged(KeyedTable table, const uint32_t[::1] rows):
    cdef size_t n = rows.shape[0], kept
    cdef Batch* batch = table.opened().take_batch(n)
    cdef ReplayLease lease = replay_lease(table.table, batch)
    cdef uint32_t[::1] out
    with nogil:
        kept = table.table.copy_some(&rows[0], n, batch)
    copied = np.empty(kept, np.uint32)
    out = copied
    if kept:
        memcpy(&out[0], batch.rows, kept * sizeof(uint32_t))
    cdef Flattener flattener = table.rows_spec.flattener
    leaves = optree.tree_leaves(flattener.arrays(batch.leaf.data(), n, lease), namespace=table.spec.namespace)
    return copied, [leaf[:kept] for leaf in leaves]


def _put_aside(KeyedTable table):
    cdef vector[uint32_t] rows
    cdef unique_ptr[Bytes] data
    cdef uint8_t[::1] to
    cdef cbool some
    table.opened()
    with nogil:
        some = table.table.take_preserved(&rows, &data)
    if not some:
        return None
    n, size = rows.size(), table.rows_spec.sample_bytes
    records = np.empty((n, size), np.uint8)
    if size:
        to = records.reshape(-1)
        memcpy(&to[0], <const char*>data.get(), to.shape[0])
    leaves, at = [], 0
    for leaf in table.rows_spec.leaves:
        bytes_ = np.ascontiguousarray(records[:, at:at + leaf.nbytes]).reshape(-1)
        leaves.append(bytes_.view(leaf.dtype).reshape(n, *leaf.shape) if leaf.nbytes else np.empty((n, *leaf.shape), leaf.dtype))
        at += leaf.nbytes
    return np.array(rows, np.uint32), leaves


def check(KeyedTable table not None, snapshot) -> None:
    """Check a snapshot before anything is changed. Only errors that the samplers find remain for `restore_samplers`.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: the table was written to already, or `random` is no state of its generator.
    """
    if table.opened().counters().inserts:
        raise ValueError(f"table {table.name!r} was written to already; restore into a new one")
    # Try it on another generator: an error may be found when half of the state is set.
    type(table.rng.bit_generator)().state = snapshot["random"]


def restore_samplers(KeyedTable table not None, states) -> dict:
    """Put the states `sampler` and `remover` into the table's samplers. Return their previous states, which the caller puts back if a sampler
    of another table refuses its state. The table must not be used until `restore` follows.

    Raises:
        ValueError: a sampler refuses its state; both are unchanged. A sampler may raise other errors.
    """
    parts = {"sampler": table.sampler}
    if table.remover is not None and table.remover is not table.sampler:
        parts["remover"] = table.remover
    before = {}
    table.opened()
    with table.lock:
        with nogil:
            table.table.pause()
        try:
            for part, sampler in parts.items():
                before[part] = sampler.state()
            try:
                for part, sampler in parts.items():
                    sampler.restore(states[part])
            except BaseException:
                for part, sampler in parts.items():
                    sampler.restore(before[part])
                raise
        finally:
            table.table.resume()
    return before


def restore(KeyedTable table not None, snapshot, stored, leaves) -> None:
    """Put the contents of a snapshot into a new table, for which `check` and `restore_samplers` were called.

    Args:
        stored: every row of the snapshot once, in the order of their bytes in `leaves`.
        leaves: for each leaf those bytes, shape `(len(stored), *leaf.shape)`.
    """
    cdef uint32_t[::1] order, place, g, h, t, lent
    cdef uint64_t[::1] v
    cdef const uint8_t[::1] data
    cdef size_t i, n, size
    cdef uint32_t leaf
    table.opened()
    columns = [np.ascontiguousarray(snapshot[name], np.uint32) for name in ("generations", "high", "times")]
    g, h, t = columns
    v = np.ascontiguousarray(snapshot["versions"], np.uint64)
    n, loaned = len(snapshot["rows"]), len(snapshot["loaned"])
    order, place, lent = [
        np.ascontiguousarray(rows if len(rows) else [0], np.uint32) for rows in (snapshot["rows"], stored, snapshot["loaned"])]
    with table.lock:
        with nogil:
            table.table.pause()
        try:
            for leaf in range(table.table.leaf_count()):
                size = table.table.leaf_bytes(leaf)
                if size == 0 or n == 0:
                    continue
                data = leaves[leaf].reshape(-1).view(np.uint8)
                for i in range(n):
                    memcpy(table.table.rows().at(leaf, place[i]), &data[i * size], size)
            table.rng.bit_generator.state = snapshot["random"]
            table.table.restore(&order[0], <uint32_t>n, &g[0], &h[0], &t[0], &v[0], snapshot["policy_version"], &lent[0], loaned,
                                snapshot["inserts"], snapshot["samples"])
        finally:
            table.table.resume()
