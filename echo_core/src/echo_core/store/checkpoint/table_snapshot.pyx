# cython: language_level=3, boundscheck=False, wraparound=False
"""The state of a replay table, for checkpoints: taken at one moment, and put into a new table.

`snapshot` pauses the table for as long as its index, priorities and counts are copied. The items' bytes follow from `copies` while others
write: a writer that is about to change a row whose turn has not come puts its bytes aside first, so that all are those of the one moment.
`end_copies` ends that, whatever happened in between: writers wait when nobody takes what they put aside.
"""
import time

import numpy as np
import optree

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport unique_ptr
from libcpp.vector cimport vector

from echo_core.store.lease cimport ReplayLease, replay_lease
from echo_core.store.replay.keyed_table cimport KeyedTable
from echo_core.spec.pytree.flattener cimport Flattener
from echo_core.store.replay.table cimport Batch, Bytes


def snapshot(KeyedTable table not None) -> dict:
    """The table at one moment, without its items' bytes: `copies` has to follow, and `end_copies` in any case unless this raises.

    Returns:
        figures `inserts`, `samples`, `policy_version`, `random` (the generator's state), `paused` (seconds that writers waited at most);
        arrays `keys` and `rows` of the items, oldest first, `loaned` those rows that a learner has not acknowledged, `generations`,
        `high`, `times` and `versions` of every row; `sampler` and `remover`: their states.
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
            if table.told is not None:
                table.told.catch_up()
            table.table.columns(&g[0], &h[0], &t[0], &v[0])
            keys, rows, _ = table._items(False)
            loaned = np.array(table.table.loaned(), np.uint32)
            rows = np.concatenate([loaned, rows])
            r = rows
            table.table.begin_copy(&r[0] if rows.size else NULL, rows.size)
            begun = True
            counters = table.table.counters()
            return {
                # What is on loan was not sampled, as far as whoever reads this is concerned.
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
    """The bytes of the snapshot's `rows`, in an order of its own: `(rows, leaves)` of at most `step` rows, or of a block that was put
    aside; leaves of shape `(len(rows), *leaf.shape)`."""
    for start in range(0, len(rows), step):
        yield _unchanged(table, np.ascontiguousarray(rows[start:start + step]))
        # As they come, so that whoever waits for room among them waits for one of them to be written, and not for all.
        while (aside := _put_aside(table)) is not None:
            yield aside


def end_copies(KeyedTable table not None) -> None:
    """From now on nobody puts anything aside. Not left to the end of `copies`: a generator that was never begun, or that somebody keeps,
    has no end."""
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
    """What would be refused of a snapshot, before anything is changed, save what the samplers refuse.

    Raises:
        ValueError, TypeError, KeyError, OverflowError: the table was written to already, or `random` is no state of its generator.
    """
    if table.opened().counters().inserts:
        raise ValueError(f"table {table.name!r} was written to already; restore into a new one")
    # Upon another one: what is wrong may be found when half of it is set.
    type(table.rng.bit_generator)().state = snapshot["random"]


def restore_samplers(KeyedTable table not None, states) -> dict:
    """Put the states `sampler` and `remover` into the table's samplers; the states that these had, to be put back when another table's
    refuse theirs. Until `restore` follows, the table must not be used.

    Raises:
        ValueError: one refuses its state; both are as they were. Whatever else a sampler raises.
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
    """Become what `snapshot()` told of; only of a new table, which was given to `check` and `restore_samplers`.

    Args:
        stored: every row of the snapshot once, in the order in which their bytes came.
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
