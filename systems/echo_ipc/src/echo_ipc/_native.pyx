# cython: language_level=3
"""The shared structures of native/*.hpp for Python: they check arrays, wait without the interpreter's lock, and let Ctrl-C end every wait.

The classes here are what cell.py, ring.py and rows.py are made of. Nothing in this module opens files.
"""
cimport numpy as np
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

import numpy as np

from echo_core.base.errors import ClosedError

np.import_array()

cdef extern from "<sys/mman.h>" nogil:
    void* mmap(void*, size_t, int, int, int, int64_t)
    int munmap(void*, size_t)
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_POPULATE
    void* MAP_FAILED

cdef extern from "<unistd.h>" nogil:
    int getpid()
    int sched_yield "::sched_yield"()
    int usleep(unsigned int)

cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic_u64 "std::atomic<uint64_t>":
        uint64_t load()

cdef extern from "native/segment.hpp" namespace "echo_ipc" nogil:
    cdef cppclass Lock:
        uint64_t repairs()
    cdef cppclass Event:
        uint32_t look()
        void sleep(uint32_t, int64_t)
    cdef cppclass Header:
        uint64_t nonce, size, schema_bytes
        uint64_t[8] words
        Lock lock
        Event changed, freed
    cdef cppclass Segment:
        Segment(char*, cbool)
    cdef cppclass Part:
        char* memory
        uint64_t offset, bytes
    int64_t now_ns()
    uint64_t kPage
    int64_t kSlice
    uint64_t kPopulated
    int kDone, kLater, kNothing, kFull, kHeld, kGone, kDamaged

cdef extern from *:
    """
    #include "native/segment.hpp"
    static inline void new_segment(char *base, uint64_t size, uint32_t kind, uint64_t nonce, const char *schema, uint64_t bytes, const uint64_t *words) {
        uint64_t eight[8];
        for (int i = 0; i < 8; ++i) eight[i] = words[i];
        echo_ipc::make(base, size, echo_ipc::Kind(kind), nonce, schema, bytes, eight);
    }
    static inline const char *is_wrong(const char *base, uint64_t size, uint32_t kind) { return echo_ipc::wrong(base, size, echo_ipc::Kind(kind)); }
    """
    void new_segment(char*, uint64_t, uint32_t, uint64_t, const char*, uint64_t, const uint64_t*) nogil
    const char* is_wrong(const char*, uint64_t, uint32_t) nogil

cdef extern from "native/process.hpp" namespace "echo_ipc" nogil:
    int64_t c_start_of "echo_ipc::start_of"(int64_t)
    cbool c_is_alive "echo_ipc::is_alive"(int64_t, int64_t)

cdef extern from "native/cell.hpp" namespace "echo_ipc" nogil:
    cdef cppclass CCell "echo_ipc::Cell":
        CCell(const Segment&)
        uint64_t capacity()
        uint64_t version()
        uint64_t broken()
        uint64_t locked()
        Header* header()
        int write(const Part*, int, uint64_t, uint64_t*)
        int read(const Part*, int, uint64_t*, uint64_t*)
        @staticmethod
        uint64_t size_of "bytes"(uint64_t, uint64_t)

cdef extern from "native/ring.hpp" namespace "echo_ipc" nogil:
    cdef cppclass Held:
        uint64_t slot, ticket, number
    cdef cppclass RingControl:
        atomic_u64 written, ready, lost, taken, abandoned, returned
    cdef cppclass CRing "echo_ipc::Ring":
        CRing(const Segment&)
        uint64_t slots()
        uint64_t physical()
        uint64_t policy()
        uint64_t available()
        uint64_t start(uint64_t)
        const RingControl& figures()
        Header* header()
        int claim(uint64_t, int64_t, Held*)
        int commit(uint64_t, Held*)
        int abort(uint64_t, const Held&)
        int take(uint64_t, int64_t, Held*)
        int release(uint64_t, const Held&)
        void look()
        @staticmethod
        uint64_t size_of "bytes"(uint64_t, uint64_t, uint64_t)
    uint64_t kMostSlots, kNoNumber
    uint64_t kErrorPolicy "echo_ipc::kError"

