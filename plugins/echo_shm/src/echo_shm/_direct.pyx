# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The worker's end of the memory that it shares with the learner. This is either the learner's store, where samples are written to their final
place, or a lane of the worker's own (lane.hpp), from which the learner copies them.

While there is space, `Direct` takes a sample over within one call. In the store this is claim, copy and commit, with the atomics of
remote_writer.hpp. If it cannot (the store is full, no learner is connected, or earlier samples wait), it passes the sample to `slow`, the connection's
window, which keeps the order and waits. Small samples are copied with the GIL held, because to release it and take it again would cost more.
"""
import os
from queue import SimpleQueue

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp.vector cimport vector
from posix.unistd cimport close

from echo_core.store.door.capi cimport ECHO_CLOSED, ECHO_FULL, ECHO_OK, echo_batch_pointers, echo_leaf_pointers, echo_leaf_pointers_held, echo_run

from echo_core.base.errors import ClosedError, EchoError, ProtocolError

cdef enum:
    BUSY = 99             # a status of this module, beside echo_status
    FEW = 64              # the addresses of so many leaves fit on the stack
    GIL_BYTES = 32768     # copies larger than this are done without the GIL
    LABEL_BYTES = 16      # of one sample; see echo_core.wire.labels
    SLICE_NS = 2000000    # slice of a wait for space that other threads must be able to end early

BROKEN_LANE = "the numbers in this worker's lane are impossible, so nobody knows which of its samples the learner has copied"

cdef int generation = 0  # counts forks: a connection belongs to the process that made it


def _forked():
    global generation
    generation += 1


os.register_at_fork(after_in_child=_forked)


cdef const char* checked(bytes labels, Py_ssize_t count) except? NULL:
    if labels is None:
        return NULL
    if len(labels) != count * LABEL_BYTES:
        raise ValueError(f"the labels of {count} samples have {count * LABEL_BYTES} bytes, not {len(labels)}")
    return PyBytes_AS_STRING(labels)


cdef class Mapping:
    """This process's mapping of the learner's store; it is unmapped with the last reference."""

    def __cinit__(self, int lifeline):
        self.lifeline = lifeline

    def __dealloc__(self):
        if self.store != NULL:
            del self.store
        self.cut()

    cdef void cut(self) noexcept:
        if self.lifeline >= 0:
            close(self.lifeline)
            self.lifeline = -1


cdef class Lane:
    """This process's mapping of a lane; it is unmapped with the last reference."""

    def __dealloc__(self):
        del self.writer


