from echo_core.store.storage cimport Storage

cdef class Store:
    cdef int generation             # how many forks there were when it was opened; -1 before that
    cdef Storage first              # where everything goes that names no table
    cdef readonly dict storages
    cdef readonly dict tables       # those of the storages that are replay tables
    cdef object __weakref__
    cdef Storage storage_of(self, object name)
    cdef int refuse(self) except -1
