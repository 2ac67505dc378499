from echo_core.store.replay.table cimport Batch, Table
from echo_core.store.stream.ring cimport Ring

cdef class StreamLease:
    cdef Ring* ring
    cdef int buffer

cdef class ReplayLease:
    cdef Table* table
    cdef Batch* batch
    cdef dict columns(self)

cdef class DrawColumnsCopy:
    cdef dict arrays

cdef StreamLease stream_lease(Ring* ring, int buffer)
cdef ReplayLease replay_lease(Table* table, Batch* batch)
