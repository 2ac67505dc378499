# How waiting calls of the stores count time. Internal to echo_core.
from libc.stdint cimport int64_t

from echo_core.ring cimport now_ns

cdef int64_t deadline_of(object timeout) except -2
cdef int64_t longest_sleep()

cdef inline int64_t slice_of(int64_t deadline, int64_t longest) noexcept nogil:
    cdef int64_t left
    if deadline < 0:
        return longest
    left = deadline - now_ns()
    return 0 if left < 0 else left if left < longest else longest
