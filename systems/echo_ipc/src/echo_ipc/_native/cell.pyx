# cython: language_level=3
"""The newest value of some arrays, or of some bytes: cell.hpp for Python."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from .segment cimport (
    Header, FieldLayout, Mapping, Part, Segment, _Closing, damaged, deadline_of, kDamaged, kDone, kGives, kLater, kNothing, kTakes, now_ns, sleep, slice_until,
)


cdef extern from "cell.hpp" namespace "echo_ipc" nogil:
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


cdef class NativeCell(_Closing):
    """cell.hpp over a mapping that was checked."""

    cdef CCell* cell

    def __cinit__(self, Mapping mapping not None):
        cdef Header* header = <Header*>mapping.memory
        if header.words[0] > mapping.size or CCell.size_of(header.schema_bytes, header.words[0]) != mapping.size:
            raise ValueError("the sizes of this shared memory do not fit together")
        self.mapping = mapping
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

    def write(self, FieldLayout layout not None, list arrays, timeout=None) -> int:
        """Write a value. Returns its version; 0 if the timeout passed while others wrote; -1 - i if array i does not fit."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t none = -1
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
        if not self.mapping.writable:
            raise PermissionError("this was opened with mode='r'; open it with mode='rw' to write")
        self.mapping.did(kGives)
        while True:
            self.check()
            with nogil:
                outcome = self.cell.write(parts, count, used, &version)
            if outcome == kDone:
                return version
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return 0

    def read(self, FieldLayout layout not None, list arrays, int64_t newer_than=-1, timeout=0) -> int:
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
        cdef int64_t most, looked = 0
        cdef int outcome
        cdef uint32_t seen
        cdef object error = None
        cdef bint last = False
        self.mapping.did(kTakes)
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
                    if most > 0 and not last:
                        sleep(self.mapping, &self.cell.header().changed, seen, most)
            if outcome == kDone:
                return version
            if outcome == kDamaged:
                damaged()
            if error is not None and outcome == kNothing:
                raise error
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                if outcome == kLater:
                    self.check()
                    if deadline >= 0 and now_ns() - deadline < 1_000_000_000:
                        continue  # a value is there, and the next try will most likely get it
                return 0
            if outcome == kNothing:
                error = self.ended(kGives, &looked)
                last = error is not None  # what came before the end is still found

    def wait(self, int64_t newer_than, timeout=None) -> bool:
        """Sleep until the version is above `newer_than`; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), looked = 0, most
        cdef uint32_t seen
        cdef object error = None
        cdef bint last = False
        self.mapping.did(kTakes)
        while True:
            self.check()
            with nogil:
                seen = self.cell.header().changed.look()
                most = 0 if <int64_t>self.cell.version() > newer_than or last else slice_until(deadline)
                if most > 0:
                    sleep(self.mapping, &self.cell.header().changed, seen, most)
            if <int64_t>self.cell.version() > newer_than:
                return True
            if error is not None:
                raise error
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                return False
            error = self.ended(kGives, &looked)
            last = error is not None