cdef extern from "native/rows.hpp" namespace "echo_ipc" nogil:
    cdef cppclass CRows "echo_ipc::Rows":
        CRows(const Segment&)
        uint64_t capacity()
        uint64_t row()
        uint64_t data()
        uint64_t broken()
        uint64_t committed()
        uint64_t reserved()
        uint64_t first()
        Header* header()
        int add(const Part*, int, uint64_t, uint64_t*)
        uint64_t gather(const uint64_t*, uint64_t, const Part*, int, uint64_t*)
        cbool lock()
        void unlock()
        @staticmethod
        uint64_t size_of "bytes"(uint64_t, uint64_t, uint64_t)

cdef extern from "native/guard.hpp" namespace "echo_ipc" nogil:
    cdef cppclass CGuard "echo_ipc::Guard":
        CGuard(int64_t, int64_t, int64_t, int) except +
        void stop()
        cbool is_dead()
        cbool wait(int64_t)

CELL, RING, ROWS = 1, 2, 3
PAGE = kPage
MOST_SLOTS = kMostSlots


def start_of(int64_t pid) -> int:
    """When a process started, in clock ticks since the machine did. 0: it is gone. -1: this cannot be found out."""
    return c_start_of(pid)


def is_alive(int64_t pid, int64_t started) -> bool:
    """Whether the process with this number and start time lives; True if this cannot be found out."""
    return c_is_alive(pid, started)


cdef class Mapping:
    """The memory of a descriptor, mapped as long as this object or an array over it lives.

    Raises OSError if it cannot be mapped.
    """

    cdef char* memory
    cdef readonly uint64_t size
    cdef readonly bint writable

    def __cinit__(self, int fd, uint64_t size, bint writable):
        # All pages are there already. Entering them now saves a fault at the first use of each; for very large memory, that would take long.
        cdef int how = MAP_SHARED | (MAP_POPULATE if size <= kPopulated else 0)
        cdef void* memory = mmap(NULL, size, PROT_READ | (PROT_WRITE if writable else 0), how, fd, 0)
        if memory == MAP_FAILED:
            from ctypes import get_errno
            raise OSError(get_errno(), f"cannot map {size:,} bytes of shared memory")
        self.memory, self.size, self.writable = <char*>memory, size, writable

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.size)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, not self.writable, flags)

    def make(self, uint32_t kind, uint64_t nonce, bytes schema, words) -> None:
        """Write the first page and the description. `words`: up to eight sizes."""
        cdef uint64_t[8] sizes
        cdef int i
        for i in range(8):
            sizes[i] = words[i] if i < len(words) else 0
        new_segment(self.memory, self.size, kind, nonce, schema, len(schema), sizes)

    def wrong(self, uint32_t kind):
        """What is wrong with this memory, in words; None if it is a segment of this kind."""
        cdef const char* found = is_wrong(self.memory, self.size, kind)
        return None if found == NULL else found.decode()

    @property
    def nonce(self) -> int:
        return (<Header*>self.memory).nonce

    @property
    def words(self) -> tuple:
        return tuple((<Header*>self.memory).words[i] for i in range(8))

    @property
    def schema(self) -> bytes:
        """The description. Ask only after `wrong()` has found nothing."""
        return self.memory[kPage:kPage + (<Header*>self.memory).schema_bytes]


