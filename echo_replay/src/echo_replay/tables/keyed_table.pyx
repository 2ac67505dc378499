# cython: language_level=3, boundscheck=False, wraparound=False
"""A replay table as it was opened, and access to its items by key: read, change, remove."""
import threading

import numpy as np

from cpython.pycapsule cimport PyCapsule_GetPointer
from libc.math cimport INFINITY
from libc.stdint cimport UINT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.door cimport Door, open_door
from echo_replay.tables.replay_info cimport ReplayLease, replay_lease
from echo_core.store.local_insert cimport LocalInsert, page_lock
from echo_replay.tables.table cimport ECHO_SAMPLER_VERSION, NO_LIMIT, Batch, LagLimits, Limits, Rows, Table, bitgen_t, echo_sampler
from echo_replay.tables.python_sampler cimport python_sampler_of

from echo_core.spec.cuda import CudaError
from echo_core.base.errors import ConfigError, EchoError, ForkError, SpecError
from echo_core.store.sampler import check_keys, check_priorities
from echo_core.base.memory.promised import promise, unpromised_memory

cdef const echo_sampler* native_of(object sampler, str what, list capsules) except? NULL:
    """Returns the sampler's native interface, or NULL. The capsule keeps it alive and is added to `capsules`."""
    cdef const echo_sampler* native
    capsule = sampler.native()
    if capsule is None:
        return NULL
    native = <const echo_sampler*>PyCapsule_GetPointer(capsule, "echo_core.sampler")
    if native.version != ECHO_SAMPLER_VERSION:
        raise ConfigError(
            f"{what} {type(sampler).__name__} was built against echo sampler API {native.version}, this echo-core has "
            f"{ECHO_SAMPLER_VERSION}; rebuild or upgrade it")
    capsules.append(capsule)
    return native


