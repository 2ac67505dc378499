# cython: language_level=3, boundscheck=False, wraparound=False
"""A replay table as Python sees it: insert on one side, sample on the other, replay/table.hpp in between."""
import logging
import os
import threading

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.math cimport INFINITY
from libc.string cimport memcpy

from echo_core.door cimport Door, open_door
from echo_core.pytree cimport Flattener
from echo_core.ring cimport ECHO_CLOSED, ECHO_OK, HistogramSnapshot, echo_run, now_ns
from echo_core.sample cimport Sample, drawn_sample, snapshot
from echo_core.waits cimport deadline_of, first_sleep, next_sleep, slice_of

from echo_core.errors import ClosedError, ConfigError, EchoError, EchoTimeoutError, ForkError, SpecError
from echo_core.sampler import check_keys, check_priorities
from echo_core.spec import Spec
from echo_core.waits import available_memory

_log = logging.getLogger("echo")

cdef enum:
    INLINE_LEAVES = 64      # samples with more leaves take their pointers from the heap
    GIL_BYTES = 32768       # copies larger than this are done without the GIL: it costs 46 ns to give away and take back
    POLITE = 8              # gathers of a Python sampler's batch before writers are held for one

cdef int64_t PATIENCE_NS = 5_000_000_000  # a wait longer than this is logged, once
cdef Flattener DRAWN = Spec.from_example(
    {"keys": np.uint64(0), "probabilities": np.float64(0), "weights": np.float32(0)}).flattener

cdef int forks = 0  # a table belongs to the process of its birth


def _forked():
    global forks
    forks += 1


os.register_at_fork(after_in_child=_forked)


@cython.final
@cython.freelist(16)
cdef class BatchLease:
    """The right to read one batch's memory, and base object of its arrays: the next batch uses it once the last of them is gone."""

    def __dealloc__(self):
        if self.table != NULL:
            self.table.give_back(self.batch)
            self.table.release()

    cdef dict drawn(self):
        cdef char* data[3]
        data[0] = <char*>self.batch.keys
        data[1] = <char*>self.batch.probabilities
        data[2] = <char*>self.batch.weights
        return DRAWN.arrays(data, self.batch.n, self)

    def drawn_arrays(self) -> dict:
        """`keys`, `probabilities` and `weights`, as arrays over the batch's memory."""
        return self.drawn()

    def copied(self) -> DrawnCopy:
        cdef DrawnCopy copy = DrawnCopy.__new__(DrawnCopy)
        copy.arrays = {name: array.copy() for name, array in self.drawn().items()}
        return copy


@cython.final
@cython.freelist(16)
cdef class ReplayInfo:
    """Figures about a table at the moment a batch left it.

    Attributes:
        table: its name.
        store_size: items in the table.
        effective_sample_size: of this batch, (sum w)^2 / sum w^2 over w = 1 / probability: how many equally likely draws a mean that is
            weighted for importance is worth; n when all were equally likely, near 1 when one item outweighs the others.
        inserted, sampled: items inserted into the table and drawn from it so far.
        redrawn: rows that a writer overwrote while they were gathered, and that were drawn anew.
        updates_gone: priority updates for items that were no longer there.
        leases_held: batches whose memory something still refers to, this one included.
        active_connections, push_blocked_count, queue_depth_sum, queue_depth_max, samples_inserted_total, batches_taken_total,
            samples_aborted_total: as in `SampleInfo`.
    """

    cdef TableCounters counters
    cdef object lease
    cdef readonly str table

    @property
    def store_size(self) -> int:
        return self.counters.size

    @property
    def effective_sample_size(self) -> float:
        w = 1.0 / self.lease.drawn_arrays()["probabilities"]
        return float(w.sum() ** 2 / np.square(w).sum())

    @property
    def inserted(self) -> int:
        return self.counters.inserts

    @property
    def sampled(self) -> int:
        return self.counters.samples

    @property
    def redrawn(self) -> int:
        return self.counters.redrawn

    @property
    def updates_gone(self) -> int:
        return self.counters.gone

    @property
    def leases_held(self) -> int:
        return self.counters.leased

    @property
    def active_connections(self) -> int:
        return self.counters.connections

    @property
    def push_blocked_count(self) -> int:
        return self.counters.push_blocked

    @property
    def queue_depth_sum(self) -> int:
        return self.counters.queued

    @property
    def queue_depth_max(self) -> int:
        return self.counters.queue_depth_max

    @property
    def samples_inserted_total(self) -> int:
        return self.counters.inserts

    @property
    def batches_taken_total(self) -> int:
        return self.counters.drawn_batches

    @property
    def samples_aborted_total(self) -> int:
        return self.counters.aborted

    def copied(self) -> ReplayInfo:
        """The same figures, without a hold on the batch's memory."""
        cdef ReplayInfo info = ReplayInfo.__new__(ReplayInfo)
        info.counters, info.table, info.lease = self.counters, self.table, self.lease.copied()
        return info

    def __repr__(self):
        return f"ReplayInfo(table={self.table!r}, store_size={self.store_size}, inserted={self.inserted}, sampled={self.sampled})"


