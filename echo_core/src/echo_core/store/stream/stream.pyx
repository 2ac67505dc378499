# cython: language_level=3, boundscheck=False, wraparound=False
"""The stream, a storage: writers fill batch buffers slot by slot, and a learner takes batches as a whole. This is the Python side of ring.hpp."""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t, uintptr_t
from libcpp.vector cimport vector

from echo_core.store.door.door cimport Door, open_door
from echo_core.store.local_insert cimport LocalInsert, copy_in, page_lock
from echo_core.spec.sample_labels cimport NEWEST, Labels
from echo_core.store.stream.ring cimport Counters, Ring
from echo_core.store.door.echo_run cimport ECHO_TIMEOUT, echo_run
from echo_core.store.wait.clock cimport now_ns
from echo_core.store.sample cimport StreamLease, new_sample, snapshot, stream_lease
from echo_core.store.wait.patience cimport SLICE_NS, Patience

from echo_core.base.errors import ForkError, LeaseError
from echo_core.base.memory import memfd
from echo_core.base.memory.promised import unpromised_memory
from echo_core.base.plural import counted

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int)

cdef extern from "store/stream/tap.hpp" namespace "echo" nogil:
    uint64_t newest "echo::Tap::newest"(const Ring&, uint64_t, char**)

cdef enum:
    INLINE_LEAVES = 64          # samples with more leaves keep their pointers on the heap

cdef Labels UNLABELLED
NO_TABLES = "this server streams: it has no replay tables, no keys and no priorities; give it a replay sampler and a capacity"
SLOW = "samples are inserted slower than they are taken; insert them faster, or wait longer (timeout=)"

cdef void release_capsule(object capsule) noexcept:
    (<Door*>PyCapsule_GetPointer(capsule, "echo_core.store")).release()


