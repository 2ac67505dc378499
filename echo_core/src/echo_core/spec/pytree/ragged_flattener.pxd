# cython: language_level=3
# The native part of RaggedFlattener: what cuts a sample into chunks, or copies it into a table, gets its addresses and lengths from here.
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport uint32_t
from libcpp.vector cimport vector

from echo_core.spec.pytree.flattener cimport Flattener

cdef struct RaggedRule:
    int axis            # index of the axis; -1: a fixed leaf
    uint32_t most       # of the axis
    Py_ssize_t nbytes   # of one row, or of the fixed leaf


@cython.final
cdef class RaggedFlattener:
    cdef Flattener plain
    cdef vector[RaggedRule] rules
    cdef readonly object spec
    cdef readonly Py_ssize_t count

    cdef list pointers(self, object sample, const void** out, uint32_t* lengths)
    cdef bint fits(self, Py_ssize_t index, PyObject* value) noexcept
    cdef object too_long(self, Py_ssize_t index, Py_ssize_t n)
    cdef object unequal(self, Py_ssize_t index, Py_ssize_t n, list values)