cdef class Layout:
    """Where the arrays of a value lie: for each its dtype, shape and offset in bytes.

    `rows`: the arrays have one more dimension in front, the rows of a batch.
    """

    cdef list dtypes
    cdef tuple shapes
    cdef list offsets
    cdef list sizes
    cdef bint rows
    cdef readonly int count

    def __init__(self, dtypes, shapes, offsets, bint rows=False):
        self.dtypes = list(dtypes)
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.offsets = list(offsets)
        self.rows = rows
        self.count = len(self.dtypes)
        self.sizes = [int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64)) for dtype, shape in zip(self.dtypes, self.shapes)]

    cdef int fill(self, list arrays, Part* parts, bint write, int64_t* rows) except -1:
        """Pointers to the memory of the arrays. Returns 0, or 1 + the index of the first array that does not fit."""
        cdef int i, d, extra = 1 if self.rows else 0
        cdef np.ndarray array
        cdef object item
        cdef tuple shape
        if len(arrays) != self.count:
            raise ValueError(f"{len(arrays)} arrays instead of {self.count}")
        for i in range(self.count):
            item = arrays[i]
            if not isinstance(item, np.ndarray):
                return i + 1
            array = <np.ndarray>item
            shape = <tuple>self.shapes[i]
            if np.PyArray_NDIM(array) != len(shape) + extra or not np.PyArray_IS_C_CONTIGUOUS(array):
                return i + 1
            if <object>np.PyArray_DESCR(array) is not self.dtypes[i] and <object>np.PyArray_DESCR(array) != self.dtypes[i]:
                return i + 1
            if write and not np.PyArray_ISWRITEABLE(array):
                return i + 1
            for d in range(len(shape)):
                if np.PyArray_DIM(array, d + extra) != <Py_ssize_t>shape[d]:
                    return i + 1
            if extra:
                if rows[0] < 0:
                    rows[0] = np.PyArray_DIM(array, 0)
                elif rows[0] != np.PyArray_DIM(array, 0):
                    return i + 1
            parts[i].memory = <char*>np.PyArray_DATA(array)
            parts[i].offset = self.offsets[i]
            parts[i].bytes = self.sizes[i]
        return 0


cdef int64_t deadline_of(timeout) except? -2:
    """A time of now_ns(); -1 for none."""
    if timeout is None:
        return -1
    cdef double seconds = timeout
    if seconds != seconds:
        raise ValueError("a timeout must be a number of seconds, not nan")
    if seconds > 1e9:
        return -1
    return now_ns() + <int64_t>(max(seconds, 0.0) * 1e9)


cdef inline int64_t slice_until(int64_t deadline) noexcept nogil:
    """How long to sleep now; 0 if the deadline has passed."""
    cdef int64_t left
    if deadline < 0:
        return kSlice
    left = deadline - now_ns()
    return 0 if left <= 0 else (left if left < kSlice else kSlice)


cdef class _Closing:
    """What has a `close()` that makes every later call, and every wait that is going on, raise ClosedError."""

    cdef readonly Mapping mapping
    cdef bint closed

    def close(self) -> None:
        """Make every call raise ClosedError, those too that wait in another thread."""
        self.closed = True

    cdef int check(self) except -1:
        if self.closed:
            raise ClosedError("this was closed; open it again with its name, or keep it open as long as it is used")
        return 0


cdef int damaged() except -1:
    raise RuntimeError("the shared memory is damaged: a process has written over words that only echo-ipc may write")


