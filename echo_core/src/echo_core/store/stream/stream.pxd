from libc.stdint cimport int64_t, uint64_t

from echo_core.store.door.door cimport Door
from echo_core.store.local_insert cimport LocalInsert
from echo_core.store.stream.ring cimport Ring

cdef class Stream(LocalInsert):
    cdef Ring* ring                 # NULL until open() was called
    cdef int64_t lease_timeout_ns
    cdef int memory_fd              # of the memfd, -1 for private memory
    cdef uint64_t memory_bytes
    cdef readonly object _tap_wish    # an observer waits for samples of the next batch: see server/tap.py; almost always None
    cdef int open(self, object spec, object batch_size, object num_buffers, double lease_timeout, object memory) except -1
    cdef Ring* opened(self) except NULL
    cdef object next_batch(self, object timeout)
    cdef int wait_batch(self, object timeout) except -2
    cdef str blocked_learner(self)
    cdef int grant(self, int buffer) except -1
