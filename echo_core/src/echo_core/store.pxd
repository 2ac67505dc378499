from libc.stdint cimport int64_t, uint64_t

from echo_core.door cimport Door
from echo_core.inlet cimport Inlet
from echo_core.replay_table cimport ReplayTable
from echo_core.ring cimport Ring

cdef class Store(Inlet):
    cdef Ring* ring
    cdef int64_t lease_timeout_ns
    cdef int generation
    cdef Door* door                 # of the ring
    cdef ReplayTable replay         # the first of the tables; None in a stream
    cdef readonly dict tables
    cdef int memory_fd      # of the memfd, -1 for private memory
    cdef uint64_t memory_bytes
    cdef readonly object spec
    cdef public object _tap_wish    # somebody outside waits for a look at the next batch: see tap.py; None almost always
    cdef object __weakref__
    cdef int open(self, object spec, object batch_size, object num_buffers, double lease_timeout, object memory) except -1
    cdef int refuse(self) except -1
    cdef ReplayTable table_of(self, object name)
    cdef Ring* opened(self) except NULL
    cdef int wait_batch(self, object timeout) except -2
    cdef int grant(self, int buffer) except -1
