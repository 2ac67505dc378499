# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Makes the worker's frames of samples: it gathers samples at the speed of memory, or lets callers fill them in place.

The payload of a DATA frame holds, for each leaf, the leaf of all its samples one after another. This module makes such payloads without
touching a sample from Python, for every transport that speaks `echo_core.wire.protocol` (see `echo_net.channel`).
"""
cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport int64_t, uint32_t
from libc.string cimport memcpy, memset
from libcpp.vector cimport vector

from echo_core.spec.pytree.flattener cimport GIL_BYTES, Flattener
from echo_core.wire.reservation cimport Reservation

cdef extern from "echo_copy.h" namespace "echo" nogil:
    void copy_sample(void* to, const void* source, size_t size)

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int microseconds)

cdef enum:
    FEW = 64                # leaves whose addresses fit on the stack
    SPARE_CHUNKS = 2        # chunks that are kept for later samples, because fresh memory costs a page fault for every 4 KiB
    LABEL_BYTES = 16        # of one sample; see echo_core.wire.labels
    PATIENCE = 8            # full chunks that may be collected before one that still has room

#: Samples up to this many bytes are gathered; a larger sample gets its own frame.
SMALL = 32768


cdef class Chunk:
    """The samples that `Gatherer.take` got, leaf by leaf. The layout is that of a frame, except that there may be gaps between the leaves.

    Its memory does not move or change while any of its `columns` exists.
    """

    cdef char* data
    cdef char* labels        # of its samples; NULL as long as none of them has labels
    cdef bytes block         # holds `data` if there is room in front of it
    cdef Gatherer gatherer   # gets the memory back; it is set only when the chunk is collected, so that there is no reference cycle
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t rows     # the most samples that it holds
    cdef Py_ssize_t copying  # how many of these are still being copied

    def __dealloc__(self):
        PyMem_RawFree(self.labels)
        if self.data != NULL and self.block is None:
            if self.gatherer is not None and self.gatherer.spares.size() < SPARE_CHUNKS:
                self.gatherer.spares.push_back(self.data)
            else:
                PyMem_RawFree(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.gatherer.size, 1, flags)

    @property
    def labelled(self) -> bool:
        """Whether some of its samples have labels. Then they are the last column of the payload."""
        return self.labels != NULL

    cdef int put_labels(self, Py_ssize_t row, Py_ssize_t count, const char* labels) except -1:
        """Set the labels of some rows; NULL: they have none. No other thread can run meanwhile, because nothing here makes an object."""
        if self.labels == NULL:
            if labels == NULL:
                return 0
            self.labels = <char*>PyMem_RawMalloc(self.rows * LABEL_BYTES)
            if self.labels == NULL:
                raise MemoryError()
            memset(self.labels, 0xff, self.rows * LABEL_BYTES)
        if labels == NULL:
            memset(self.labels + row * LABEL_BYTES, 0xff, count * LABEL_BYTES)
        else:
            memcpy(self.labels + row * LABEL_BYTES, labels, count * LABEL_BYTES)
        return 0

    def columns(self) -> list[memoryview]:
        """The payload of a DATA frame in pieces, without a copy of a sample: for each leaf that has bytes, the samples one after another."""
        cdef Gatherer gatherer = self.gatherer
        cdef Py_ssize_t leaf, start
        cdef list out = []
        whole = memoryview(self)
        for leaf in range(gatherer.flattener.count):
            start = gatherer.starts[leaf]
            if gatherer.flattener.leaf[leaf].nbytes:
                out.append(whole[start:start + self.count * gatherer.flattener.leaf[leaf].nbytes])
        if self.labels != NULL:
            out.append(memoryview(PyBytes_FromStringAndSize(self.labels, self.count * LABEL_BYTES)))
        return out

    def framed(self, bytes head) -> bytes | None:
        """`head` and the payload in one piece, without a copy; None if there is no room of `len(head)` in front, the chunk is not full, or it
        has labels.

        Always pass the same `head` for these samples, because pieces that were returned earlier share the same memory.
        """
        cdef Gatherer gatherer = self.gatherer
        if self.block is None or self.labels != NULL or self.count != gatherer.room or len(head) != gatherer.head:
            return None
        memcpy(PyBytes_AS_STRING(self.block), PyBytes_AS_STRING(head), gatherer.head)
        return self.block

    def payload(self) -> bytes:
        """The payload in one piece."""
        cdef Flattener flattener = self.gatherer.flattener
        cdef Py_ssize_t leaf, size
        cdef Py_ssize_t label_size = self.count * LABEL_BYTES if self.labels != NULL else 0
        cdef bytes out = PyBytes_FromStringAndSize(NULL, self.count * flattener.sample_bytes + label_size)
        cdef char* to = PyBytes_AS_STRING(out)
        with nogil:
            for leaf in range(flattener.count):
                size = self.count * flattener.leaf[leaf].nbytes
                memcpy(to, self.data + self.gatherer.starts[leaf], size)
                to += size
            memcpy(to, self.labels, label_size)
        return out


@cython.final
cdef class Gatherer:
    """Keeps samples until a sender collects them for a frame. A sample is copied by one call (`take`), or made in its memory (`reserve`).

    Every method is atomic for other threads: none releases the GIL between a check and the change that depends on it. A large sample is
    copied without the GIL, but into a row that already belongs to it, and its chunk is not handed out before the copy ends. A caller may
    keep a reserved row as long as it likes. Therefore a chunk never has two reserved rows, and its other rows do not wait for that one.

    Args:
        flattener: the spec's flattener.
        chunk_bytes: samples are kept in chunks of at most this many bytes; each chunk becomes one frame.
        most: the most samples of a chunk.
        head: bytes that are kept free in front of a chunk, for `Chunk.framed`.

    Attributes:
        taken: how many samples were taken; `note` adds those that are sent in another way.
        held: how many rows are reserved.
        limit: `take` declines from this number of samples on, and always if it is -1. Reserved rows count too; `reserve` does not check it.
        idle: a sender that waits for samples sets it. The next `take` clears it and reports that in its result.
    """

    cdef Flattener flattener
    cdef readonly Py_ssize_t room       # the most samples of a chunk
    cdef readonly int64_t taken
    cdef readonly int64_t held
    cdef public int64_t limit
    cdef public bint idle
    cdef Chunk open_chunk               # the chunk that `take` fills
    cdef list full
    cdef list spare_rows                # chunks whose next row can be reserved
    cdef list lent                      # chunks whose next row is reserved
    cdef int passed                     # full chunks that were collected while committed rows waited until their chunk is full
    cdef vector[char*] spares
    cdef vector[Py_ssize_t] starts      # the offset of each leaf in a chunk
    cdef Py_ssize_t size                # bytes of a chunk
    cdef Py_ssize_t head                # bytes in front of a chunk
    cdef bint large                     # whether samples are copied without the GIL

    def __cinit__(self, Flattener flattener, Py_ssize_t chunk_bytes, Py_ssize_t most, Py_ssize_t head=0):
        cdef Py_ssize_t leaf, size
        self.flattener = flattener
        self.head = head
        self.room = max(1, min(chunk_bytes // max(1, flattener.sample_bytes), most))
        # Leaves that begin at the same offset modulo 4 KiB would evict each other from the cache. If no gap is allowed between them, the
        # number of samples keeps their offsets apart: 157 times 1, 2, 4, ... bytes is far from a multiple of 4 KiB.
        if head and self.room > 512:
            self.room -= (self.room - 157) % 256
        self.full, self.spare_rows, self.lent = [], [], []
        for leaf in range(flattener.count):
            self.starts.push_back(self.size)
            size = self.room * flattener.leaf[leaf].nbytes
            self.size += size if head else (size + 127) // 64 * 64
        self.large = flattener.sample_bytes > GIL_BYTES

    def __dealloc__(self):
        cdef size_t i
        for i in range(self.spares.size()):
            PyMem_RawFree(self.spares[i])

    def take(self, sample, bytes label=None) -> int:
        """Check each leaf of `sample` and copy it, with its labels (16 bytes) if it has some. Returns 0 if it was declined (no room), 1 if it was taken, and 2 if it was taken and a
        sender waits for it. Raises SpecError."""
        cdef const void* few[FEW]
        cdef const void** out = few
        cdef Py_ssize_t row
        cdef Chunk chunk, fresh
        cdef list keep
        cdef const char* labels = checked_label(label)
        if self.flattener.count > FEW:
            out = <const void**>PyMem_Calloc(self.flattener.count, sizeof(void*))
            if out == NULL:
                raise MemoryError()
        keep = []
        try:
            while True:
                if self.taken + self.held >= self.limit:
                    return 0
                if self.open_chunk is None:
                    fresh = self.new_chunk()
                    if self.open_chunk is None:  # up to Python 3.11, making a chunk may run the garbage collector, and so another thread
                        self.open_chunk = fresh
                if self.large:
                    self.flattener.pointers_held(sample, out, keep)
                else:
                    self.flattener.pointers(sample, out, keep)
                # If a leaf had to be converted, other threads may have run meanwhile. From here on none can run, so `out` stays valid.
                chunk = self.open_chunk
                if chunk is not None and self.taken + self.held < self.limit:
                    break
            row = chunk.count
            chunk.put_labels(row, 1, labels)
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
        if self.idle:
            self.idle = False
            return 2
        if row + 1 == self.room:
            # The thread that sends the chunk may need this core, which a worker that only makes samples would keep for milliseconds.
            with nogil:
                sched_yield()
        return 1

    cdef inline void copy(self, Chunk chunk, Py_ssize_t row, const void** out) noexcept nogil:
        cdef Py_ssize_t i, size
        for i in range(self.flattener.count):
            size = self.flattener.leaf[i].nbytes
            copy_sample(chunk.data + self.starts[i] + row * size, out[i], size)

    cdef Chunk new_chunk(self):
        cdef Chunk chunk = Chunk.__new__(Chunk)
        chunk.rows = self.room
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

    def reserve(self, spec, owner, bytes label=None) -> Row:
        """Reserve the next row of a chunk, to be filled in place, for a sample with these labels. There must be room. When the caller has finished with the row, it is
        passed to the method `commit_row` or `abort_row` of `owner`."""
        cdef Row row = Row.__new__(Row)
        cdef Chunk chunk = None
        if not self.spare_rows:
            chunk = self.new_chunk()
        if self.spare_rows:
            chunk = self.spare_rows.pop()  # the last written chunk, which is still in the cache
        self.lent.append(chunk)
        self.held += 1
        row.gatherer, row.chunk, row.number = self, chunk, chunk.count
        row.spec, row.owner, row.open, row.label = spec, owner, True, label
        return row

    def collect(self) -> Chunk | None:
        """The oldest taken samples, at most one chunk; None if there are none, or if the oldest are still being copied."""
        cdef Chunk chunk
        cdef bint others = holds_any(self.spare_rows) or holds_any(self.lent)
        if self.full and not (others and self.passed >= PATIENCE):
            chunk = self.full[0]
            if chunk.copying:
                return None
            self.full.pop(0)
            self.passed = self.passed + 1 if others else 0
        elif others:
            self.passed = 0
            chunk = self.begun()
            if chunk is None:
                return None
        else:
            chunk = self.open_chunk
            if chunk is None or not chunk.count or chunk.copying:
                return None
            self.open_chunk = None
        chunk.gatherer = self
        return chunk

    def settle(self) -> list[Chunk]:
        """Make all samples that `take` got before this call available to `collect`, as soon as they are copied."""
        cdef Chunk chunk
        cdef list out
        if self.open_chunk is not None and self.open_chunk.count:
            self.full.append(self.open_chunk)  # no further copy can begin in it
            self.open_chunk = None
        out = self.full
        self.full = []
        for chunk in out:
            while chunk.copying:
                with nogil:
                    usleep(20)
            chunk.gatherer = self
        return out

    cdef Chunk begun(self):
        """A chunk with free rows and some committed ones. If its next row is reserved, the committed rows go without it, in their own chunk."""
        cdef Chunk chunk, fresh = None
        if not holds_any(self.spare_rows):
            fresh = self.new_chunk()
        for chunk in self.spare_rows:  # some may be there by now, if another thread has run meanwhile
            if chunk.count:
                self.spare_rows.remove(chunk)
                return chunk
        for chunk in self.lent:
            if chunk.count:
                self.move(chunk, 0, fresh, 0, chunk.count)
                fresh.count, chunk.count = chunk.count, 0
                return fresh
        return None

    cdef int move(self, Chunk source, Py_ssize_t first, Chunk to, Py_ssize_t row, Py_ssize_t count) except -1:
        cdef Py_ssize_t i, size
        if source is not to and source.labels != NULL:  # a row that moves inside its chunk is reserved, and gets its labels later
            to.put_labels(row, count, source.labels + first * LABEL_BYTES)
            source.put_labels(first, count, NULL)
        for i in range(self.flattener.count):
            size = self.flattener.leaf[i].nbytes
            memcpy(to.data + self.starts[i] + row * size, source.data + self.starts[i] + first * size, count * size)
        return 0

    def note(self, int64_t count) -> None:
        """Count `count` more samples, which the caller took itself."""
        self.taken += count


cdef const char* checked_label(bytes label) except? NULL:
    if label is None:
        return NULL
    if len(label) != LABEL_BYTES:
        raise ValueError(f"the labels of a sample have {LABEL_BYTES} bytes, not {len(label)}")
    return PyBytes_AS_STRING(label)


cdef bint holds_any(list chunks) noexcept:
    cdef Chunk chunk
    for chunk in chunks:
        if chunk.count:
            return True
    return False


@cython.final
cdef class Row(Reservation):
    """A sample's place in a chunk. `commit` and `abort` call the `owner`, which then calls `keep` or `give_back` under its lock."""

    cdef Gatherer gatherer
    cdef Chunk chunk
    cdef Py_ssize_t number
    cdef object owner
    cdef bytes label

    cdef char* leaf(self, uint32_t index) noexcept:
        cdef Gatherer gatherer = self.gatherer
        return self.chunk.data + gatherer.starts[index] + self.number * gatherer.flattener.leaf[index].nbytes

    cdef int put(self) except -1:
        self.owner.commit_row(self)
        return 0

    cdef int leave(self) except -1:
        self.owner.abort_row(self)
        return 0

    cdef int drop(self) except -1:
        self.give_back()
        return 0

    def keep(self) -> bool:
        """Take the sample; returns whether a sender waits for it."""
        cdef Gatherer gatherer = self.gatherer
        cdef Chunk chunk = self.chunk
        gatherer.lent.remove(chunk)
        if self.number != chunk.count:  # the rows before it were sent without it
            gatherer.move(chunk, self.number, chunk, chunk.count, 1)
        chunk.put_labels(chunk.count, 1, checked_label(self.label))
        (gatherer.full if gatherer.idle or chunk.count + 1 == gatherer.room else gatherer.spare_rows).append(chunk)
        chunk.count += 1
        gatherer.taken += 1
        gatherer.held -= 1
        self.chunk = None
        if gatherer.idle:
            gatherer.idle = False
            return True
        return False

    def give_back(self) -> None:
        """Free the row without a sample, unless it was kept."""
        cdef Gatherer gatherer = self.gatherer
        if self.chunk is None:
            return
        gatherer.lent.remove(self.chunk)
        if self.chunk.count or not gatherer.spare_rows:
            gatherer.spare_rows.append(self.chunk)
        gatherer.held -= 1
        self.chunk = None
