from echo_core.store.replay.replay_table cimport ReplayTable
from echo_core.store.stream.stream cimport Stream

cdef class Store(Stream):
    cdef int generation
    cdef ReplayTable replay         # the first of the tables; None if this is a stream
    cdef readonly dict tables
    cdef object __weakref__
    cdef ReplayTable table_of(self, object name)
    cdef int refuse_twice(self) except -1
