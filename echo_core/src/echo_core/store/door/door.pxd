# The part of door.hpp that Cython code of echo_core itself uses. Plugins use capi.pxd instead.
from libc.stdint cimport uint32_t, uint64_t

from echo_core.store.door.echo_run cimport echo_run

cdef extern from "store/door/door.hpp" namespace "echo" nogil:
    cdef cppclass Door:
        void retain()
        void release()
        uint32_t leaf_count()
        uint64_t leaf_bytes(uint32_t)
        char* leaf(const echo_run&, uint32_t)
        void commit(const echo_run&)
        void abort(const echo_run&)
    Door* open_door[Store](Store*) except +