cdef class Cell(_Closing):
    """native/cell.hpp over a mapping that was checked."""

    cdef CCell* cell
    cdef bint writable

    def __cinit__(self, Mapping mapping not None):
        cdef Header* header = <Header*>mapping.memory
        if header.words[0] > mapping.size or CCell.size_of(header.schema_bytes, header.words[0]) != mapping.size:
            raise ValueError("the sizes of this shared memory do not fit together")
        self.mapping, self.writable = mapping, mapping.writable
        self.cell = new CCell(Segment(mapping.memory, mapping.writable))

    def __dealloc__(self):
        del self.cell

    @staticmethod
    def size(uint64_t schema_bytes, uint64_t place) -> int:
        """The size of a segment for places of this size."""
        return CCell.size_of(schema_bytes, place)

    @property
    def version(self) -> int:
        self.check()
        return self.cell.version()

    def figures(self) -> dict:
        self.check()
        return {"version": self.cell.version(), "broken": self.cell.broken(), "locked": self.cell.locked(), "repairs": self.cell.header().lock.repairs()}

    def write(self, Layout layout not None, list arrays, timeout=None) -> int:
        """Write a value. Returns its version; 0 if the timeout passed while others wrote; -1 - i if array i does not fit."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t none = -1, deadline
        cdef int bad = layout.fill(arrays, parts.data(), False, &none)
        if bad:
            return -bad
        return self.put(parts.data(), layout.count, self.cell.capacity(), timeout)

    def write_bytes(self, const unsigned char[::1] data, timeout=None) -> int:
        """Write a value that is a number of bytes, at most as many as fit. Returns as write()."""
        cdef Part part
        if <uint64_t>data.shape[0] > self.cell.capacity():
            raise ValueError(f"{data.shape[0]:,} bytes do not fit in {self.cell.capacity():,}")
        part.memory, part.offset, part.bytes = (<char*>&data[0] if data.shape[0] else NULL), 0, data.shape[0]
        return self.put(&part, 1 if data.shape[0] else 0, data.shape[0], timeout)

    cdef object put(self, const Part* parts, int count, uint64_t used, timeout):
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint64_t version = 0
        cdef int outcome
        if not self.writable:
            raise PermissionError("this was opened with mode='r'; open it with mode='rw' to write")
        while True:
            self.check()
            with nogil:
                outcome = self.cell.write(parts, count, used, &version)
            if outcome == kDone:
                return version
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return 0

    def read(self, Layout layout not None, list arrays, int64_t newer_than=-1, timeout=0) -> int:
        """Copy the newest value into arrays once its version is above `newer_than`. Returns the version; 0 if there was none in time; -1 - i if
        array i does not fit."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t none = -1
        cdef uint64_t used = 0
        cdef int bad = layout.fill(arrays, parts.data(), True, &none)
        if bad:
            return -bad
        return self.get(parts.data(), layout.count, newer_than, deadline_of(timeout), &used)

    def read_bytes(self, int64_t newer_than=-1, timeout=0):
        """The newest value as bytes, and its version. (b"", 0) if there was none in time."""
        cdef int64_t deadline = deadline_of(timeout)
        cdef uint64_t room = 4096, used = 0
        cdef Part part
        cdef object version
        cdef unsigned char[::1] view
        while True:
            room = min(room, self.cell.capacity())
            data = bytearray(room)
            view = data
            part.memory, part.offset, part.bytes = (<char*>&view[0] if room else NULL), 0, room
            version = self.get(&part, 1, newer_than, deadline, &used)
            if version == 0:
                return b"", 0
            if used <= room:
                return bytes(view[:used]), version
            room = used + used // 8

    cdef object get(self, const Part* parts, int count, int64_t newer_than, int64_t deadline, uint64_t* used):
        cdef uint64_t version = 0
        cdef int64_t most
        cdef int outcome
        cdef uint32_t seen
        while True:
            self.check()
            with nogil:
                seen = self.cell.header().changed.look()
                if newer_than >= 0 and self.cell.version() <= <uint64_t>newer_than:
                    outcome = kNothing
                else:
                    outcome = self.cell.read(parts, count, &version, used)
                if outcome == kNothing:
                    most = slice_until(deadline)
                    if most > 0:
                        self.sleep(seen, most)
            if outcome == kDone:
                return version
            if outcome == kDamaged:
                damaged()
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                if outcome == kLater:
                    self.check()
                    if deadline >= 0 and now_ns() - deadline < 1_000_000_000:
                        continue  # a value is there, and the next try will most likely get it
                return 0

    cdef void sleep(self, uint32_t seen, int64_t most) noexcept nogil:
        if self.writable:
            self.cell.header().changed.sleep(seen, most)
        else:
            usleep(<unsigned int>(min(most, 500_000) // 1000))  # it may not say in the shared memory that it waits

    def wait(self, int64_t newer_than, timeout=None) -> bool:
        """Sleep until the version is above `newer_than`; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), most
        cdef uint32_t seen
        while True:
            self.check()
            with nogil:
                seen = self.cell.header().changed.look()
                most = 0 if <int64_t>self.cell.version() > newer_than else slice_until(deadline)
                if most > 0:
                    self.sleep(seen, most)
            if <int64_t>self.cell.version() > newer_than:
                return True
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return False


cdef class Ring(_Closing):
    """native/ring.hpp over a mapping that was checked.

    `claim` and `take` return an outcome, which is DONE, NOTHING, FULL or HELD (LATER: the lock was not free), and a Hold if it is DONE.
    """

    cdef CRing* ring
    cdef int pid
    cdef int64_t started

    def __cinit__(self, Mapping mapping not None):
        cdef Header* header = <Header*>mapping.memory
        if not mapping.writable:
            raise ValueError("a ring cannot be used with read-only memory")
        if (
            header.words[1] > kMostSlots or header.words[0] > header.words[1] or header.words[3] > 3 or header.words[2] > mapping.size
            or CRing.size_of(header.schema_bytes, header.words[1], header.words[2]) != mapping.size
        ):
            raise ValueError("the sizes of this shared memory do not fit together")
        self.mapping = mapping
        self.ring = new CRing(Segment(mapping.memory, mapping.writable))

    def __dealloc__(self):
        del self.ring

    @staticmethod
    def size(uint64_t schema_bytes, uint64_t physical, uint64_t slot) -> int:
        """The size of a segment for `physical` slots of `slot` bytes."""
        return CRing.size_of(schema_bytes, physical, slot)

    cdef void myself(self):
        """Ask for every call: a forked child has another number."""
        cdef int now = getpid()
        if now != self.pid:
            self.started = c_start_of(now)
            self.pid = now

    def start(self, uint64_t slot) -> int:
        """Where a slot's data begins, in bytes from the beginning of the mapping."""
        return self.ring.start(slot)

    @property
    def available(self) -> int:
        self.check()
        return self.ring.available()

    @property
    def written(self) -> int:
        self.check()
        return self.ring.figures().written.load()

    def figures(self) -> dict:
        self.check()
        cdef const RingControl* words = &self.ring.figures()
        return {
            "written": words.written.load(), "available": words.ready.load(), "taken": words.taken.load(), "lost": words.lost.load(),
            "abandoned": words.abandoned.load(), "returned": words.returned.load(), "repairs": self.ring.header().lock.repairs(),
        }

    def claim(self, timeout=None, double spin=0.0) -> tuple:
        """A slot to fill: (DONE, Hold), or (FULL, None) or (HELD, None) if there was none in time."""
        return self.hold(True, timeout, spin)

    def take(self, timeout=None, double spin=0.0) -> tuple:
        """The oldest slot that is ready: (DONE, Hold), or (NOTHING, None) if there was none in time."""
        return self.hold(False, timeout, spin)

    cdef tuple hold(self, bint writing, timeout, double spin):
        cdef int64_t deadline = deadline_of(timeout), until = now_ns() + <int64_t>(min(spin, 0.1) * 1e9) if spin > 0 else 0, most
        cdef int outcome
        cdef uint32_t seen
        cdef Event* event = &self.ring.header().freed if writing else &self.ring.header().changed
        # Made beforehand, so that nothing can go wrong between getting a slot and having an object that gives it back.
        cdef Hold hold = Hold.__new__(Hold)
        hold.ring, hold.writing = self, writing
        self.myself()
        if deadline >= 0 and until > deadline:
            until = deadline
        while True:
            self.check()
            with nogil:
                while True:
                    seen = event.look()
                    outcome = kNothing
                    if writing:
                        outcome = self.ring.claim(self.pid, self.started, &hold.held)
                    elif until == 0 or self.ring.available() > 0 or now_ns() > until:
                        outcome = self.ring.take(self.pid, self.started, &hold.held)
                    if outcome == kDone or until == 0 or now_ns() > until:
                        break
                    sched_yield()  # the other side may be waiting for this very core
                if outcome != kDone and not (outcome == kFull and self.ring.policy() == kErrorPolicy):
                    most = slice_until(deadline)
                    if most > 0 and outcome != kLater:
                        event.sleep(seen, most)
            if outcome == kDone:
                hold.live = True
                return kDone, hold
            if outcome == kFull and self.ring.policy() == kErrorPolicy:
                return kFull, None
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return outcome, None

    def wait(self, timeout=None) -> bool:
        """Sleep until a slot can be taken; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), most
        cdef uint32_t seen
        while True:
            self.check()
            with nogil:
                seen = self.ring.header().changed.look()
                if self.ring.available() == 0:
                    self.ring.look()
                most = 0 if self.ring.available() > 0 else slice_until(deadline)
                if most > 0:
                    self.ring.header().changed.sleep(seen, most)
            if self.ring.available() > 0:
                return True
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return False


cdef class Hold:
    """A slot that this process holds. It is given back when this object goes.

    Attributes:
        slot: which one.
        number: of the rollout in it; only for slots that were taken.
    """

    cdef Ring ring
    cdef Held held
    cdef bint live, writing

    def __dealloc__(self):
        if self.live:  # also after close(): others wait for the slot. In a forked child the slot is the parent's, and this does nothing
            with nogil:
                self.give_back()

    cdef int give_back(self) noexcept nogil:
        return self.ring.ring.abort(getpid(), self.held) if self.writing else self.ring.ring.release(getpid(), self.held)

    @property
    def slot(self) -> int:
        return self.held.slot

    @property
    def number(self) -> int:
        return self.held.number

    def commit(self) -> int:
        """Make the slot ready. Returns its number; -1 if the policy dropped it, -2 if this process does not hold it."""
        cdef int outcome = kGone
        while self.live and self.writing:
            self.ring.check()
            with nogil:
                outcome = self.ring.ring.commit(getpid(), &self.held)
            if outcome != kLater:
                self.live = False
                break
            PyErr_CheckSignals()
        if outcome == kGone:
            return -2
        return -1 if self.held.number == kNoNumber else self.held.number

    def release(self) -> bool:
        """Give the slot back, uncommitted if it was claimed. False if this process does not hold it."""
        cdef int outcome = kGone
        while self.live:
            self.ring.check()
            with nogil:
                outcome = self.give_back()
            if outcome != kLater:
                self.live = False
                break
            PyErr_CheckSignals()
        return outcome == kDone


cdef class Rows(_Closing):
    """native/rows.hpp over a mapping that was checked."""

    cdef CRows* rows

    def __cinit__(self, Mapping mapping not None):
        cdef Header* header = <Header*>mapping.memory
        if header.words[0] == 0 or header.words[1] == 0 or header.words[0] > mapping.size // header.words[1] or (
            CRows.size_of(header.schema_bytes, header.words[0], header.words[1]) != mapping.size
        ):
            raise ValueError("the sizes of this shared memory do not fit together")
        self.mapping = mapping
        self.rows = new CRows(Segment(mapping.memory, mapping.writable))

    def __dealloc__(self):
        del self.rows

    @staticmethod
    def size(uint64_t schema_bytes, uint64_t capacity, uint64_t row) -> int:
        """The size of a segment for this many rows."""
        return CRows.size_of(schema_bytes, capacity, row)

    @property
    def capacity(self) -> int:
        return self.rows.capacity()

    @property
    def data(self) -> int:
        """Where the first row begins, in bytes from the beginning of the mapping."""
        return self.rows.data()

    @property
    def committed(self) -> int:
        self.check()
        return self.rows.committed()

    def window(self) -> tuple:
        """The numbers of the rows that can be read: first, and one past the last."""
        cdef uint64_t committed, first
        self.check()
        committed = self.rows.committed()
        first = self.rows.first()
        return min(first, committed), committed

    def figures(self) -> dict:
        first, committed = self.window()
        return {
            "committed": committed, "readable": committed - first, "reserved": self.rows.reserved(),
            "broken": self.rows.broken(), "repairs": self.rows.header().lock.repairs(),
        }

    def add(self, Layout layout not None, list arrays, timeout=None) -> int:
        """Add rows. Returns the number of the first; -1 - i if array i does not fit, and -1 - the number of columns if the timeout passed."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t count = -1, deadline = deadline_of(timeout)
        cdef uint64_t number = 0
        cdef int outcome, bad = layout.fill(arrays, parts.data(), False, &count)
        if bad:
            return -bad
        if not self.mapping.writable:
            raise PermissionError("this was opened with mode='r'; open it with mode='rw' to add rows")
        while True:
            self.check()
            with nogil:
                outcome = self.rows.add(parts.data(), layout.count, <uint64_t>count, &number)
            if outcome == kDone:
                return number
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return -1 - layout.count

    def gather(self, const uint64_t[::1] numbers, Layout layout not None, list arrays, uint64_t[::1] stale) -> int:
        """Copy the rows with these numbers into arrays. Returns how many were written over; `stale` begins with their indices, and these rows are
        undefined. -1 - i if array i does not fit."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t count = numbers.shape[0]
        cdef uint64_t bad
        cdef int unfit = layout.fill(arrays, parts.data(), True, &count)
        self.check()
        if unfit:
            return -unfit
        if stale.shape[0] < count:
            raise ValueError("stale is too small")
        if count == 0:
            return 0
        with nogil:
            bad = self.rows.gather(&numbers[0], count, parts.data(), layout.count, &stale[0])
        return bad

    def lock(self) -> bool:
        """Stop all additions until `unlock`; False if that failed for a while, then call it again. Only the same thread may unlock."""
        cdef cbool done
        self.check()
        if not self.mapping.writable:
            raise PermissionError("this was opened with mode='r'")
        with nogil:
            done = self.rows.lock()
        PyErr_CheckSignals() if not done else None
        return done

    def unlock(self) -> None:
        self.rows.unlock()

    def wait(self, uint64_t more_than, timeout=None) -> bool:
        """Sleep until more than this many rows were committed; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), most
        cdef uint32_t seen
        while True:
            self.check()
            with nogil:
                seen = self.rows.header().changed.look()
                most = 0 if self.rows.committed() > more_than else slice_until(deadline)
                if most > 0:
                    if self.mapping.writable:
                        self.rows.header().changed.sleep(seen, most)
                    else:
                        usleep(<unsigned int>(min(most, 500_000) // 1000))
            if self.rows.committed() > more_than:
                return True
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return False


cdef class Guard:
    """A native thread that ends this process `grace` seconds after the process `pid` is gone (native/guard.hpp).

    `started`: the other process' start time, of start_of(), or -1. `grace`: None means that the process only learns of it, by `wait`.
    """

    cdef CGuard* guard
    cdef int owner

    def __cinit__(self, int64_t pid, int64_t started=-1, grace=2.0, int code=1):
        self.owner = getpid()
        self.guard = new CGuard(pid, started, -1 if grace is None else <int64_t>(<double>grace * 1e9), code)

    def __dealloc__(self):
        cdef CGuard* guard = self.guard
        if guard != NULL and self.owner == getpid():  # a forked child has no such thread to wait for
            with nogil:
                del guard

    @property
    def is_dead(self) -> bool:
        """Whether the guarded process is gone."""
        return self.guard.is_dead()

    def stop(self) -> None:
        """Guard no longer: this process lives on, whatever happens."""
        self.guard.stop()

    def wait(self, timeout=None) -> bool:
        """Sleep until the other process is gone; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), most
        while not self.guard.is_dead():
            most = slice_until(deadline)
            if most == 0:
                return False
            with nogil:
                self.guard.wait(most)
            PyErr_CheckSignals()
        return True


DONE, LATER, NOTHING, FULL, HELD = kDone, kLater, kNothing, kFull, kHeld
