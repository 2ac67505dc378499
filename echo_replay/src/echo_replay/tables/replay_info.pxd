from echo_core.spec.pytree.flattener cimport Flattener
from echo_replay.tables.table cimport Batch, Table, TableCounters
from echo_core.store.sample cimport Sample

cdef class ReplayLease:
    cdef Table* table
    cdef Batch* batch
    cdef dict columns(self)

cdef class DrawColumnsCopy:
    cdef dict arrays

cdef class ReplayInfo:
    cdef TableCounters counters
    cdef object lease
    cdef bint versioned
    cdef double sum
    cdef readonly str table

cdef ReplayLease replay_lease(Table* table, Batch* batch)
cdef Sample drawn_batch(Table* table, str name, Batch* batch, Flattener flattener)
