# cython: language_level=3
from libc.stdint cimport uint32_t


cdef class Leaf:
    cdef Reservation slot
    cdef char* data
    cdef Py_ssize_t size


cdef class Reservation:
    cdef object spec
    cdef bint open
    cdef Py_ssize_t views   # living `Leaf` objects
    cdef object __weakref__

    cdef object tree(self)
    cdef int finish(self) except -1

    # Methods for subclasses. The creator sets `open`. When `put`, `leave` or `drop` is called, it is False, and no array is alive.
    cdef char* leaf(self, uint32_t index) noexcept  # the address of the leaf's bytes
    cdef bint here(self) noexcept                   # False in a forked child that has a copy of the slot
    cdef int put(self) except -1                    # commits
    cdef int leave(self) except -1                  # aborts
    cdef int drop(self) except -1                   # aborts from the garbage collector, in a thread that may hold any lock
