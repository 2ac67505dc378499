# How blocking calls of the stores measure time. Internal to echo_core.
from libc.stdint cimport int64_t

from echo_core.store.wait.clock cimport now_ns

cdef enum:
    MAIN_SLICE_NS = 80000000    # first sleep of the main thread: a signal ends it at once, unless it came just before the sleep began
    SLICE_NS = 1000000000       # longest sleep of any thread: every wake-up costs processor time in an idle process

cdef int64_t deadline_of(object timeout) except -2
cdef int64_t first_sleep()

# A wait sleeps in slices. Each is twice as long as the one before.
cdef inline int64_t next_sleep(int64_t last) noexcept nogil:
    return 2 * last if 2 * last < <int64_t>SLICE_NS else <int64_t>SLICE_NS

cdef inline int64_t slice_of(int64_t deadline, int64_t longest) noexcept nogil:
    cdef int64_t left
    if deadline < 0:
        return longest
    left = deadline - now_ns()
    return 0 if left < 0 else left if left < longest else longest


# One wait of a blocking call: it sleeps in slices, each twice as long as the one before, and handles Ctrl-C in between.
cdef class Patience:
    cdef int64_t deadline, began, longest
    cdef object timeout
    cdef bint logged
    cdef int64_t slice(self) noexcept nogil
    cdef bint turn(self) except -1
    cdef int report(self, str caller, str what, str who) except -1
