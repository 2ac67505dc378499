# Declarations of the worker's end for the package's other native modules.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.shared.shared_store cimport echo_remote

cdef extern from "lane.hpp" namespace "echo_shm" nogil:
    cdef cppclass LaneWriter:
        LaneWriter(int, const vector[uint64_t]&, uint64_t) except +
        int put(const void**, uint64_t, uint64_t*)
        uint64_t written()
        uint64_t under_way()
        bint wait_copied(uint64_t, int64_t)
        bint wait_room(int64_t)
        uint64_t copy_rest(char*)

cdef extern from "<mutex>" namespace "std" nogil:
    cdef cppclass mutex:
        void lock()
        bint try_lock()
        void unlock()


cdef class Mapping:
    cdef echo_remote* store
    cdef int lifeline  # closed after the store is unmapped, which tells the learner so
    cdef void cut(self) noexcept


cdef class Lane:
    cdef LaneWriter* writer


cdef class Direct:
    cdef mutex lock              # guards everything below; it is never held while waiting for the GIL
    cdef readonly Mapping mapping  # None while no learner's store is mapped
    cdef echo_remote* store      # mapping.store, or NULL
    cdef Lane kept               # the newest lane, until `take_back`
    cdef uint64_t lost           # number of samples that lay in it when it was dropped
    cdef LaneWriter* lane        # kept.writer while the learner copies from it, otherwise NULL
    cdef readonly bint ready
    cdef uint32_t record
    cdef list reservable         # records for `reserve`
    cdef object spec, slow, slow_batch, rest
    cdef list spare
    cdef vector[uint64_t] leaf_bytes
    cdef uint64_t sample_bytes
    cdef Py_ssize_t count
    cdef int slices, generation
    cdef readonly uint64_t samples, pumped, blocked, revoked
    cdef readonly int64_t taken
    cdef object give_up
    cdef readonly object dropped  # (record, mapping) of reservations that were neither committed nor aborted; None says that no further ones will come

    cdef bint here(self) noexcept
    cdef int put(self, const void** leaves, uint64_t n, uint64_t* done, bint held) except -1
    cdef int put_soon(self, const void** leaves, uint64_t n, uint64_t* done, object timeout) except -1
    cdef int pour(self, const void** leaves, uint64_t n, uint64_t* done, bint counts) noexcept nogil
    cdef bint rest_for_space(self, int64_t ns) noexcept nogil
    cdef object call(self, object reference)
