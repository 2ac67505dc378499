from libc.stdint cimport uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.door cimport Door
from echo_core.store.local_insert cimport LocalInsert
from echo_core.store.replay.table cimport Table
from echo_core.store.replay.python_sampler cimport PythonSampler


cdef class KeyedTable(LocalInsert):
    cdef Table* table
    cdef Door* door_labelled    # NULL until a writer uses labels
    cdef int forks
    cdef PythonSampler python_sampler     # None: the sampler is native
    cdef uint64_t own_bytes  # of a row of the table itself
    cdef double exponent  # the exponent beta of importance weights
    cdef readonly str name
    cdef readonly object spec, sampler, remover, rng, limiter, lags, lease_timeout
    cdef readonly Py_ssize_t batch_size
    cdef readonly int max_times_sampled
    cdef object lock, capsules
    cdef vector[uint64_t] more  # bytes of the leaves of a batch that a follower fills (step_table.pyx)
    cdef object __weakref__

    cdef Table* opened(self) except NULL
    cdef Door* labelled_door(self) except NULL


cdef double exponent_of(object beta) except? -1