cdef class KeyedTable(LocalInsert):
    """Base of `ReplayTable`."""

    def __cinit__(self):
        self.table = NULL

    @property
    def beta(self) -> float:
        """The exponent of importance weights, from 0 to 1. It may be changed at any time, to anneal it. Raises ValueError."""
        return self.exponent

    @beta.setter
    def beta(self, value):
        self.exponent = exponent_of(value)

    def __init__(self, described, batch_size, sampler, remover, beta, descriptor, spec=None):
        """`described` is a `Table` (config/table.py). `descriptor` is of the file that holds the rows, or -1; `spec` is that of a row if it is not a sample."""
        name, limiter, lags, lease_timeout, initial = described.name, described.limiter, described.lags, described.lease_timeout, described.initial
        spec = described.spec if spec is None else spec
        cdef vector[uint64_t] sizes
        cdef Limits limits
        cdef LagLimits lag_limits
        cdef uint64_t capacity = described.rows
        cdef uint32_t max_times_sampled = described.uses
        cdef int64_t lease_ns = 0 if lease_timeout is None else <int64_t>(lease_timeout * 1e9)
        cdef list capsules = []
        cdef const echo_sampler* removing = NULL
        cdef const echo_sampler* asked = NULL
        cdef uint64_t total
        if self.table != NULL:
            raise RuntimeError("this table is open already")
        for leaf in spec.leaves:
            sizes.push_back(leaf.nbytes)
        total = Rows.plan(sizes, capacity, NULL)
        free = unpromised_memory()
        if descriptor < 0 and total > free:
            raise MemoryError(
                f"table {name!r}: {capacity:,} rows of {spec.sample_bytes:,} bytes need {total:,} bytes; {free:,} are available: lower "
                f"capacity, or give the table a storage path")
        limits.samples_per_insert, limits.min_diff, limits.max_diff, limits.min_size = limiter.numbers()
        asked = native_of(sampler, "sampler", capsules)
        if remover is sampler:
            removing = asked
        elif remover is not None:
            removing = native_of(remover, "remover", capsules)
        if remover is not None:
            if removing == NULL:
                raise ConfigError(
                    f"table {name!r}: remover {type(remover).__name__} is written in Python, which would make writers wait; "
                    f"use remover='fifo' or a native one")
        if asked == NULL and lease_ns:
            raise ConfigError(f"table {name!r}: lease_timeout needs a native sampler such as 'fifo', and {type(sampler).__name__} is written in Python")
        lag_limits.kept = lags is not None
        lag_limits.max_lag, lag_limits.weight = NO_LIMIT, 1.0
        if lags is not None:
            lag_limits.max_lag = NO_LIMIT if lags.most is None else lags.most
            lag_limits.weight = lags.weight
        self.rng = np.random.Generator(np.random.PCG64(described.seed))
        generator = self.rng.bit_generator.capsule
        capsules += [generator, self.rng]
        self.capsules = capsules
        self.lock, self.checkpointing = threading.Lock(), threading.Lock()
        self.lags, self.lease_timeout, self.answered_by = lags, lease_timeout, described.answered_by
        self.name, self.spec, self.sampler, self.remover, self.limiter = name, spec, sampler, remover, limiter
        self.of_a_batch, self.max_times_sampled, self.exponent = batch_size, max_times_sampled, exponent_of(beta)
        self.flattener = spec.flattener
        self.leaves = len(spec.leaves)
        self.sample_bytes = spec.sample_bytes
        self.table = new Table(
            sizes, capacity, batch_size, limits, max_times_sampled, asked, bool(sampler.replacement), removing,
            <bitgen_t*>PyCapsule_GetPointer(generator, "BitGenerator"), descriptor, lag_limits, lease_ns, self.more,
            UINT64_MAX if initial is None else <uint64_t>initial)
        self.refuses_zero = sampler.refuses_zero
        if self.refuses_zero:
            self.table.refuse_zero()
        self.door = open_door(self.table)
        if asked == NULL:
            self.python_sampler = python_sampler_of(self.table, sampler, self.rng, self.lock)
        self.own_bytes = spec.sample_bytes
        if initial is not None:
            promise(self)

    def operations(self):
        return self.answered_by(self)

    def bytes_to_come(self) -> int:
        """Return the bytes of rows that have no memory yet; see `Table(initial=...)`."""
        return 0 if self.table == NULL else (self.table.capacity() - self.table.rows_ready()) * self.own_bytes

    def __dealloc__(self):
        if self.table != NULL:
            if self.here():  # in a forked child the mutex may be held by a thread that does not exist there
                self.table.detach()
            self.table.release()
        if self.door != NULL:
            self.door.release()

    cdef Door* door_for(self) except NULL:
        self.opened()
        return self.door

    @property
    def batch_size(self) -> int:
        return self.of_a_batch

    @property
    def takes_labels(self) -> bool:
        return True

    def peer_gone(self, connection, client_id, workers) -> None:
        if self.lease_timeout is not None:
            self.take_back(connection)

    def published(self, version) -> None:
        self.policy_version = version

    @property
    def rows_spec(self):
        """The spec of its rows, which differs from `spec` in a `StepTable`."""
        return self.spec

    def below(self, rows):
        """Return what a checkpoint needs of the data that the items in `rows` refer to, while the table is paused: see `StepTable`."""

    def lock_pages(self, place):
        """Page-lock the memory of this table's batches, in a `cuda.Place`.

        Raises:
            CudaError: the memory of the first batch cannot be locked.
        """
        self.opened().lock_pages(page_lock(place))
        cdef Batch* first = self.table.take_batch(self.of_a_batch)
        cdef bint locked = first.locked
        self.table.give_back(first)
        if not locked:
            raise CudaError(f"table {self.name!r}: CUDA's driver does not page-lock the memory of a batch")

    cdef Table* opened(self) except NULL:
        if self.table == NULL:
            raise RuntimeError(f"{type(self).__name__}.__init__ was not called")
        if not self.here():
            raise ForkError(
                "this table was made before a fork and belongs to the parent process; make clients in the child, or start it with "
                "multiprocessing's 'spawn'")
        return self.table

    def update_priorities(self, keys, priorities) -> int:
        """Give items new priorities; return how many of them were gone.

        Args:
            keys: keys from `Sample.keys`, shape (n,). If a key occurs twice, its last entry counts.
            priorities: shape (n,), finite and not negative.

        Raises:
            ValueError: a priority is negative, NaN or infinite, or 0 where the sampler `refuses_zero`. The text names its key, and nothing
                was updated.
        """
        self.opened()
        cdef const uint64_t[::1] k
        cdef const double[::1] p
        if _as_they_are(keys, priorities, self.refuses_zero):
            checked, values = keys, priorities
        else:
            checked = check_keys(keys)
            values = check_priorities(priorities, checked, self.refuses_zero)
        k, p = checked, values
        cdef size_t n = k.shape[0]
        cdef uint64_t gone
        if n == 0:
            return 0
        if self.python_sampler is not None:
            return self.python_sampler.update(k, values)
        with nogil:
            gone = self.table.update(&k[0], &p[0], n)
        return gone

    def delete(self, keys) -> int:
        """Remove items; return how many of them were there."""
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef uint64_t erased
        if n == 0:
            return 0
        with nogil:
            erased = self.table.erase(&k[0], n)
        return erased

    def ack(self, keys) -> int:
        """Acknowledge items of a table with `lease_timeout`: they were processed, and nobody is given them again.

        Args:
            keys: keys from `Sample.keys`, shape (n,).

        Returns:
            How many of them were unacknowledged, including those whose time is over and that wait to be given out again. The others were
            acknowledged before.
        """
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef uint64_t ended
        if self.lease_timeout is None:
            raise ValueError(f"table {self.name!r} needs no acknowledgements; give it a lease_timeout if it should")
        if n == 0:
            return 0
        with nogil:
            ended = self.table.acknowledge(&k[0], n)
        return ended

    def take_back(self, uint64_t borrower) -> int:
        """Give out again the unacknowledged items that `draw(borrower=...)` gave to a client that is gone; return how many they are.
        The server does this for every client whose connection ends."""
        cdef uint64_t taken
        self.opened()
        with nogil:
            taken = self.table.take_back(borrower)
        return taken

    # ---- versions of the policy --------------------------------------------------------------------------------------------

    @property
    def policy_version(self) -> int:
        """The newest version of the policy, from which lags are counted: the one that `Server.publish` made last. It may be set. Rows that
        then lag behind it by more than `max_policy_lag` are removed."""
        return self.opened().policy_version()

    @policy_version.setter
    def policy_version(self, version):
        cdef uint64_t value = version
        self.opened()
        with nogil:
            self.table.set_policy_version(value)
        if self.python_sampler is not None:
            with self.lock:
                self.sampler.published(value)

    def policy_versions(self):
        """Return how many items there are of each version of the policy: `(versions, counts)`, oldest version first.

        Raises:
            ValueError: this table keeps no versions.
        """
        if self.lags is None:
            raise ValueError(f"table {self.name!r} keeps no policy versions; give it policy_versions=True, max_policy_lag or lag_weight")
        pairs = np.array(self.opened().version_counts(), np.uint64).reshape(-1, 2)
        return pairs[:, 0].copy(), pairs[:, 1].copy()

    # ---- further access by key ---------------------------------------------------------------------------------------------

    def peek(self, keys):
        """Return items by key. This does not count as sampling.

        Returns:
            `(batch, here)`: leaves of shape `(n, *leaf.shape)`, and a bool array that says which keys were there. The rows of the other keys
            are unspecified.
        """
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef uint8_t[::1] flags
        cdef Batch* batch
        cdef ReplayLease lease
        if n == 0:
            raise ValueError("peek() needs at least one key")
        here = np.empty(n, np.bool_)
        flags = here.view(np.uint8)
        batch = self.table.take_batch(n)
        lease = replay_lease(self.table, batch)
        with nogil:
            self.table.find(&k[0], n, batch, &flags[0])
            self.table.gather_known(batch, &flags[0])
        return self.flattener.arrays(batch.leaf.data(), n, lease), here

    def update_items(self, keys, leaves):
        """Overwrite some leaves of items in place, by key (MuZero's reanalyse, refreshed recurrent states). The items keep their keys.

        Args:
            keys: shape (n,).
            leaves: `{path: array of shape (n, *leaf.shape)}`, with paths as in `spec`.

        Returns:
            A bool array that says which keys were there. No batch contains an item that is only half changed.

        Raises:
            SpecError: there is no such leaf, or an array does not fit.
        """
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef vector[const char*] data
        cdef uint8_t[::1] flags
        cdef const uint8_t[::1] view
        data.resize(self.leaves, NULL)
        index = {leaf.path: i for i, leaf in enumerate(self.spec.leaves)}
        keep = []
        here = np.zeros(n, np.bool_)
        if n == 0:
            return here
        for path, value in leaves.items():
            if path not in index:
                raise SpecError(f"no leaf {path!r}; this table has {', '.join(map(repr, index))}")
            leaf = self.spec.leaves[index[path]]
            array = leaf.stacked(value, n)
            if array.nbytes:
                view = array.reshape(-1).view(np.uint8)
                data[<size_t>index[path]] = <const char*>&view[0]
                keep.append((array, view))
        flags = here.view(np.uint8)
        with nogil:
            self.table.overwrite(&k[0], n, data.data(), &flags[0])
        return here

    def keys(self):
        """Return the keys of all items, oldest first: uint64 of shape (size,)."""
        return self._items(False)[0]

    def newest(self, k):
        """Return the keys of the k items that came last (all, if there are fewer), oldest first: uint64 of shape (k,)."""
        cdef size_t most, n
        if not hasattr(type(k), "__index__") or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
        most = min(k, self.opened().capacity())
        keys = np.empty(most, np.uint64)
        cdef uint64_t[::1] into = keys
        with nogil:
            n = self.table.newest(&into[0], most)
        return keys[:n][::-1].copy()

    def _items(self, bint with_priorities):
        cdef size_t most = self.opened().capacity(), n
        cdef uint64_t[::1] k
        cdef uint32_t[::1] r
        cdef double[::1] p
        keys, rows, priorities = np.empty(most, np.uint64), np.empty(most, np.uint32), np.empty(most if with_priorities else 1)
        k, r, p = keys, rows, priorities
        if with_priorities and self.python_sampler is not None:
            raise EchoError(f"sampler {type(self.sampler).__name__} is written in Python, so the table does not know its priorities")
        with nogil:
            n = self.table.items(&k[0], &p[0] if with_priorities else NULL, &r[0], most)
        return keys[:n], rows[:n], priorities[:n] if with_priorities else None

    def top(self, k):
        """Return the k items of highest priority: `(keys, priorities)`, highest first; among equal priorities, earlier items come first."""
        if not hasattr(type(k), "__index__") or k < 1:
            raise ValueError(f"k must be a whole number of at least 1, not {k!r}")
        keys, _, priorities = self._items(True)
        order = np.argsort(-priorities, kind="stable")[:k]
        return keys[order], priorities[order]

    def priority_histogram(self, bins=32):
        """Return `numpy.histogram` of all priorities: `(counts, edges)`."""
        return np.histogram(self._items(True)[2], bins)


cdef double exponent_of(object beta) except? -1:
    cdef double value = beta
    if not 0 <= value <= 1:
        raise ValueError(f"beta must be from 0 to 1, not {beta!r}")
    return value


cdef bint _as_they_are(object keys, object priorities, bint refuses_zero) except -1:
    """Whether both arrays have the right type and only valid values. The careful checks would find the same, but cost more than the update."""
    cdef const uint64_t[::1] k
    cdef const double[::1] p
    cdef Py_ssize_t i
    cdef bint good = True
    if type(keys) is not np.ndarray or type(priorities) is not np.ndarray or keys.ndim != 1 or priorities.ndim != 1:
        return False
    if keys.dtype != _U64 or priorities.dtype != _F64 or not (keys.flags.c_contiguous and priorities.flags.c_contiguous):
        return False
    k, p = keys, priorities
    if k.shape[0] != p.shape[0]:
        return False
    for i in range(p.shape[0]):
        good &= (p[i] >= 0) & (p[i] < INFINITY) & ((p[i] != 0) | (not refuses_zero))
    return good


_U64, _F64 = np.dtype(np.uint64), np.dtype(np.float64)