cdef class Stream(LocalInsert):
    """The storage of a server without replay tables: a ring of batch buffers, with its memory and its figures.

    Args:
        spec: the `Spec` of its samples.
        batch_size, num_buffers, lease_timeout: see `Server`.
        memory: a `StoreMemory` if other processes write to the stream; None for private memory.

    Raises:
        ValueError: batch_size or num_buffers is out of range. MemoryError: the buffers do not fit into memory.
    """

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

    def __init__(self, spec, batch_size, num_buffers, double lease_timeout=10.0, memory=None):
        if self.ring != NULL:
            raise RuntimeError("this stream is open already")
        self.open(spec, batch_size, num_buffers, lease_timeout, memory)

    cdef int open(self, object spec, object batch_size, object num_buffers, double lease_timeout, object memory) except -1:
        cdef vector[uint64_t] sizes
        cdef uint64_t spares = 0 if memory is None else memory.spares
        cdef uint64_t total
        for name, value, most in (("batch_size", batch_size, (1 << 24) - 1), ("num_buffers", num_buffers, (1 << 12) - 1)):
            least = 2 if name == "num_buffers" else 1
            if not hasattr(type(value), "__index__") or isinstance(value, bool) or not least <= value <= most:
                raise ValueError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
        if batch_size * num_buffers >= 1 << 32:
            raise ValueError(f"batch_size x num_buffers must stay below 2**32, not {batch_size} x {num_buffers}")
        for leaf in spec.leaves:
            sizes.push_back(leaf.nbytes)
        total = Ring.bytes(sizes, batch_size, num_buffers, spares, memory is not None)
        free = unpromised_memory()
        if total > free:
            raise MemoryError(
                f"{num_buffers} buffers of {batch_size} samples of {spec.sample_bytes:,} bytes need {total:,} bytes; "
                f"{free:,} are available: lower batch_size or num_buffers"
            )
        if memory is not None:
            self.memory_fd = memfd.make(total, memory.huge_pages)
            self.memory_bytes = total
        try:
            self.ring = new Ring(sizes, batch_size, num_buffers, spares, self.memory_fd)
        except MemoryError:
            raise MemoryError(
                f"{num_buffers} buffers of {batch_size} samples need {total:,} bytes, which this process may not have: "
                f"lower batch_size or num_buffers, or raise `ulimit -v`"
            ) from None
        self.door = open_door(self.ring)
        self.spec = spec
        self.flattener = spec.flattener
        self.leaves = len(spec.leaves)
        self.sample_bytes = spec.sample_bytes
        self.lease_timeout_ns = <int64_t>(lease_timeout * 1e9) if lease_timeout < 1e9 else INT64_MAX
        return 0

    def lock_pages(self, place) -> None:
        """Page-lock the store's memory, in a `cuda.Place`. Raises CudaError."""
        cdef int status = self.opened().lock_pages(page_lock(place))
        if status != 0:
            raise place.driver.error("cuMemHostRegister", status)

    cdef Ring* opened(self) except NULL:
        if self.ring == NULL:
            raise RuntimeError("Stream.__init__ was not called")
        return self.ring

    @property
    def batch_size(self) -> int:
        return self.opened().batch_size()

    @property
    def num_buffers(self) -> int:
        return self.opened().buffers()

    @property
    def capacity(self) -> int:
        return self.opened().batch_size() * self.ring.buffers()

    @property
    def closed(self) -> bool:
        return self.ring == NULL or self.ring.closed()

    def close(self) -> None:
        if self.ring != NULL:
            self.ring.close()

    def count_workers(self, workers) -> None:
        (&self.opened().connections).store(<int64_t>workers)

    def why_no_table(self) -> str:
        return NO_TABLES

    # ---- writing -----------------------------------------------------------------------------------------------------------

    cdef object put(self, object sample, object timeout, object priority, object policy_version):
        if priority is not None or policy_version is not None:
            raise ValueError(self.why_no_table())
        self.put_one(sample, &UNLABELLED, timeout, "submit()")

    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version):
        if priorities is not None or policy_version is not None:
            raise ValueError(self.why_no_table())
        return self.put_many(samples, None, None, NEWEST, timeout, "submit_batch()")

    cdef int check(self) except -1:
        self.opened()
        if not self.here():
            raise ForkError(
                "this stream was made before a fork and belongs to the parent process; make clients in the child, or start it with "
                "multiprocessing's 'spawn'")
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


    # ---- reading -----------------------------------------------------------------------------------------------------------

    cpdef object draw(self, object n=None, object timeout=None, object beta=None, uint64_t borrower=0):
        if n is not None or beta is not None or borrower:
            raise ValueError(self.why_no_table())
        return self.next_batch(timeout)

    cdef object next_batch(self, object timeout):
        """Returns the next batch as a `Sample`, or None once the stream is closed. See `Store.sample`."""
        cdef char* inline_data[INLINE_LEAVES]
        cdef vector[char*] heap_data
        cdef char** data = inline_data
        cdef uint32_t i
        cdef StreamLease lease
        cdef int buffer = self.ring.take()
        if buffer < 0:
            buffer = self.wait_batch(timeout)
            if buffer < 0:
                return None
        lease = stream_lease(self.ring, buffer)
        if self._tap_wish is not None:
            self.grant(buffer)
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        for i in range(self.leaves):
            data[i] = self.ring.batch_leaf(buffer, i)
        return new_sample(self.ring, self.flattener.arrays(data, self.ring.batch_size(), lease))

    cdef int wait_batch(self, object timeout) except -2:
        """Returns a batch's buffer, or -1 once the stream is closed."""
        cdef Patience patience = Patience(timeout)
        cdef int64_t hoarded_since = -1, now
        cdef int64_t most = min(<int64_t>SLICE_NS, max(self.lease_timeout_ns // 4, 1000000))
        cdef int buffer
        cdef bint closed, due
        patience.longest = min(patience.longest, most)
        self.ring.learner.spins()
        with nogil:
            self.ring.spin_for_batch()
        while True:
            with nogil:
                # Read `closed` before looking for a batch: samples that were committed before the close are still handed out.
                closed = self.ring.closed()
                buffer = self.ring.take()
                if buffer < 0 and not closed:
                    self.ring.learner.sleeps()
                    self.ring.wait_ready(patience.slice())
                    buffer = self.ring.take()
                self.ring.learner.runs()
            if buffer >= 0 or closed:
                return buffer
            due = patience.turn()
            patience.longest = min(patience.longest, most)
            now = now_ns()
            if self.ring.leased() < self.ring.buffers():
                hoarded_since = -1
            elif hoarded_since < 0:
                hoarded_since = now
            if hoarded_since >= 0 and (now - hoarded_since >= self.lease_timeout_ns or (patience.deadline >= 0 and now >= patience.deadline)):
                raise LeaseError(
                    f"all {self.ring.buffers()} batch buffers are held by batches still alive, so that no new batch can come; "
                    f"drop batches you no longer need, keep copies (dataset_iter(copy=True), numpy.copy), or give the server more "
                    f"num_buffers than the batches you hold at once"
                )
            if due:
                patience.report("sample()", "a batch", self.who_blocks_learner())

    # ---- observers: see server/tap.py --------------------------------------------------------------------------------------

    def look(self, Py_ssize_t most):
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
        return n, [leaf[(most - <Py_ssize_t>n) * <Py_ssize_t>ring.leaf_bytes(i):] for i, leaf in enumerate(leaves)], None

    def wish(self, wish) -> bool:
        self._tap_wish = wish
        return True

    cdef int grant(self, int buffer) except -1:
        """Give the observer behind `_tap_wish` the newest samples of a batch that its learner has not seen yet."""
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
            return 0  # the learner must get its batch all the same
        wish.granted = (n, leaves)
        return 0

    # ---- who waits for whom ------------------------------------------------------------------------------------------------

    def why_full(self) -> str:
        """Return why no sample can be inserted now; "" if one can."""
        cdef Ring* ring = self.opened()
        cdef bint full
        with nogil:
            full = ring.wait_space(0) == ECHO_TIMEOUT
        return self.blocked_writers() if full else ""

    cdef str blocked_writers(self):
        cdef Counters c = self.opened().counters()
        cdef uint64_t buffers = self.ring.buffers()
        if c.leased == buffers:
            return (f"all {buffers} batch buffers are leased to batches the learner still holds, so that no sample can be stored; the learner "
                    f"must drop earlier batches, or get a larger num_buffers")
        return (f"{counted(c.stored, 'sample')} {'waits' if c.stored == 1 else 'wait'} in {buffers - c.leased} of {buffers} batch buffers for the learner to call sample() "
                f"({c.leased} leased); the learner is slower than the writers; take batches faster, or wait longer (timeout=)")

    def who_blocks_learner(self, n=None) -> str:
        waits = "" if self.who_waits is None else self.who_waits()
        return f"{self.blocked_learner()} [{waits}]" if waits else self.blocked_learner()

    cdef str blocked_learner(self):
        cdef Counters c = self.opened().counters()
        cdef uint64_t buffers = self.ring.buffers()
        if c.leased == buffers:
            return (f"all {buffers} batch buffers are leased to batches the learner still holds, so that no batch can be filled; drop earlier "
                    f"batches, or raise num_buffers")
        if c.stored >= self.ring.batch_size():
            return (f"samples there: {c.stored}, but the earliest batch misses one: its slot was claimed and is not committed yet, "
                    f"or it was given back and the next sample will fill it")
        why = SLOW if self.why_no_samples is None else self.why_no_samples()
        return f"samples there: {c.stored} of {self.ring.batch_size()}, samples inserted so far: {c.inserted}; {why}"

    # ---- figures and the native interface ----------------------------------------------------------------------------------

    def store_counters(self) -> dict:
        cdef Counters c = self.opened().counters()
        return {
            "inserted": c.inserted, "stored": c.stored, "batches_taken": c.batches_taken, "batches_out_of_order": c.batches_out_of_order,
            "push_blocked": c.push_blocked, "notified": c.notified, "aborted": c.aborted, "leased": c.leased, "connections": c.connections,
            "queued": c.queued, "queue_depth_max": c.queue_depth_max,
        }

    def histograms(self) -> dict:
        cdef Ring* ring = self.opened()
        return {
            "queue_dwell": snapshot(ring.queue_dwell.snapshot()),
            "copy": snapshot(ring.copy.snapshot()),
            "ingest_round": snapshot(ring.ingest_round.snapshot()),
        }

    def reset_histograms(self) -> None:
        cdef Ring* ring = self.opened()
        ring.queue_dwell.reset()
        ring.copy.reset()
        ring.ingest_round.reset()

    def shared_memory(self):
        return None if self.memory_fd < 0 else (self.memory_fd, self.memory_bytes, <uintptr_t>self.ring.base())

    def native(self, labelled=False):
        if labelled:
            raise ValueError(self.why_no_table())
        cdef Door* door = open_door(self.opened())
        try:
            return PyCapsule_New(door, "echo_core.store", release_capsule)
        except BaseException:
            door.release()
            raise
