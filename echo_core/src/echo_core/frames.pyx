# cython: language_level=3, boundscheck=False, wraparound=False
"""Frames of samples at the speed of memory: gathered on the worker's side, scattered into slots on the learner's.

The payload of a DATA frame holds for each leaf its samples one after another. What is here makes and takes such payloads without
touching a sample from Python, for every transport that speaks `echo_core.wire` (see `echo_core.channel`).
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy
from libcpp.vector cimport vector

from echo_core.capi cimport ECHO_CAPI_VERSION, ECHO_CLOSED, ECHO_OK, echo_capi, echo_run, echo_store, echo_store_of, echo_table
from echo_core.pytree cimport GIL_BYTES, Flattener

from echo_core.errors import ClosedError

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    FEW = 64                # leaves whose addresses fit on the stack
    SPARE_CHUNKS = 2        # kept for the next samples: fresh memory costs a page fault for every 4 KiB

#: Samples up to so many bytes are gathered; larger ones fill a frame by themselves.
SMALL = 32768


cdef class Chunk:
    """Samples as they were given to `Gatherer.take`, leaf by leaf: as a frame has them, but for the room between the leaves.

    Its memory lies still for as long as anybody holds one of its `columns`.
    """

    cdef char* data
    cdef bytes block         # where `data` lies, if there is room in front of it
    cdef Gatherer gatherer   # to give the memory back to; once collected, so that the two are no cycle
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t copying  # of these, how many are not here yet

    def __dealloc__(self):
        if self.data != NULL and self.block is None:
            if self.gatherer is not None and self.gatherer.spares.size() < SPARE_CHUNKS:
                self.gatherer.spares.push_back(self.data)
            else:
                PyMem_RawFree(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.gatherer.size, 1, flags)

    def columns(self) -> list[memoryview]:
        """The payload of a DATA frame in pieces, nothing copied: for each leaf with any bytes, its samples one after another."""
        cdef Gatherer gatherer = self.gatherer
        cdef Py_ssize_t leaf, start
        cdef list out = []
        whole = memoryview(self)
        for leaf in range(gatherer.flattener.count):
            start = gatherer.starts[leaf]
            if gatherer.flattener.leaf[leaf].nbytes:
                out.append(whole[start:start + self.count * gatherer.flattener.leaf[leaf].nbytes])
        return out

    def framed(self, bytes head) -> bytes | None:
        """`head` and the payload in one piece, nothing copied; None if there is no room of `len(head)` in front, or the chunk is not full.

        Nothing but `head` may ever stand in front of these samples: whoever was given the piece before has the same memory.
        """
        cdef Gatherer gatherer = self.gatherer
        if self.block is None or self.count != gatherer.room or len(head) != gatherer.head:
            return None
        memcpy(PyBytes_AS_STRING(self.block), PyBytes_AS_STRING(head), gatherer.head)
        return self.block

    def payload(self) -> bytes:
        """The same in one piece."""
        cdef Flattener flattener = self.gatherer.flattener
        cdef Py_ssize_t leaf, size
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.count * flattener.sample_bytes)
        cdef char* to = PyBytes_AS_STRING(out)
        with nogil:
            for leaf in range(flattener.count):
                size = self.count * flattener.leaf[leaf].nbytes
                memcpy(to, self.data + self.gatherer.starts[leaf], size)
                to += size
        return out


@cython.final
cdef class Gatherer:
    """Takes small samples over, one call each, until somebody collects them for a frame.

    Every method is one step as other threads see it: none gives the GIL away between looking and changing. A large sample is copied
    without the GIL, into a row that is its own by then; its chunk is not handed out before.

    Args:
        flattener: of the spec.
        chunk_bytes: samples are kept in pieces of at most so many bytes, one frame each.
        most: samples of a piece.
        head: bytes that are kept free in front of a piece, for `Chunk.framed`.

    Attributes:
        taken: how many samples were taken over; `note` counts those that go another way.
        limit: `take` declines from this number on, and always when it is -1.
        idle: set by whoever would wait for samples: the next `take` clears it and says so.
    """

    cdef Flattener flattener
    cdef readonly Py_ssize_t room       # samples of a chunk
    cdef readonly int64_t taken
    cdef public int64_t limit
    cdef public bint idle
    cdef Chunk open_chunk
    cdef list full
    cdef vector[char*] spares
    cdef vector[Py_ssize_t] starts      # of each leaf in a chunk
    cdef Py_ssize_t size                # of a chunk
    cdef Py_ssize_t head                # in front of it
    cdef bint large                     # samples are copied without the GIL

    def __cinit__(self, Flattener flattener, Py_ssize_t chunk_bytes, Py_ssize_t most, Py_ssize_t head=0):
        cdef Py_ssize_t leaf, size
        self.flattener = flattener
        self.head = head
        self.room = max(1, min(chunk_bytes // max(1, flattener.sample_bytes), most))
        # Leaves that began at the same offset modulo 4 KiB would throw each other out of the cache. Where nothing may lie between them,
        # it is their number that keeps them apart: 157 times 1, 2, 4, ... bytes is far from a multiple of 4 KiB.
        if head and self.room > 512:
            self.room -= (self.room - 157) % 256
        self.full = []
        for leaf in range(flattener.count):
            self.starts.push_back(self.size)
            size = self.room * flattener.leaf[leaf].nbytes
            self.size += size if head else (size + 127) // 64 * 64
        self.large = flattener.sample_bytes > GIL_BYTES

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.spares.size()):
            PyMem_RawFree(self.spares[i])

    def take(self, sample) -> int:
        """Copy `sample`, checked by leaf: 0 it was declined (no room), 1 taken, 2 taken and somebody waits for it. Raises SpecError."""
        cdef const void* few[FEW]
        cdef const void** out = few
        cdef Py_ssize_t row
        cdef Chunk chunk, fresh
        cdef list keep
        if self.flattener.count > FEW:
            out = <const void**>PyMem_Calloc(self.flattener.count, sizeof(void*))
            if out == NULL:
                raise MemoryError()
        keep = []
        try:
            while True:
                if self.taken >= self.limit:
                    return 0
                if self.open_chunk is None:
                    fresh = self.new_chunk()
                    if self.open_chunk is None:  # up to Python 3.11 making it may run the garbage collector, and with it another thread
                        self.open_chunk = fresh
                if self.large:
                    self.flattener.pointers_held(sample, out, keep)
                else:
                    self.flattener.pointers(sample, out, keep)
                # Other threads ran meanwhile if a leaf had to be converted. From here on none does, so `out` stays good.
                chunk = self.open_chunk
                if chunk is not None and self.taken < self.limit:
                    break
            row = chunk.count
            if row + 1 == self.room:
                self.full.append(chunk)
                self.open_chunk = None
            chunk.count += 1
            self.taken += 1
            if self.large:
                chunk.copying += 1
                with nogil:
                    self.copy(chunk, row, out)
                chunk.copying -= 1
            else:
                self.copy(chunk, row, out)
        finally:
            if out != few:
                PyMem_Free(out)
        if row + 1 == self.room:
            # Whoever sends the chunk may wait for this core, which a worker that only makes samples would keep for milliseconds.
            with nogil:
                sched_yield()
        if self.idle:
            self.idle = False
            return 2
        return 1

    cdef inline void copy(self, Chunk chunk, Py_ssize_t row, const void** out) noexcept nogil:
        cdef Py_ssize_t i, size
        for i in range(self.flattener.count):
            size = self.flattener.leaf[i].nbytes
            memcpy(chunk.data + self.starts[i] + row * size, out[i], size)

    cdef Chunk new_chunk(self):
        cdef Chunk chunk = Chunk.__new__(Chunk)
        if self.head:
            chunk.block = PyBytes_FromStringAndSize(NULL, self.head + self.size)
            chunk.data = PyBytes_AS_STRING(chunk.block) + self.head
        elif self.spares.size():
            chunk.data = self.spares.back()
            self.spares.pop_back()
        else:
            chunk.data = <char*>PyMem_RawMalloc(self.size + 1)
            if chunk.data == NULL:
                raise MemoryError()
        return chunk

    def collect(self, bint settled=False) -> Chunk | None:
        """The oldest samples taken over, at most a chunk; None when there are none, or some of them are being copied and it shall not be
        waited until that is `settled`."""
        cdef Chunk chunk = self.full[0] if self.full else self.open_chunk
        if chunk is None or not chunk.count or (chunk.copying and not settled):
            return None
        if self.full:
            self.full.pop(0)
        else:
            self.open_chunk = None
        while chunk.copying:  # and nobody begins another in it
            with nogil:
                usleep(20)
        chunk.gatherer = self
        return chunk

    def note(self, int64_t count) -> None:
        """`count` more samples were taken over, by the caller."""
        self.taken += count


@cython.final
cdef class Inserter:
    """Puts frames into a store: `Inserter(sink.native)`. One may be used from any thread, by several at a time."""

    cdef const echo_capi* api
    cdef echo_store* store
    cdef object capsule     # keeps the store's memory
    cdef vector[uint64_t] sizes
    cdef readonly Py_ssize_t sample_bytes

    def __cinit__(self, native):
        cdef uint32_t leaf
        self.api = echo_table(ECHO_CAPI_VERSION)
        self.store = echo_store_of(native)
        self.capsule = native
        for leaf in range(self.api.leaf_count(self.store)):
            self.sizes.push_back(self.api.leaf_bytes(self.store, leaf))
        self.sample_bytes = self.api.sample_bytes(self.store)

    def insert(self, payload, Py_ssize_t count, Py_ssize_t first=0, Py_ssize_t most=-1) -> int:
        """Copy samples of a frame into slots and commit them, without waiting for space.

        Args:
            payload: of a DATA frame of `count` samples: any contiguous buffer.
            first: the sample to begin with, from 0.
            most: how many to insert at most; -1: all that follow.

        Returns:
            how many went in, in order; fewer than asked for when the store is full.

        Raises:
            ClosedError: the store is closed, and none went in.
            ValueError: the payload does not have the bytes of `count` samples.
        """
        cdef Py_buffer view
        cdef Py_ssize_t wanted, done = 0
        cdef bint closed = False
        if not 0 <= first <= count:
            raise ValueError(f"sample {first} of a frame of {count}")
        wanted = count - first if most < 0 else min(most, count - first)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if view.len != count * self.sample_bytes:
                raise ValueError(f"{view.len} bytes for {count} samples of {self.sample_bytes}")
            with nogil:
                done = self.copy(<const char*>view.buf, count, first, wanted, &closed)
        finally:
            PyBuffer_Release(&view)
        if closed and not done:
            raise ClosedError("the server is closed and takes no more samples")
        return done

    cdef Py_ssize_t copy(self, const char* data, Py_ssize_t count, Py_ssize_t first, Py_ssize_t wanted, bint* closed) noexcept nogil:
        cdef Py_ssize_t done = 0
        cdef uint64_t size
        cdef uint32_t leaf
        cdef echo_run run
        cdef int status
        cdef const char* rows
        while done < wanted:
            status = self.api.claim(self.store, <uint32_t>min(wanted - done, 1 << 30), &run)
            if status != ECHO_OK:
                closed[0] = status == ECHO_CLOSED
                break
            rows = data
            for leaf in range(<uint32_t>self.sizes.size()):
                size = self.sizes[leaf]
                memcpy(self.api.leaf(self.store, &run, leaf), rows + (first + done) * size, run.count * size)
                rows += count * size
            self.api.commit(self.store, &run)
            done += run.count
        return done

    def wait_space(self, double seconds) -> None:
        """Sleep until there may be space or the store is closed, for at most `seconds`."""
        cdef int64_t ns = <int64_t>(min(seconds, 1e6) * 1e9)
        with nogil:
            self.api.wait_space(self.store, ns)
