from libc.stdint cimport uint64_t

from echo_core.store.door.door cimport Door
from echo_core.store.replay.keyed_table cimport KeyedTable


cdef class ReplayTable(KeyedTable):
    cdef uint64_t refusals_logged
    cdef object put(self, object sample, object timeout, object priority, object policy_version)
    cdef uint64_t rows_ready(self)
    cdef Door* new_door(self, bint labelled) except NULL
    cpdef object draw(self, object n=*, object timeout=*, object beta=*, uint64_t borrower=*)