cdef class Direct:
    """Puts samples into the learner's store, or into this worker's lane.

    Args:
        spec: of the samples.
        patience: seconds that `send` itself waits for space.

    Attributes:
        ready: whether samples may be put, which requires that no earlier sample waits.
        taken: how many were put that no window counts: those that had to wait are counted by the window.
        made: how many samples were made in place and committed. Neither `taken` nor `samples` counts them.
        samples: how many were put. Samples in the store are committed; samples in a lane are in flight until the learner has copied them.
        pumped: how many of them had to wait.
        blocked: how often the store was found full.
        revoked: how many claims were taken away because they were held for too long.
    """

    def __cinit__(self, object spec, double patience):
        for leaf in spec.leaves:
            self.leaf_bytes.push_back(leaf.nbytes)
        self.spec = spec
        self.sample_bytes = spec.sample_bytes
        self.count = self.leaf_bytes.size()
        self.slices = <int>(patience * 1e9 / SLICE_NS)
        self.generation = generation
        self.reservable = []
        self.left = 0, b"", False
        self.dropped = SimpleQueue()  # its `put` is reentrant: it may interrupt another `put` of the same thread

    def connect(self, slow, slow_batch, rest, give_up):
        """Set the functions that are called for samples `(sample, timeout, label)` and batches `(samples, timeout, labels)` that cannot be put at
        once, for the rest `(count, bytes, labels)` of a batch that was begun, and for a `(record, mapping)` whose claim the learner should take back. Held weakly."""
        self.slow, self.slow_batch, self.rest, self.give_up = slow, slow_batch, rest, give_up

    # ---- samples -----------------------------------------------------------------------------------------------------------

    def send(self, sample, timeout=None, bytes label=None):
        """See `echo_core.wire.transport.Connection.send`."""
        cdef const void* few[FEW]
        cdef vector[const void*] many
        cdef const void** leaves = few
        cdef list keep
        cdef uint64_t done = 0
        cdef int status = ECHO_CLOSED
        cdef bint held
        cdef const char* labels = NULL
        if label is not None:  # a call would look for an error after each sample without labels
            labels = checked(label, 1)
        if self.ready and self.generation == generation:
            if self.count > FEW:
                many.resize(self.count)
                leaves = many.data()
            # Another thread may enter this method while optree or numpy run Python code for this one.
            keep, self.spare = self.spare, None
            if keep is None:
                keep = []
            # Without the GIL, another thread could take an array out of the sample and free the memory that is being copied.
            held = self.sample_bytes > GIL_BYTES
            if held:
                echo_leaf_pointers_held(self.spec, sample, leaves, keep)
            else:
                echo_leaf_pointers(self.spec, sample, leaves, keep)
            status = self.put(leaves, 1, &done, labels, held)
            if status == BUSY or status == ECHO_FULL and self.slices:
                if not held:
                    keep.clear()
                    echo_leaf_pointers_held(self.spec, sample, leaves, keep)
                status = self.put_soon(leaves, 1, &done, labels, timeout)
            if keep:
                keep.clear()
            self.spare = keep
        if status != ECHO_OK:
            self.call(self.slow)(sample, timeout, label)

    def send_batch(self, samples, timeout=None, bytes labels=None):
        """See `echo_core.wire.transport.Connection.send_batch`."""
        cdef const void* few[FEW]
        cdef vector[const void*] many
        cdef const void** leaves = few
        cdef list keep = []
        cdef uint64_t done = 0
        cdef Py_ssize_t n, i
        cdef int status
        cdef const char* given
        if not self.ready or self.generation != generation:
            self.call(self.slow_batch)(samples, timeout, labels)
            return
        if self.count > FEW:
            many.resize(self.count)
            leaves = many.data()
        n = echo_batch_pointers(self.spec, samples, leaves, keep)
        if n == 0:
            return
        given = checked(labels, n)
        status = self.put(leaves, n, &done, given, True)
        if status == ECHO_FULL and self.slices:
            status = self.put_soon(leaves, n, &done, given, timeout)
        if status == ECHO_OK:
            return
        if done == 0:
            self.call(self.slow_batch)(samples, timeout, labels)
            return
        # A batch is taken as a whole or not at all: the rest of it must not wait for room in the window that might never come.
        parts = []
        for i in range(self.count):
            parts.append((<const char*>leaves[i] + done * self.leaf_bytes[i])[:(n - done) * self.leaf_bytes[i]])
        self.call(self.rest)(n - done, b"".join(parts), None if labels is None else labels[done * LABEL_BYTES:])

    def pump(self, const unsigned char[::1] data, uint64_t n, uint64_t row, bint labelled, double seconds):
        """Put the samples from number `row` on, of the `n` samples whose leaves lie one after another in `data`, and then their labels if they are
        `labelled`. Waits up to `seconds` for space.

        Returns how many were put; None if no store is mapped any more.
        """
        cdef vector[const void*] leaves
        cdef const unsigned char* at = NULL
        cdef uint64_t done = 0
        cdef uint32_t i
        cdef int status
        cdef const char* labels = NULL
        if data.shape[0]:
            at = &data[0]
        for i in range(self.leaf_bytes.size()):
            leaves.push_back(at + row * self.leaf_bytes[i])
            at += n * self.leaf_bytes[i]
        if labelled:
            labels = <const char*>at + row * LABEL_BYTES
        with nogil:
            self.lock.lock()
            status = self.pour(leaves.data(), n - row, &done, labels, False)
            if status == ECHO_FULL and done == 0:
                self.rest_for_space(<int64_t>(seconds * 1e9))
                status = self.pour(leaves.data(), n - row, &done, labels, False)
            self.pumped += done
            self.lock.unlock()
        return None if status == ECHO_CLOSED and done == 0 else done

    cdef bint here(self) noexcept:
        """Whether this is the process that made the connection, and not a child of it."""
        return self.generation == generation

    cdef int put(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, bint held) except -1:
        """ECHO_OK: all samples are committed; otherwise only the first `done` of them. BUSY: another thread is putting a sample, and this call cannot
        wait for it without the GIL, because the memory behind `leaves` is not `held`."""
        cdef int status
        if not self.lock.try_lock():
            if not held:
                return BUSY
            with nogil:
                self.lock.lock()
        if not self.ready:
            status = ECHO_CLOSED
        elif n * self.sample_bytes > GIL_BYTES:
            with nogil:
                status = self.pour(leaves, n, done, labels, True)
        else:
            status = self.pour(leaves, n, done, labels, True)
        if status == ECHO_FULL:
            self.blocked += 1
        self.lock.unlock()
        return status

    cdef int put_soon(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, object timeout) except -1:
        """The same, with a short wait for space."""
        cdef int status = ECHO_FULL, i, slices = self.slices + 1
        if timeout is not None and timeout * 1e9 < slices * <double>SLICE_NS:
            slices = <int>(timeout * 1e9 / SLICE_NS) + 1
        for i in range(slices):
            with nogil:
                self.lock.lock()
                status = self.pour(leaves, n, done, labels, True) if self.ready else ECHO_CLOSED
                if status == ECHO_FULL and self.rest_for_space(SLICE_NS):
                    status = self.pour(leaves, n, done, labels, True)
                self.lock.unlock()
            if status != ECHO_FULL:
                break
            if done[0] == 0:
                PyErr_CheckSignals()
        return status

    cdef int pour(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, bint counts) noexcept nogil:
        """Copy samples to the store or lane until all `n` are there; updates `done`. Call with `lock` held. `counts`: no window has counted them.
        Only samples of lanes have labels: no table lets workers write to its memory."""
        cdef echo_run run
        cdef uint32_t i
        cdef uint64_t size, before = done[0]
        cdef int status
        cdef Remote* store = self.store
        if self.lane != NULL:
            status = self.lane.put(leaves, n, done, labels)
            self.samples += done[0] - before
            self.taken += <int64_t>(done[0] - before) if counts else 0
            return status
        if store == NULL:
            return ECHO_CLOSED
        while done[0] < n:
            status = store.claim(self.record, <uint32_t>min(n - done[0], <uint64_t>0x7fffffff), &run)
            if status != ECHO_OK:
                return status
            for i in range(self.leaf_bytes.size()):
                size = self.leaf_bytes[i]
                memcpy(store.leaf(run, i), <const char*>leaves[i] + done[0] * size, size * run.count)
            if store.commit(self.record, run) == REVOKED:
                self.revoked += 1  # this process was stopped for a while, and others got its slots: try once more
                continue
            done[0] += run.count
            self.samples += run.count
            self.taken += <int64_t>run.count if counts else 0
        return ECHO_OK

    cdef bint rest_for_space(self, int64_t ns) noexcept nogil:
        """Wait for space. Call with `lock` held while a store or lane is mapped. Returns whether there may be space."""
        if self.lane != NULL:
            return self.lane.wait_room(ns)
        return self.store.wait_space(self.record, ns) == ECHO_OK

    cdef object call(self, object reference):
        function = reference()
        if function is None:
            raise ClosedError("this client was dropped; keep it for as long as you send")
        return function

    # ---- calls of the connection ----------------------------------------------------------------------------------------------

    def attach(self, int fd, int lifeline, list records):
        """Map the learner's store, and keep `lifeline` open while it is mapped. Raises MemoryError, ProtocolError."""
        cdef Mapping mapping = Mapping(lifeline)
        cdef uint64_t length = os.fstat(fd).st_size
        try:
            mapping.store = new Remote(fd, length, self.leaf_bytes)
        except MemoryError:
            raise MemoryError(
                f"this process cannot map the learner's store of {length:,} bytes; raise its limit of address space (ulimit -v)"
            ) from None
        except ValueError as error:
            raise ProtocolError(f"the learner's store is not laid out as this echo-shm expects ({error}); install the same version at both ends") from None
        with nogil:
            self.lock.lock()
        self.mapping, self.record, self.reservable = mapping, records[0], records[1:]
        self.store = mapping.store
        self.lock.unlock()

    def attach_lane(self, int fd, uint64_t rows, bint labels):
        """Map a lane of `rows` samples; `labels`: they may have labels. The samples of an earlier lane must have been taken back before. Raises MemoryError, ProtocolError."""
        cdef Lane lane = Lane()
        try:
            lane.writer = new LaneWriter(fd, self.leaf_bytes, rows, labels)
        except MemoryError:
            raise MemoryError(
                f"this process cannot map a lane of {os.fstat(fd).st_size:,} bytes; raise its limit of address space (ulimit -v)"
            ) from None
        except ValueError as error:
            raise ProtocolError(f"the learner's lane is not laid out as expected here ({error}); install the same echo-shm at both ends") from None
        with nogil:
            self.lock.lock()
        self.kept = lane
        self.lane = lane.writer
        self.lock.unlock()

    def under_way(self):
        """How many samples in the lane the learner has not copied yet, as far as this end knows."""
        return self.left[0] if self.kept is None else self.kept.writer.under_way()

    def wait_copied(self, double seconds):
        """Sleep until the learner has copied all samples that lie in the lane now, the time is over, or a signal comes."""
        cdef Lane lane = self.kept
        cdef uint64_t target
        cdef int64_t ns = <int64_t>(seconds * 1e9)
        if lane is not None:
            with nogil:
                target = lane.writer.written()
                lane.writer.wait_copied(target, ns)

    def drop_lane(self):
        """The connection has ended for good. Keep a copy of the samples that the learner has not copied: see `leftovers`."""
        if self.kept is not None:
            self.left = self.rest_of_lane()
            self.kept = None

    def leftovers(self):
        """The samples that lay in the lane when it was dropped, as `take_back` returns them."""
        if self.left[1] is None:
            raise ProtocolError(BROKEN_LANE)
        return self.left

    def take_back(self):
        """The samples in the lane that the learner has not copied: `(count, payload of a frame, whether it ends with their labels)`. The learner must
        have stopped before this call."""
        cdef tuple rest = self.rest_of_lane()
        if rest[1] is None:
            raise ProtocolError(BROKEN_LANE)
        self.kept = None
        self.samples -= <uint64_t>rest[0]
        self.taken -= <int64_t>rest[0]
        return rest

    cdef tuple rest_of_lane(self):
        cdef Lane lane = self.kept
        cdef uint64_t count
        if lane is None:
            return 0, b"", False
        count = lane.writer.under_way()
        if count > lane.writer.rows():
            return 0, None, False
        payload = bytearray(count * (self.sample_bytes + (LABEL_BYTES if lane.writer.labelled() else 0)))
        cdef unsigned char[::1] view = payload
        if len(payload):
            lane.writer.copy_rest(<char*>&view[0], count)
        return count, payload, lane.writer.labelled()

    def detach(self):
        """Put no further samples. Calls that had begun are finished when this returns."""
        cdef Mapping mapping
        cdef uint32_t record
        with nogil:
            self.lock.lock()
        self.ready = False
        self.store = NULL
        self.lane = NULL
        mapping, self.mapping, reservable, self.reservable = self.mapping, None, self.reservable, []
        self.lock.unlock()
        if mapping is not None:
            mapping.store.leave(self.record)
            for record in reservable:  # records that are in use leave when their reservation ends
                mapping.store.leave(record)

    def open(self, bint ready):
        """Say whether samples may be put."""
        if ready == self.ready:
            return  # checked without the lock, because the pump holds the lock while it waits
        with nogil:
            self.lock.lock()
        self.ready = ready and (self.store != NULL or self.lane != NULL)
        self.lock.unlock()

    def abandon(self):
        """Let go in a forked child: the mapping and all its records belong to the parent."""
        self.ready = False
        self.store = NULL
        self.lane = NULL  # it is not mapped in a child
        self.kept = None
        if self.mapping is not None:
            self.mapping.store = NULL
            self.mapping.cut()  # closes the child's copy, so that the learner sees when the parent ends

    def wait_space(self, double seconds):
        """Sleep until there may be space or the time is over; return at once if no store is mapped."""
        with nogil:
            self.lock.lock()
            if self.ready:
                self.rest_for_space(<int64_t>(seconds * 1e9))
            self.lock.unlock()
