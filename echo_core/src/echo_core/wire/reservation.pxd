# cython: language_level=3
from libc.stdint cimport uint32_t


cdef class Leaf:
    cdef Reservation slot
    cdef char* data
    cdef Py_ssize_t size


cdef class Reservation:
    cdef object spec
    cdef bint open
    cdef Py_ssize_t views   # Leafs that live
    cdef object __weakref__

    cdef object tree(self)
    cdef int finish(self) except -1

    # For a subclass. `open` is set by whoever makes one; when `put`, `leave` or `drop` is called it is False, and no array lives.
    cdef char* leaf(self, uint32_t index) noexcept  # where its bytes lie
    cdef bint here(self) noexcept                   # not in a forked child that has a copy of it
    cdef int put(self) except -1                    # commit
    cdef int leave(self) except -1                  # abort
    cdef int drop(self) except -1                   # the garbage collector's abort, in a thread that may hold any lock