@cython.final
cdef class DrawnCopy:
    """Copies of a batch's `keys`, `probabilities` and `weights`."""

    cdef dict arrays

    def drawn_arrays(self) -> dict:
        return self.arrays

    def copied(self) -> DrawnCopy:
        return self


cdef void release_capsule(object capsule) noexcept:
    (<Door*>PyCapsule_GetPointer(capsule, "echo_core.store")).release()


cdef const echo_sampler* native_of(object sampler, str what, list capsules) except? NULL:
    """The sampler's native door, or NULL; the capsule, which keeps it, goes to `capsules`."""
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


cdef class ReplayTable:
    """Rows that stay and come out as often as they are drawn; made by `Server`, see `echo_core.table.Table`.

    Every method may be called from any thread.
    """

    def __cinit__(self):
        self.table = NULL

    def __init__(self, name, spec, capacity, batch_size, sampler, remover, limiter, max_times_sampled, seed, beta, descriptor):
        cdef vector[uint64_t] sizes
        cdef Limits limits
        cdef list capsules = []
        cdef const echo_sampler* removing = NULL
        cdef uint64_t total
        if self.table != NULL:
            raise RuntimeError("this table is open already")
        for leaf in spec.leaves:
            sizes.push_back(leaf.nbytes)
        total = Rows.plan(sizes, capacity, NULL)
        free = available_memory()
        if descriptor < 0 and total > free:
            raise MemoryError(
                f"table {name!r}: {capacity:,} rows of {spec.sample_bytes:,} bytes need {total:,} bytes; {free:,} are available: lower "
                f"capacity, or give the table a storage path")
        limits.samples_per_insert, limits.min_diff, limits.max_diff, limits.min_size = limiter.numbers()
        self.native_sampler = native_of(sampler, "sampler", capsules)
        self.python = self.native_sampler == NULL
        if remover is sampler:
            removing = self.native_sampler
        elif remover is not None:
            removing = native_of(remover, "remover", capsules)
        if remover is not None:
            if removing == NULL:
                raise ConfigError(
                    f"table {name!r}: remover {type(remover).__name__} is written in Python, and writers must not wait for that; "
                    f"use remover='fifo' or a native one")
        self.rng = np.random.Generator(np.random.PCG64(seed))
        generator = self.rng.bit_generator.capsule
        capsules += [generator, self.rng]
        self.capsules = capsules
        self.lock = threading.Lock()
        self.name, self.spec, self.sampler, self.remover, self.limiter = name, spec, sampler, remover, limiter
        self.batch_size, self.max_times_sampled, self.beta = batch_size, max_times_sampled, beta
        self.flattener = spec.flattener
        self.leaves = len(spec.leaves)
        self.sample_bytes = spec.sample_bytes
        self.forks = forks
        self.table = new Table(
            sizes, capacity, batch_size, limits, max_times_sampled, self.native_sampler, bool(sampler.replacement), removing,
            <bitgen_t*>PyCapsule_GetPointer(generator, "BitGenerator"), descriptor, self.more)
        self.door = open_door(self.table)

    def __dealloc__(self):
        if self.table != NULL:
            self.table.detach()
            self.table.release()
        if self.door != NULL:
            self.door.release()

    cdef Table* opened(self) except NULL:
        if self.table == NULL:
            raise RuntimeError("ReplayTable.__init__ was not called")
        if self.forks != forks:
            raise ForkError(
                "this table was made before a fork and belongs to the parent process; make clients in the child, or start it with "
                "multiprocessing's 'spawn'")
        return self.table

    # ---- writing ----------------------------------------------------------------------------------------------------------

    def submit(self, sample, timeout=30.0, priority=None):
        """Insert one sample, from any thread of this process; its key.

        Args:
            sample: a pytree that matches the spec.
            timeout: seconds to wait while the rate limiter lets nothing in; None waits for ever.
            priority: of the new item, finite and not negative; None lets the sampler choose.

        Returns:
            the item's key: a whole number that no other item of this table has or will have.

        Raises:
            SpecError, ValueError: the sample or its priority is refused; nothing was inserted.
            EchoTimeoutError: no space in time, saying who waits for whom. ClosedError: the server is closed.
        """
        return self.put(sample, timeout, priority)

    cdef object put(self, object sample, object timeout, object priority):
        cdef const void* inline_data[INLINE_LEAVES]
        cdef vector[const void*] heap_data
        cdef const void** data = inline_data
        cdef list keep = []
        cdef double value = 0
        cdef const double* given = NULL
        cdef uint64_t key
        if self.table == NULL or self.forks != forks:
            self.opened()
        if priority is not None:
            value = priority
            if not 0 <= value < INFINITY:
                raise ValueError(f"priority {priority!r} of a new item must be finite and not negative")
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        if self.sample_bytes > GIL_BYTES:
            self.flattener.pointers_held(sample, data, keep)
            sample = None
        else:
            self.flattener.pointers(sample, data, keep)
        if priority is not None:
            given = &value
        self.insert(data, 1, given, &key, sample, keep, timeout, "submit()")
        return key

    def submit_batch(self, samples, timeout=30.0, priorities=None):
        """Insert N samples at once; leaves have shape `(N, *leaf.shape)`.

        Args:
            samples, timeout: as in `submit`.
            priorities: shape (N,), or None.

        Returns:
            their keys, uint64 of shape (N,). On EchoTimeoutError or ClosedError the error's `inserted` attribute says how many of them
            were inserted, from the front.
        """
        cdef const void* inline_data[INLINE_LEAVES]
        cdef vector[const void*] heap_data
        cdef const void** data = inline_data
        cdef list keep = []
        cdef Py_ssize_t count
        cdef uint64_t[::1] keys
        cdef const double[::1] values
        cdef const double* given = NULL
        self.opened()
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        count = self.flattener.batch_pointers(samples, data, keep)
        out = np.empty(count, np.uint64)
        if count == 0:
            return out
        keys = out
        if priorities is not None:
            values = _new_priorities(priorities, count)
            given = &values[0]
        self.insert(data, count, given, &keys[0], None, keep, timeout, "submit_batch()")
        return out

    cdef int insert(self, const void** data, Py_ssize_t count, const double* priorities, uint64_t* keys, object borrowed, list keep,
                    object timeout, str caller) except -1:
        """As Store.insert: see there for `borrowed` and `keep`."""
        cdef echo_run run
        cdef Py_ssize_t done = 0
        cdef uint32_t wanted
        cdef int64_t began = 0
        while done < count:
            wanted = <uint32_t>(count - done) if count - done < 0x7fffffff else 0x7fffffff
            if self.table.claim(wanted, &run) != ECHO_OK:
                if borrowed is not None:
                    self.flattener.pointers_held(borrowed, data, keep)
                    borrowed = None
                try:
                    self.wait_claim(wanted, &run, timeout, caller)
                except (EchoTimeoutError, ClosedError) as error:
                    error.inserted = done
                    raise
            if run.slot & 63 == 0:
                began = now_ns()
            if self.sample_bytes * run.count > GIL_BYTES:
                with nogil:
                    self.copy(data, done, &run)
            else:
                self.copy(data, done, &run)
            if run.slot & 63 == 0:
                self.table.copy.record(<uint64_t>(now_ns() - began) // run.count)
            self.table.commit(run, priorities, keys + done)
            if priorities != NULL:
                priorities += run.count
            done += run.count
        return 0

    cdef void copy(self, const void** data, Py_ssize_t first, const echo_run* run) noexcept nogil:
        cdef uint32_t i
        cdef size_t size
        for i in range(self.leaves):
            size = self.table.leaf_bytes(i)
            memcpy(self.table.leaf(run[0], i), <const char*>data[i] + first * size, size * run.count)

    cdef int wait_claim(self, uint32_t wanted, echo_run* run, object timeout, str caller) except -1:
        self.opened()
        cdef int64_t deadline = deadline_of(timeout), began = now_ns(), longest = first_sleep()
        cdef int status
        cdef bint told = False
        while True:
            with nogil:
                status = self.table.claim(wanted, run)
                if status != ECHO_OK and status != ECHO_CLOSED:
                    self.table.wait_space(slice_of(deadline, longest))
                    status = self.table.claim(wanted, run)
            if status == ECHO_OK:
                return 0
            if status == ECHO_CLOSED:
                raise ClosedError(f"{caller}: the server is closed and takes no more samples")
            PyErr_CheckSignals()
            longest = next_sleep(longest)
            if deadline >= 0 and now_ns() >= deadline:
                raise EchoTimeoutError(f"{caller} waited {timeout:g} s for space: {self.who_blocks_writers()}")
            if not told and now_ns() - began > PATIENCE_NS:
                told = True
                _log.warning("%s has waited 5 s for space: %s", caller, self.who_blocks_writers())

    # ---- reading ----------------------------------------------------------------------------------------------------------

    def sample(self, n=None, timeout=None, beta=None):
        """Draw a batch: waits until the rate limiter lets n items out.

        Args:
            n: items; None is the server's batch_size.
            timeout: seconds; None waits until there are some or the server is closed.
            beta: exponent of the importance weights; None is the attribute `beta`, which may be changed at any time.

        Returns:
            `Sample(batch, info)`, also with `keys`, `probabilities` and `weights` of shape (n,): arrays are writable, and the batch's own
            copy. None once the server is closed.

        Raises:
            EchoTimeoutError: not enough in time, saying who waits for whom.
            EchoError: no item can be drawn, because every priority is 0.
        """
        return self.draw(n, timeout, beta)

    cpdef object draw(self, object n=None, object timeout=None, object beta=None):
        cdef Batch* batch
        cdef Batch* whole
        cdef int answer = kClosed
        cdef uint64_t count = self.batch_size if n is None else _whole(n, "n", 1, 1 << 24)
        cdef double exponent = self.beta if beta is None else _exponent(beta)
        cdef int64_t deadline, began = 0, longest = 0
        cdef bint told = False
        if self.table == NULL or self.forks != forks:
            self.opened()
        batch = self.table.take_batch(count)
        try:
            while True:
                if self.python:
                    with self.lock:
                        answer = self.draw_through_python(batch)
                else:
                    with nogil:
                        answer = self.table.sample(batch)
                if answer == kDrawn:
                    whole = batch
                    batch = NULL  # its lease's from here on
                    return self.wrap(whole, exponent)
                if answer == kClosed:
                    return None
                if answer == kNothing:
                    raise EchoError(
                        f"table {self.name!r}: the sampler can draw none of its {self.table.counters().size} items, as every priority is 0; "
                        f"give update_priorities() positive ones, or the sampler an eps")
                if began == 0:
                    deadline, began, longest = deadline_of(timeout), now_ns(), first_sleep()
                    self._can_ever(count)
                with nogil:
                    self.table.wait_ready(<uint32_t>count, slice_of(deadline, longest))
                PyErr_CheckSignals()
                longest = next_sleep(longest)
                if self.table.can_sample(<uint32_t>count) or self.table.closed():
                    continue
                if deadline >= 0 and now_ns() >= deadline:
                    raise EchoTimeoutError(f"sample() waited {timeout:g} s for a batch: {self.who_blocks_learner(count)}")
                if not told and now_ns() - began > PATIENCE_NS:
                    told = True
                    _log.warning("sample() has waited 5 s for a batch: %s", self.who_blocks_learner(count))
        finally:
            if batch != NULL:
                self.table.give_back(batch)

    cdef object wrap(self, Batch* batch, double beta):
        cdef BatchLease lease = BatchLease.__new__(BatchLease)
        self.table.retain()
        lease.table = self.table
        lease.batch = batch
        self.table.weigh(batch, beta)
        cdef ReplayInfo info = ReplayInfo.__new__(ReplayInfo)
        info.counters, info.table, info.lease = self.table.counters(), self.name, lease
        return drawn_sample(self.flattener.arrays(batch.leaf.data(), batch.n, lease), info, lease)

    def _can_ever(self, uint64_t n):
        reason = self.limiter.refusal(n, self.table.capacity(), bool(self.sampler.replacement))
        if reason:
            raise ValueError(f"table {self.name!r}: a batch of {n} can never be drawn: {reason}")

    cdef int catch_up(self) except -1:
        """Tell a Python sampler what happened; with the lock."""
        cdef size_t i = 0, start
        cdef size_t count
        self.table.take_log(&self.log)
        count = self.log.size()
        while i < count:
            start = i
            while i < count and self.log[i].inserted == self.log[start].inserted and \
                    (self.log[i].priority == self.log[i].priority) == (self.log[start].priority == self.log[start].priority):
                i += 1
            keys = np.empty(i - start, np.uint64)
            self.fill(keys, start)
            if not self.log[start].inserted:
                self.sampler.delete(keys)
            elif self.log[start].priority == self.log[start].priority:
                self.sampler.insert(keys, np.array([self.log[j].priority for j in range(start, i)]))
            else:
                self.sampler.insert(keys)
        return 0

    def fill(self, uint64_t[::1] keys, size_t start):
        cdef Py_ssize_t j
        for j in range(keys.shape[0]):
            keys[j] = self.log[start + j].row

    cdef int draw_through_python(self, Batch* batch) except -1:
        cdef uint32_t i, torn
        cdef int turn = 0
        cdef int answer = kClosed
        cdef bint replacement = self.sampler.replacement
        cdef bint held = False
        if not self.table.can_sample(<uint32_t>batch.n):
            return kClosed if self.table.closed() else kWait
        try:
            self.catch_up()
            if not self._draw(batch, 0, batch.n):
                return kWait
            answer = self.table.admit(batch, 0, <uint32_t>batch.n, False)
            while answer == kDrawn:
                with nogil:
                    torn = self.table.gather(batch)
                if torn == 0:
                    break
                turn += 1
                if turn == POLITE and not held:
                    held = True
                    self.table.hold(True)
                self.catch_up()
                if replacement:
                    for i in range(<uint32_t>batch.n):
                        if self.table.overwritten(batch, i):
                            if not self._draw(batch, i, 1):
                                return kNothing
                            answer = self.table.admit(batch, i, 1, True)
                else:
                    if not self._draw(batch, 0, batch.n):
                        return kNothing
                    answer = self.table.admit(batch, 0, <uint32_t>batch.n, True)
            return answer
        finally:
            if held:
                self.table.hold(False)
            self.table.finish(batch)

    cdef bint _draw(self, Batch* batch, uint32_t first, uint64_t n) except -1:
        cdef uint64_t[::1] rows
        cdef double[::1] probabilities
        cdef Py_ssize_t i
        if len(self.sampler) < (1 if self.sampler.replacement else n):
            return False
        drawn, chances = self.sampler.sample(n, self.rng)
        rows, probabilities = drawn, chances
        for i in range(<Py_ssize_t>n):
            if rows[i] >= self.table.capacity():
                raise EchoError(f"sampler {type(self.sampler).__name__} drew key {rows[i]}, which it was never given")
            batch.rows[first + i] = <uint32_t>rows[i]
            batch.probabilities[first + i] = probabilities[i]
        return True

    # ---- by key -----------------------------------------------------------------------------------------------------------

    def update_priorities(self, keys, priorities) -> int:
        """Give items new priorities; how many of them were gone.

        Args:
            keys: of `Sample.keys`, shape (n,). Of a key that occurs twice the last entry counts.
            priorities: shape (n,), finite and not negative.

        Raises:
            ValueError: a priority is negative, NaN or infinite, naming its key; nothing was updated.
        """
        self.opened()
        cdef const uint64_t[::1] k
        cdef const double[::1] p
        if _as_they_are(keys, priorities):
            checked, values = keys, priorities
        else:
            checked = check_keys(keys)
            values = check_priorities(priorities, checked)
        k, p = checked, values
        cdef size_t n = k.shape[0], kept = 0
        cdef uint64_t gone
        cdef uint32_t[::1] rows, index
        if n == 0:
            return 0
        if not self.python:
            with nogil:
                gone = self.table.update(&k[0], &p[0], n)
            return gone
        with self.lock:
            self.catch_up()
            found, where = np.empty(n, np.uint32), np.empty(n, np.uint32)
            rows, index = found, where
            kept = self.table.known_rows(&k[0], n, &rows[0], &index[0])
            if kept:
                self.sampler.update(found[:kept].astype(np.uint64), values[where[:kept]])
        return n - kept

    def delete(self, keys) -> int:
        """Remove items; how many of them were there."""
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

    def peek(self, keys):
        """Items by key, without counting as samples.

        Returns:
            `(batch, here)`: leaves of shape `(n, *leaf.shape)`, and a bool array of which keys were there. Rows of others are unspecified.
        """
        self.opened()
        checked = check_keys(keys)
        cdef const uint64_t[::1] k = checked
        cdef size_t n = checked.size
        cdef uint8_t[::1] flags
        cdef Batch* batch
        cdef BatchLease lease
        if n == 0:
            raise ValueError("peek() of no keys")
        here = np.empty(n, np.bool_)
        flags = here.view(np.uint8)
        lease = BatchLease.__new__(BatchLease)
        batch = self.table.take_batch(n)
        self.table.retain()
        lease.table, lease.batch = self.table, batch
        with nogil:
            self.table.find(&k[0], n, batch, &flags[0])
            self.table.gather_known(batch, &flags[0])
        return self.flattener.arrays(batch.leaf.data(), n, lease), here

    def update_items(self, keys, leaves):
        """Overwrite some leaves of items in place, by key (MuZero's reanalyse, refreshed recurrent states); the keys stay.

        Args:
            keys: shape (n,).
            leaves: `{path: array of shape (n, *leaf.shape)}`, paths as in `spec`.

        Returns:
            bool array of which keys were there. No batch has an item half changed.

        Raises:
            SpecError: no such leaf, or an array does not fit.
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
            array = np.ascontiguousarray(value)
            if array.dtype != leaf.dtype or array.shape != (n, *leaf.shape):
                raise SpecError(
                    f"leaf {path!r}: {n} items need {leaf.dtype} of shape {(n, *leaf.shape)}, not {array.dtype} of {array.shape}")
            if array.nbytes:
                view = array.reshape(-1).view(np.uint8)
                data[<size_t>index[path]] = <const char*>&view[0]
                keep.append((array, view))
        flags = here.view(np.uint8)
        with nogil:
            self.table.overwrite(&k[0], n, data.data(), &flags[0])
        return here

    def keys(self):
        """Keys of all items, oldest first: uint64 of shape (size,)."""
        return self._items(False)[0]

    def _items(self, bint with_priorities):
        cdef size_t most = self.opened().capacity(), n
        cdef uint64_t[::1] k
        cdef uint32_t[::1] r
        cdef double[::1] p
        keys, rows, priorities = np.empty(most, np.uint64), np.empty(most, np.uint32), np.empty(most if with_priorities else 1)
        k, r, p = keys, rows, priorities
        if with_priorities and self.python:
            raise EchoError(f"sampler {type(self.sampler).__name__} is written in Python and does not tell its priorities")
        with nogil:
            n = self.table.items(&k[0], &p[0] if with_priorities else NULL, &r[0], most)
        return keys[:n], rows[:n], priorities[:n] if with_priorities else None

    def top(self, k):
        """The k items of highest priority: `(keys, priorities)`, highest first, earlier ones first among equals."""
        keys, _, priorities = self._items(True)
        order = np.argsort(-priorities, kind="stable")[:k]
        return keys[order], priorities[order]

    def priority_histogram(self, bins=32):
        """`numpy.histogram` of all priorities: `(counts, edges)`."""
        return np.histogram(self._items(True)[2], bins)

    # ---- checkpoints: see checkpoint.py --------------------------------------------------------------------------------------

    def snapshot(self, most=64 << 20) -> dict:
        """The table at one moment: writers wait only while this is copied.

        Args:
            most: bytes of items that are copied with it; a larger table's are not, and its writers do not wait for them.

        Returns:
            `batch`: the items as a pytree, oldest first, or None;
            figures `inserts`, `samples`, `random` (the generator's state); arrays `keys` and `rows` of the items, oldest first,
            `generations`, `high` and `times` of every row; `sampler` and `remover`: their states.
        """
        cdef size_t capacity = self.opened().capacity()
        cdef uint32_t[::1] g, h, t
        arrays = [np.empty(capacity, np.uint32) for _ in range(3)]
        g, h, t = arrays
        with self.lock:
            with nogil:
                self.table.pause()
            try:
                if self.python:
                    self.catch_up()
                self.table.columns(&g[0], &h[0], &t[0])
                keys, rows, _ = self._items(False)
                counters = self.counters()
                batch = self.peek(keys)[0] if 0 < len(keys) * self.sample_bytes <= most else None
                return {
                    "batch": batch,
                    "inserts": counters["inserts"], "samples": counters["samples"], "random": self.rng.bit_generator.state,
                    "keys": keys.copy(), "rows": rows.copy(), "generations": arrays[0], "high": arrays[1], "times": arrays[2],
                    "sampler": self.sampler.state(), "below": self.below(rows),
                    "remover": {} if self.remover is None or self.remover is self.sampler else self.remover.state(),
                }
            finally:
                self.table.resume()

    def below(self, rows):
        """What a table has under its items, while it is paused: see `StepTable`."""

    def restore_snapshot(self, snapshot, leaves, gone) -> None:
        """Become what `snapshot()` told of; only of a new table.

        Args:
            leaves: for each leaf the items' bytes, shape `(n, *leaf.shape)`, in the snapshot's order without `gone`.
            gone: rows whose items were overwritten before their bytes were copied.
        """
        cdef uint32_t[::1] r, g, h, t
        cdef const uint8_t[::1] data
        cdef size_t i, n, size
        cdef uint32_t leaf
        if self.opened().counters().inserts:
            raise ValueError(f"table {self.name!r} was written to already; restore into a new one")
        rows = np.ascontiguousarray(snapshot["rows"][~np.isin(snapshot["rows"], gone)], np.uint32)
        columns = [np.ascontiguousarray(snapshot[name], np.uint32) for name in ("generations", "high", "times")]
        g, h, t = columns
        n = rows.size
        r = rows if n else np.zeros(1, np.uint32)
        with self.lock:
            with nogil:
                self.table.pause()
            try:
                for leaf in range(self.table.leaf_count()):
                    size = self.table.leaf_bytes(leaf)
                    if size == 0 or n == 0:
                        continue
                    data = leaves[leaf].reshape(-1).view(np.uint8)
                    for i in range(n):
                        memcpy(self.table.rows().at(leaf, r[i]), &data[i * size], size)
                self.sampler.restore(snapshot["sampler"])
                if len(gone):
                    self.sampler.delete(gone.astype(np.uint64))
                if self.remover is not None and self.remover is not self.sampler:
                    self.remover.restore(snapshot["remover"])
                    if len(gone):
                        self.remover.delete(gone.astype(np.uint64))
                self.rng.bit_generator.state = snapshot["random"]
                self.table.restore(&r[0], <uint32_t>n, &g[0], &h[0], &t[0], snapshot["inserts"], snapshot["samples"])
            finally:
                self.table.resume()

    # ---- who waits for whom -------------------------------------------------------------------------------------------------

    def who_blocks_writers(self) -> str:
        cdef TableCounters c = self.opened().counters()
        if self.table.limited(True, 1):
            return (f"table {self.name!r}: {self.limiter} lets nothing in after {c.inserts} inserts and {c.samples} samples "
                    f"({c.pending} inserts under way); the learner samples slower than the workers insert")
        return (f"table {self.name!r}: the row to go next is being written or gathered ({c.pending} inserts under way in "
                f"{self.table.capacity()} rows)")

    def who_blocks_learner(self, n=None) -> str:
        cdef TableCounters c = self.opened().counters()
        n = self.batch_size if n is None else n
        if self.table.limited(False, n):
            return (f"table {self.name!r}: {self.limiter} lets no batch of {n} out of {c.size} items after {c.inserts} inserts and "
                    f"{c.samples} samples ({c.connections} workers connected); the workers insert slower than the learner samples, "
                    f"or were not started")
        return f"table {self.name!r}: {c.size} items are there, a batch of {n} needs more ({c.connections} workers connected)"

    # ---- figures and doors ------------------------------------------------------------------------------------------------

    def __len__(self):
        return self.opened().counters().size

    @property
    def capacity(self) -> int:
        return self.opened().capacity()

    @property
    def closed(self) -> bool:
        return self.table == NULL or self.table.closed()

    @property
    def overhead_bytes(self) -> int:
        """Memory beside the items' own bytes and the sampler's."""
        return self.opened().counters().overhead_bytes

    def counters(self) -> dict:
        cdef TableCounters c = self.opened().counters()
        return {
            "size": c.size, "inserts": c.inserts, "samples": c.samples, "pending": c.pending, "deleted": c.deleted, "evicted": c.evicted,
            "push_blocked": c.push_blocked, "aborted": c.aborted, "leased": c.leased, "redrawn": c.redrawn, "updated": c.updated,
            "gone": c.gone, "drawn_batches": c.drawn_batches, "connections": c.connections, "queued": c.queued,
            "queue_depth_max": c.queue_depth_max,
        }

    def stats(self) -> dict:
        """Flat figures, and who is blocked by what: `blocked` is "", "inserts", "samples" or both."""
        out = self.counters()
        out["capacity"] = self.table.capacity()
        out["samples_per_insert"] = out["samples"] / out["inserts"] if out["inserts"] else 0.0
        inserting = self.table.limited(True, 1)
        sampling = self.table.limited(False, self.batch_size)
        out["blocked"] = "+".join([word for word, on in (("inserts", inserting), ("samples", sampling)) if on])
        return out

    def histograms(self) -> dict:
        return {"copy": snapshot(self.opened().copy.snapshot()), "ingest_round": snapshot(self.opened().ingest_round.snapshot())}

    def reset_histograms(self) -> None:
        """Start the latency histograms anew."""
        self.opened().copy.reset()
        self.table.ingest_round.reset()

    def count_workers(self, workers) -> None:
        (&self.opened().connections).store(<int64_t>workers)

    def native(self):
        """PyCapsule "echo_core.store" for the native door (include/echo_capi.h); it keeps the table's memory and its samplers alive."""
        self.opened()
        self.door.retain()
        try:
            return PyCapsule_New(self.door, "echo_core.store", release_capsule)
        except BaseException:
            self.door.release()
            raise

    def close(self) -> None:
        if self.table != NULL:
            self.table.close()

    def __repr__(self):
        return f"<ReplayTable {self.name!r} {len(self)}/{self.capacity} sampler={type(self.sampler).__name__}>"


cdef bint _as_they_are(object keys, object priorities) except -1:
    """Whether both are arrays of the right kind and good throughout: what the careful checks, which cost more than the update, would find."""
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
        good &= (p[i] >= 0) & (p[i] < INFINITY)
    return good


_U64, _F64 = np.dtype(np.uint64), np.dtype(np.float64)


cdef uint64_t _whole(object value, str name, uint64_t least, uint64_t most) except? 0:
    if not hasattr(type(value), "__index__") or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    return value


cdef double _exponent(object beta) except? -1:
    cdef double value = beta
    if not 0 <= value <= 1:
        raise ValueError(f"beta must be from 0 to 1, not {beta!r}")
    return value


def _new_priorities(priorities, Py_ssize_t count):
    values = np.ascontiguousarray(priorities, np.float64)
    if values.shape != (count,):
        raise ValueError(f"{count} samples need priorities of shape ({count},), not {values.shape}")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(f"priority {values[i]} of sample {i} must be finite and not negative; nothing was inserted")
    return values
