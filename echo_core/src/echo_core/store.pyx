# cython: language_level=3, boundscheck=False, wraparound=False
"""The stream store as Python sees it: `submit` on one side, `sample` on the other, ring.hpp in between.

`Server` derives from `Store`, so that `server.submit` and `server.sample` are builtin methods: a Python call in between would cost
as much as the insert itself.
"""
import errno
import fcntl
import logging
import os

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.door cimport Door, open_door
from echo_core.inlet cimport Inlet, copy_in
from echo_core.replay_native cimport NEWEST, Labels
from echo_core.replay_table cimport ReplayTable
from echo_core.ring cimport Counters, Ring, echo_run, now_ns
from echo_core.sample cimport Lease, Sample, new_lease, new_sample, snapshot
from echo_core.waits cimport SLICE_NS, deadline_of, first_sleep, next_sleep, slice_of

from echo_core.errors import EchoTimeoutError, ForkError, LeaseError, UnknownTableError
from echo_core.waits import available_memory

_log = logging.getLogger("echo")

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int)

cdef extern from "tap.hpp" namespace "echo" nogil:
    uint64_t newest "echo::Tap::newest"(const Ring&, uint64_t, char**)

cdef enum:
    INLINE_LEAVES = 64          # samples with more leaves take their pointers from the heap

cdef int64_t PATIENCE_NS = 5_000_000_000  # a wait longer than this is logged, once


cdef Labels UNLABELLED
cdef int generation = 0  # of forks: a store belongs to the process of its birth


def _forked():
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


cdef void release_capsule(object capsule) noexcept:
    (<Door*>PyCapsule_GetPointer(capsule, "echo_core.store")).release()


def _huge_pages_free() -> int:
    with open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), 0)


