from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.door cimport Door
from echo_core.store.local_insert cimport LocalInsert
from echo_replay.tables.table cimport Table
from echo_replay.tables.python_sampler cimport PythonSampler


cdef class KeyedTable(LocalInsert):
    cdef Table* table
    cdef PythonSampler python_sampler     # None: the sampler is native
    cdef uint64_t own_bytes  # of a row of the table itself
    cdef double exponent  # the exponent beta of importance weights
    cdef object answered_by     # makes what answers the requests of clients
    cdef readonly object sampler, remover, rng, limiter, lags, lease_timeout
    cdef Py_ssize_t of_a_batch  # items
    cdef readonly int max_times_sampled
    cdef object lock, capsules
    cdef readonly object checkpointing  # a lock; it is held while a checkpoint of the table is written or read
    cdef vector[uint64_t] more  # bytes of the leaves of a batch that a follower fills (step_table.pyx)
    cdef object __weakref__

    cdef Table* opened(self) except NULL


cdef double exponent_of(object beta) except? -1
