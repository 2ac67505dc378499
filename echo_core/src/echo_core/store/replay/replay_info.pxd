from echo_core.spec.pytree.flattener cimport Flattener
from echo_core.store.replay.table cimport Batch, Table, TableCounters
from echo_core.store.sample cimport Sample

cdef class ReplayInfo:
    cdef TableCounters counters
    cdef object lease
    cdef bint versioned
    cdef double sum
    cdef readonly str table

cdef Sample drawn_batch(Table* table, str name, Batch* batch, Flattener flattener)
