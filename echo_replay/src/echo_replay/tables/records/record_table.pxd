from libc.stdint cimport uint32_t, uint64_t

from echo_core.spec.pytree.ragged_flattener cimport RaggedFlattener
from echo_replay.tables.records.records cimport PackedBatch, RecordHeader, Records
from echo_replay.tables.replay_table cimport ReplayTable

cdef class PackedLease:
    cdef Records* records
    cdef PackedBatch* packed
    cdef Py_ssize_t shape[1]

cdef class RecordTable(ReplayTable):
    cdef Records* stored
    cdef RaggedFlattener fit
    cdef readonly object records    # the `RaggedSpec` of its samples; `spec` is that of the chunks in which they travel
    cdef dict given_up              # clients that are gone, by number, and since when
    cdef uint64_t half_sent_limit   # bytes of half-sent records, above which those of clients that are gone are dropped
    cdef int insert_one(self, object sample, RecordHeader* header, object timeout, uint64_t* key, str caller) except -1
    cdef int settle(self) except -1
    cdef PackedLease room_for(self, uint64_t items, uint32_t axis, uint64_t units)
    cdef tuple unpacked(self, PackedLease packed, uint64_t n)
