from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_replay.tables.table cimport Batch, Change, Table

cdef class PythonSampler:
    cdef Table* table
    cdef object sampler, rng, lock
    cdef vector[Change] log  # the changes that the sampler has to be told of; the first `done` of them are done
    cdef size_t done
    cdef bint interrupted  # a call for changes from `done` on has begun, and it failed or was interrupted
    cdef int draw(self, Batch* batch) except -1
    cdef uint64_t update(self, const uint64_t[::1] keys, object values) except? 0
    cdef int catch_up(self) except -1
    cdef int report(self, size_t start, size_t end) except -1
    cdef int report_again(self, size_t start, size_t end) except -1
    cdef int draw_locked(self, Batch* batch) except -1
    cdef bint ask(self, Batch* batch, uint32_t first, uint64_t n) except -1
    cdef bint ask_another(self, Batch* batch, uint32_t at) except -1
    cdef int check(self, uint64_t key) except -1

cdef PythonSampler python_sampler_of(Table* table, object sampler, object rng, object lock)
