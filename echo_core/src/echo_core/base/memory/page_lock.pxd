# What Cython code of echo_core itself sees of page_lock.hpp.
from libc.stdint cimport uintptr_t

cdef extern from "base/memory/page_lock.hpp" namespace "echo" nogil:
    cdef cppclass PageLock:
        PageLock()
        PageLock(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t)
