from libc.stdint cimport uint64_t

from echo_core.store.door.door cimport Door
from echo_replay.tables.keyed_table cimport KeyedTable


cdef class ReplayTable(KeyedTable):
    cdef uint64_t refusals_logged
    cdef uint64_t rows_ready(self)
    cdef Door* new_door(self, bint labelled) except NULL
