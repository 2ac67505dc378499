"""What the modules of this package share: the header of a segment, the memory that is mapped, arrays that are copied, and waits that end."""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector


cdef extern from "<unistd.h>" nogil:
    int getpid()
    int usleep(unsigned int)

cdef extern from "parties.hpp" namespace "echo_ipc" nogil:
    ctypedef enum Role:
        kGives, kTakes, kParty
    cdef cppclass Parties:
        void expect(int64_t)
        void arrived()
        int enter(uint64_t, int64_t, uint64_t)
        void did(int, Role)
        void leave(int, cbool)
        cbool are_gone(Role, uint64_t, int64_t, vector[uint64_t]*)

cdef extern from "segment.hpp" namespace "echo_ipc" nogil:
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
        Parties parties
    cdef cppclass Segment:
        Segment(char*, cbool)
    cdef cppclass Part:
        char* memory
        uint64_t offset, bytes
    void copy_in(char*, const Part*, int)
    int64_t now_ns()
    int64_t kSlice
    int kDone, kLater, kNothing, kFull, kHeld, kGone, kDamaged


cdef class Mapping:
    cdef char* memory
    cdef readonly uint64_t size
    cdef readonly bint writable
    cdef int place, roles

    cdef Parties* parties(self) noexcept
    cdef void did(self, Role role) noexcept


cdef class FieldLayout:
    cdef list dtypes
    cdef list of_torch, codes, widths
    cdef tuple shapes
    cdef list offsets
    cdef list sizes
    cdef bint rows
    cdef readonly int count

    cdef int fill(self, list arrays, Part* parts, bint write, int64_t* rows) except -1
    cdef bint fits(self, int index, object tensor, Part* part, bint write, int64_t* rows) except -1
    cdef bint fits_by_dlpack(self, int index, object tensor, Part* part, int64_t* rows) except -1


cdef class _Closing:
    cdef readonly Mapping mapping
    cdef public object watch
    cdef public str name
    cdef bint closed

    cdef int check(self) except -1
    cdef object ended(self, Role role, int64_t* looked)


cdef int64_t deadline_of(timeout) except? -2
cdef int damaged() except -1


cdef inline int64_t slice_until(int64_t deadline) noexcept nogil:
    """How long to sleep now; 0 if the deadline has passed."""
    cdef int64_t left
    if deadline < 0:
        return kSlice
    left = deadline - now_ns()
    return 0 if left <= 0 else (left if left < kSlice else kSlice)


cdef inline void sleep(Mapping mapping, Event* event, uint32_t seen, int64_t most) noexcept nogil:
    """Sleep until a wake-up after `seen` was read, or for `most` ns."""
    if mapping.writable:
        event.sleep(seen, most)
    else:
        usleep(<unsigned int>((most if most < 500_000 else 500_000) // 1000))  # it may not say in the shared memory that it waits