def _memfd(size: int, huge_pages: bool) -> int:
    """A memfd of `size` bytes, all of them reserved now, whose size nobody can change any more."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0)
    try:
        fd = os.memfd_create("echo-store", flags)
    except OSError as error:
        raise OSError(error.errno, f"cannot make shared memory (memfd_create): {error.strerror}; a seccomp filter that forbids it must be relaxed") from None
    try:
        os.ftruncate(fd, size)
        # Without this a full machine would be a SIGBUS in whoever first touches a page, perhaps hours later.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EPERM, errno.EFBIG):
            raise
        what = "lower batch_size or num_buffers, or raise the container's memory limit"
        if huge_pages:
            what = f"{size >> 21:,} huge pages, of which {_huge_pages_free():,} are free; raise vm.nr_hugepages, or leave out huge_pages"
        elif error.errno == errno.EFBIG:
            what = "lower batch_size or num_buffers, or raise this process's limit of file sizes (ulimit -f), which counts for memory of this kind"
        raise MemoryError(f"the store needs {size:,} bytes of shared memory, which are not to be had: {error.strerror}; {what}") from None
    return fd


cdef class Store(Inlet):
    """Batch buffers that writers fill slot by slot and learners take whole; see docs/design/store.md."""

    def __cinit__(self):
        self.memory_fd = -1

    def __dealloc__(self):
        if self.ring != NULL:
            self.ring.close()
            self.ring.release()
        if self.door != NULL:
            self.door.release()
        if self.memory_fd >= 0:
            close_descriptor(self.memory_fd)

    cdef int open(self, object spec, object batch_size, object num_buffers, double lease_timeout, object memory) except -1:
        cdef vector[uint64_t] sizes
        cdef uint64_t spares = 0 if memory is None else memory.spares
        cdef uint64_t total
        if self.ring != NULL:
            raise RuntimeError("this store is open already")
        for name, value, most in (("batch_size", batch_size, (1 << 24) - 1), ("num_buffers", num_buffers, (1 << 12) - 1)):
            least = 2 if name == "num_buffers" else 1
            if not hasattr(type(value), "__index__") or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        if batch_size * num_buffers >= 1 << 32:
            raise ValueError(f"batch_size x num_buffers must stay below 2**32, not {batch_size} x {num_buffers}")
        for leaf in spec.leaves:
            sizes.push_back(leaf.nbytes)
        total = Ring.bytes(sizes, batch_size, num_buffers, spares, memory is not None)
        free = available_memory()
        if total > free:
            raise MemoryError(
                f"{num_buffers} buffers of {batch_size} samples of {spec.sample_bytes:,} bytes need {total:,} bytes; "
                f"{free:,} are available: lower batch_size or num_buffers"
            )
        if memory is not None:
            self.memory_fd = _memfd(total, memory.huge_pages)
            self.memory_bytes = total
        self.ring = new Ring(sizes, batch_size, num_buffers, spares, self.memory_fd)
        self.door = open_door(self.ring)
        self.tables = {}
        self.spec = spec
        self.flattener = spec.flattener
        self.leaves = len(spec.leaves)
        self.sample_bytes = spec.sample_bytes
        self.generation = generation
        self.lease_timeout_ns = <int64_t>(lease_timeout * 1e9) if lease_timeout < 1e9 else INT64_MAX
        return 0

    def _open_tables(self, tables, batch_size):
        """Be a server of replay tables: a dict of `ReplayTable` by name, the first of which is meant where none is named."""
        if self.ring != NULL or self.replay is not None:
            raise RuntimeError("this store is open already")
        self.tables = tables
        self.replay = next(iter(tables.values()))
        self.spec = self.replay.spec
        self.generation = generation

    cdef ReplayTable table_of(self, object name):
        """The table called `name`; None means the first."""
        if self.replay is None:
            if self.ring == NULL:
                self.refuse()
            raise ValueError("this server streams: it has no replay tables, no keys and no priorities; give it a replay sampler and a capacity")
        if name is None:
            return self.replay
        table = self.tables.get(name)
        if table is None:
            raise UnknownTableError(f"no table {name!r}; this server has {', '.join(map(repr, self.tables))}")
        return table

    def table(self, name=None):
        """The `ReplayTable` called `name`; None means the first.

        Raises:
            UnknownTableError: there is none of this name. ValueError: this server streams.
        """
        self._check_process()
        return self.table_of(name)

    def _open(self, spec, batch_size, num_buffers, lease_timeout, memory=None):
        """`memory`: a `StoreMemory` for a store that other processes write to; None: private memory."""
        self.open(spec, batch_size, num_buffers, lease_timeout, memory)

    cdef int refuse(self) except -1:
        """Say why this object cannot be used."""
        if self.ring == NULL and self.replay is None:
            raise RuntimeError("Server.__init__ was not called")
        raise ForkError(
            "this server was made before a fork and belongs to the parent process: what the child inserts or takes would never be seen "
            "there; make clients in the child, or start it with multiprocessing's 'spawn'"
        )

    cdef Ring* opened(self) except NULL:
        if self.ring == NULL:
            self.refuse()
        return self.ring

    def _check_process(self) -> None:
        if (self.ring == NULL and self.replay is None) or self.generation != generation:
            self.refuse()

    def _same_process(self) -> bool:
        return self.generation == generation

    # ---- writing ----------------------------------------------------------------------------------------------------------

    def submit(self, sample, timeout=30.0, table=None, priority=None, policy_version=None):
        """Insert one sample, from any thread of this process.

        Args:
            sample: a pytree that matches the spec.
            timeout: seconds to wait for space when every buffer is full; None waits for ever.
            table: name of a replay table; None is the first.
            priority: of the new item of a replay table; None lets the sampler choose.
            policy_version: of the policy that made it, see `ReplayTable.submit`.

        Returns:
            the item's key in a replay table (see `ReplayTable.submit`); None in a stream.

        Raises:
            SpecError: the sample does not match, naming the leaf; nothing was inserted.
            EchoTimeoutError: no space in time, saying who waits for whom; nothing was inserted.
            ClosedError: the server is closed.
        """
        if self.ring == NULL or self.generation != generation or table is not None or priority is not None or \
                policy_version is not None:
            self._check_process()
            return self.table_of(table).put(sample, timeout, priority, policy_version)
        self.put_one(sample, &UNLABELLED, timeout, "submit()")

    def submit_batch(self, samples, timeout=30.0, table=None, priorities=None, policy_version=None):
        """Insert N samples at once, as vectorised environments produce them.

        Args:
            samples: a pytree like the example whose leaves have one more leading axis: shape `(N, *leaf.shape)`, the same N for all.
            timeout: seconds to wait for space; None waits for ever.
            table, priorities, policy_version: as in `submit`, priorities of shape (N,).

        Returns:
            N; of a replay table the items' keys, uint64 of shape (N,). On EchoTimeoutError or ClosedError the error's `inserted` attribute says how many of them were inserted, from the front.

        Raises:
            SpecError, EchoTimeoutError, ClosedError: as `submit`.
        """
        if self.ring == NULL or self.generation != generation or table is not None or priorities is not None or \
                policy_version is not None:
            self._check_process()
            return self.table_of(table).submit_batch(samples, timeout, priorities, policy_version)
        return self.put_many(samples, None, None, NEWEST, timeout, "submit_batch()")

    cdef int check(self) except -1:
        if self.ring == NULL or self.generation != generation:
            self.refuse()
        return 0

    cdef size_t copy_now(self, const void** data, size_t done, size_t count, const Labels* labels, const echo_run* claimed):
        self.ring.writer.runs()
        return copy_in(self.ring, data, done, count, labels[0], claimed)

    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil:
        return self.ring.claim(wanted, run)

    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil:
        self.ring.writer.sleeps()
        return self.ring.wait_space(timeout_ns)

    cdef void spins(self) noexcept nogil:
        self.ring.writer.spins()
        self.ring.spin_for_space()

    cdef void runs(self) noexcept nogil:
        self.ring.writer.runs()

    cdef str blocked_writers(self):
        return self._who_blocks_writers()

    # ---- reading ----------------------------------------------------------------------------------------------------------

    def sample(self, timeout=None, *, table=None, n=None, beta=None):
        """The next batch: waits until `batch_size` samples are there.

        Args:
            timeout: seconds; None waits until there is one or the server is closed.
            table, n, beta: of replay tables, see `ReplayTable.sample`; table None is the first.

        Returns:
            `Sample(batch, info)`: the batch's arrays have shape `(batch_size, *leaf.shape)`, are writable and zero-copy, and stay
            valid for as long as anything refers to them. None once the server is closed and its last whole batch was taken.

        Raises:
            EchoTimeoutError: no batch in time, saying who waits for whom.
            LeaseError: batches still alive hold every buffer, so that no batch can ever come; raised when `timeout` or
                `lease_timeout` has passed, whichever is first.
        """
        cdef char* inline_data[INLINE_LEAVES]
        cdef vector[char*] heap_data
        cdef char** data = inline_data
        cdef uint32_t i
        cdef Lease lease
        cdef int buffer
        if self.ring == NULL or self.generation != generation or table is not None or n is not None or beta is not None:
            self._check_process()
            return self.table_of(table).draw(n, timeout, beta)
        buffer = self.ring.take()
        if buffer < 0:
            buffer = self.wait_batch(timeout)
            if buffer < 0:
                return None
        lease = new_lease(self.ring, buffer)
        if self._tap_wish is not None:
            self.grant(buffer)
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        for i in range(self.leaves):
            data[i] = self.ring.batch_leaf(buffer, i)
        return new_sample(self.ring, self.flattener.arrays(data, self.ring.batch_size(), lease))

    def update_priorities(self, keys, priorities, table=None) -> int:
        """Give items of a replay table new priorities; how many of them were gone. See `ReplayTable.update_priorities`."""
        self._check_process()
        return self.table_of(table).update_priorities(keys, priorities)

    def ack(self, keys, table=None) -> int:
        """Say that items of a table with `lease_timeout` were worked on; how many were on loan. See `ReplayTable.ack`."""
        self._check_process()
        return self.table_of(table).ack(keys)

    cdef int wait_batch(self, object timeout) except -2:
        """A batch's buffer, or -1 once closed."""
        cdef int64_t deadline = deadline_of(timeout), began = now_ns(), hoarded_since = -1, now
        cdef int64_t most = min(<int64_t>SLICE_NS, max(self.lease_timeout_ns // 4, 1000000)), longest = min(first_sleep(), most)
        cdef int buffer
        cdef bint closed, told = False
        self.ring.learner.spins()
        with nogil:
            self.ring.spin_for_batch()
        while True:
            with nogil:
                # Closed before looked: what was committed before the close is still handed out.
                closed = self.ring.closed()
                buffer = self.ring.take()
                if buffer < 0 and not closed:
                    self.ring.learner.sleeps()
                    self.ring.wait_ready(slice_of(deadline, longest))
                    buffer = self.ring.take()
                self.ring.learner.runs()
            if buffer >= 0 or closed:
                return buffer
            PyErr_CheckSignals()
            longest = min(2 * longest, most)
            now = now_ns()
            if self.ring.leased() < self.ring.buffers():
                hoarded_since = -1
            elif hoarded_since < 0:
                hoarded_since = now
            if hoarded_since >= 0 and (now - hoarded_since >= self.lease_timeout_ns or (deadline >= 0 and now >= deadline)):
                raise LeaseError(
                    f"all {self.ring.buffers()} batch buffers are held by batches still alive, so that no new batch can come; "
                    f"drop batches you no longer need, keep copies (dataset_iter(copy=True), numpy.copy), or give the server more "
                    f"num_buffers than the batches you hold at once"
                )
            if deadline >= 0 and now >= deadline:
                raise EchoTimeoutError(f"sample() waited {timeout:g} s for a batch: {self._who_blocks_learner()}")
            if not told and now - began > PATIENCE_NS:
                told = True
                _log.warning("sample() has waited 5 s for a batch: %s", self._who_blocks_learner())

    # ---- looks from outside: see tap.py ---------------------------------------------------------------------------------------

    def _newest(self, Py_ssize_t most):
        """Copies of up to `most` of the newest committed samples that are in the store, oldest first: `(n, [bytes of each leaf])`."""
        cdef Ring* ring = self.opened()
        cdef vector[char*] to
        cdef uint64_t n
        cdef uint32_t i
        cdef list leaves = []
        for i in range(self.leaves):
            leaves.append(PyBytes_FromStringAndSize(NULL, most * <Py_ssize_t>ring.leaf_bytes(i)))
            to.push_back(PyBytes_AS_STRING(leaves[i]))
        with nogil:
            n = newest(ring[0], <uint64_t>most, to.data())
        return n, [leaf[(most - <Py_ssize_t>n) * <Py_ssize_t>ring.leaf_bytes(i):] for i, leaf in enumerate(leaves)]

    cdef int grant(self, int buffer) except -1:
        """Give the wish of `_tap_wish` the newest samples of a batch that its learner has not seen yet."""
        cdef Py_ssize_t batch = <Py_ssize_t>self.ring.batch_size(), n, size
        cdef uint32_t i
        wish, self._tap_wish = self._tap_wish, None
        n = min(<Py_ssize_t>wish.most, batch)
        leaves = []
        try:
            for i in range(self.leaves):
                size = <Py_ssize_t>self.ring.leaf_bytes(i)
                leaves.append(PyBytes_FromStringAndSize(self.ring.batch_leaf(buffer, i) + (batch - n) * size, n * size))
        except MemoryError:
            return 0  # the learner must not miss its batch for it
        wish.granted = (n, leaves)
        return 0

    def _who_blocks_writers(self) -> str:
        cdef Counters c = self.ring.counters()
        cdef uint64_t buffers = self.ring.buffers()
        if c.leased == buffers:
            return f"all {buffers} batch buffers are leased to batches the learner still holds"
        return (f"{c.stored} samples wait in {buffers - c.leased} of {buffers} batch buffers for the learner to call sample() "
                f"({c.leased} leased); the learner is slower than the writers; take batches faster, or wait longer (timeout=)")

    def _who_blocks_learner(self) -> str:
        if self.replay is not None:
            return self.replay.who_blocks_learner()
        cdef Counters c = self.ring.counters()
        if c.stored >= self.ring.batch_size():
            return f"{c.stored} samples are there, and the earliest batch misses one that a writer has claimed and not committed yet"
        return (f"{c.stored} of {self.ring.batch_size()} samples are there, {c.connections} workers connected, "
                f"{c.inserted} samples inserted so far; the workers are slower than the learner, or not started; start more of them, or wait longer (timeout=)")

    # ---- figures and doors ------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether the store takes no more samples."""
        if self.replay is not None:
            return self.replay.closed
        return self.ring == NULL or self.ring.closed()

    @property
    def batch_size(self) -> int:
        if self.replay is not None:
            return self.replay.batch_size
        return self.opened().batch_size()

    @property
    def num_buffers(self) -> int:
        if self.replay is not None:
            return 0
        return self.opened().buffers()

    def _close_store(self):
        if self.replay is not None:
            for table in self.tables.values():
                table.close()
        if self.ring != NULL:
            self.ring.close()

    def _count_workers(self, workers: int) -> None:
        if self.replay is not None:
            for table in self.tables.values():
                table.count_workers(workers)
            return
        (&self.opened().connections).store(<int64_t>workers)

    def _counters(self) -> dict:
        if self.replay is not None:
            return _sum_of_tables(self.tables.values())
        cdef Counters c = self.opened().counters()
        return {
            "inserted": c.inserted, "stored": c.stored, "batches_taken": c.batches_taken, "push_blocked": c.push_blocked,
            "notified": c.notified, "aborted": c.aborted, "leased": c.leased, "connections": c.connections, "queued": c.queued,
            "queue_depth_max": c.queue_depth_max,
        }

    def _histograms(self) -> dict:
        if self.replay is not None:
            return self.replay.histograms()
        cdef Ring* ring = self.opened()
        return {
            "queue_dwell": snapshot(ring.queue_dwell.snapshot()),
            "copy": snapshot(ring.copy.snapshot()),
            "ingest_round": snapshot(ring.ingest_round.snapshot()),
        }

    def reset_histograms(self) -> None:
        """Start the three latency histograms anew; counters stay as they are."""
        if self.replay is not None:
            for table in self.tables.values():
                table.reset_histograms()
            return
        cdef Ring* ring = self.opened()
        ring.queue_dwell.reset()
        ring.copy.reset()
        ring.ingest_round.reset()

    def _native(self):
        """PyCapsule "echo_core.store" for the native door (include/echo_capi.h); it keeps the store's memory alive."""
        if self.replay is not None:
            return self.replay.native()
        cdef Door* door = open_door(self.opened())
        try:
            return PyCapsule_New(door, "echo_core.store", release_capsule)
        except BaseException:
            door.release()
            raise


def _sum_of_tables(tables):
    """The counters of a stream, of all replay tables together."""
    names = {
        "inserted": "inserts", "stored": "size", "batches_taken": "drawn_batches", "push_blocked": "push_blocked", "aborted": "aborted",
        "leased": "leased", "queued": "queued",
    }
    counters = [table.counters() for table in tables]
    total = {name: sum(c[key] for c in counters) for name, key in names.items()}
    total["notified"] = 0
    total["connections"] = max(c["connections"] for c in counters)
    total["queue_depth_max"] = max(c["queue_depth_max"] for c in counters)
    return total
