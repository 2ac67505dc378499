# The declarations of page_lock.hpp for Cython code inside echo_core.
from libc.stdint cimport uintptr_t

cdef extern from "base/memory/page_lock.hpp" namespace "echo" nogil:
    cdef cppclass PageLock:
        PageLock()
        PageLock(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t)
