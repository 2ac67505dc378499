# The clock that times waits (event_count.hpp).
from libc.stdint cimport int64_t

cdef extern from "store/wait/event_count.hpp" namespace "echo" nogil:
    int64_t now_ns()
