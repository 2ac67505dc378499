from echo_core.keyed_table cimport KeyedTable


cdef class ReplayTable(KeyedTable):
    cdef object put(self, object sample, object timeout, object priority)
    cpdef object draw(self, object n=*, object timeout=*, object beta=*)
