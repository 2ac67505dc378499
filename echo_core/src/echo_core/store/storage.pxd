from libc.stdint cimport uint64_t

cdef class Storage:
    cdef int forks                       # how many forks there were when it was made: it belongs to that process
    cdef readonly str name               # of a replay table; "" is a stream
    cdef readonly object spec
    cdef public object why_no_samples    # called without arguments; why the workers insert too little, in words. None: nobody knows
    cdef public object who_waits         # the same; which workers wait, and for what

    cdef bint here(self) noexcept nogil
    cdef object put(self, object sample, object timeout, object priority, object policy_version)
    cdef object put_batch(self, object samples, object timeout, object priorities, object policy_version)
    cpdef object draw(self, object n=*, object timeout=*, object beta=*, uint64_t borrower=*)
