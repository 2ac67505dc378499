# cython: language_level=3
"""A table of the newest rows: rows.hpp for Python."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from .segment cimport Header, FieldLayout, Mapping, Part, Segment, _Closing, deadline_of, kDone, kGives, kTakes, sleep, slice_until


cdef extern from "rows.hpp" namespace "echo_ipc" nogil:
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


cdef class NativeRows(_Closing):
    """rows.hpp over a mapping that was checked."""

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

    def add(self, FieldLayout layout not None, list arrays, timeout=None) -> int:
        """Add rows. Returns the number of the first; -1 - i if array i does not fit, and -1 - the number of columns if the timeout passed."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t count = -1, deadline = deadline_of(timeout)
        cdef uint64_t number = 0
        cdef int outcome, bad = layout.fill(arrays, parts.data(), False, &count)
        if bad:
            return -bad
        if not self.mapping.writable:
            raise PermissionError("this was opened with mode='r'; open it with mode='rw' to add rows")
        if <uint64_t>count > self.rows.capacity():
            raise ValueError(
                f"{count:,} rows do not fit in a table that keeps {self.rows.capacity():,}; add fewer at once, or make it larger"
            )
        self.mapping.did(kGives)
        while True:
            self.check()
            with nogil:
                outcome = self.rows.add(parts.data(), layout.count, <uint64_t>count, &number)
            if outcome == kDone:
                return number
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return -1 - layout.count

    def gather(self, const uint64_t[::1] numbers, FieldLayout layout not None, list arrays, uint64_t[::1] stale) -> int:
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
        self.mapping.did(kTakes)
        with nogil:
            bad = self.rows.gather(&numbers[0], count, parts.data(), layout.count, &stale[0])
        return bad

    def wait(self, uint64_t more_than, timeout=None) -> bool:
        """Sleep until more than this many rows were committed; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), looked = 0, most
        cdef uint32_t seen
        cdef object error = None
        cdef bint last = False
        self.mapping.did(kTakes)
        while True:
            self.check()
            with nogil:
                seen = self.rows.header().changed.look()
                most = 0 if self.rows.committed() > more_than or last else slice_until(deadline)
                if most > 0:
                    sleep(self.mapping, &self.rows.header().changed, seen, most)
            if self.rows.committed() > more_than:
                return True
            if error is not None:
                raise error
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return False
            error = self.ended(kGives, &looked)
            last = error is not None


@cython.no_gc_clear  # as with the Hold of a ring
cdef class Alone:
    """Nobody adds rows during the `with` block of this object. Only the thread that entered the block may leave it.

    The object is made before it gets the lock, and gives the lock back at the latest when it goes. So Ctrl-C cannot come between getting the lock and
    having what gives it back: a living process that kept the lock would hold up all others for ever.
    """

    cdef NativeRows native
    cdef Mapping mapping
    cdef bint held

    def __cinit__(self, NativeRows native not None):
        self.native, self.mapping = native, native.mapping

    def __dealloc__(self):
        self.give()

    cdef void give(self) noexcept:
        if self.held:
            self.held = False
            self.native.rows.unlock()

    def __enter__(self) -> None:
        if not self.mapping.writable:
            raise PermissionError("this was opened with mode='r'")
        while True:
            self.native.check()
            with nogil:
                self.held = self.native.rows.lock()
            if self.held:
                return
            PyErr_CheckSignals()

    def __exit__(self, *exc) -> None:
        self.give()
