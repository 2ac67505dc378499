# Declarations of the worker's end for the package's other native modules.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport echo_run

cdef extern from "remote_writer.hpp" namespace "echo_shm" nogil:
    int REVOKED "echo_shm::Remote::kRevoked"
    cdef cppclass Remote:
        Remote(int, uint64_t, const vector[uint64_t]&) except +
        char* leaf(const echo_run&, uint32_t)
        int claim(uint32_t, uint32_t, echo_run*)
        int commit(uint32_t, const echo_run&)
        int wait_space(uint32_t, int64_t)
        bint idle(uint32_t)
        void leave(uint32_t)

cdef extern from "lane.hpp" namespace "echo_shm" nogil:
    cdef cppclass LaneWriter:
        LaneWriter(int, const vector[uint64_t]&, uint64_t, bint) except +
        bint labelled()
        int put(const void**, uint64_t, uint64_t*, const char*)
        uint64_t written()
        uint64_t rows()
        uint64_t under_way()
        bint wait_copied(uint64_t, int64_t)
        bint wait_room(int64_t)
        void copy_rest(char*, uint64_t)

cdef extern from "<mutex>" namespace "std" nogil:
    cdef cppclass mutex:
        void lock()
        bint try_lock()
        void unlock()


cdef class Mapping:
    cdef Remote* store
    cdef int lifeline  # closed after the store is unmapped, which tells the learner so
    cdef void cut(self) noexcept


cdef class Lane:
    cdef LaneWriter* writer


cdef class Direct:
    cdef mutex lock              # guards everything below except `made`; it is never held while waiting for the GIL
    cdef readonly Mapping mapping  # None while no learner's store is mapped
    cdef Remote* store      # mapping.store, or NULL
    cdef Lane kept               # the newest lane, until `take_back`
    cdef tuple left              # the samples that lay in it when it was dropped, as `take_back` returns them
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
    cdef readonly uint64_t made  # guarded by the GIL: with the lock, a commit would wait until another thread has copied its whole batch
    cdef object give_up
    cdef readonly object dropped  # (record, mapping) of reservations that were neither committed nor aborted; None says that no further ones will come

    cdef bint here(self) noexcept
    cdef int put(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, bint held) except -1
    cdef int put_soon(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, object timeout) except -1
    cdef int pour(self, const void** leaves, uint64_t n, uint64_t* done, const char* labels, bint counts) noexcept nogil
    cdef tuple rest_of_lane(self)
    cdef bint rest_for_space(self, int64_t ns) noexcept nogil
    cdef object call(self, object reference)
