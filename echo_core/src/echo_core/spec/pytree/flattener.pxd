# cython: language_level=3
# The part of the flattener that Cython code of echo_core uses, and of echo_net, which requires the very version. It needs no numpy headers.
cimport cython
from cpython.object cimport PyObject


cdef enum:
    GIL_BYTES = 32768  # larger copies are done without the GIL

# Which leading axis a leaf may have before the shape of its spec (the values of echo_core.spec.leaf).
cdef enum Lead:
    EXACT = 0         # none: one sample
    STACKED = 1       # one more, of the same length in every leaf: a batch
    ONE_OPTIONAL = 2  # none, or one more of length 1

cdef struct Leaf:
    PyObject* dtype     # the leaf's PyArray_Descr, kept alive by Flattener.specs
    Py_ssize_t* shape   # ndim lengths
    int ndim
    Py_ssize_t nbytes   # of one sample

cdef struct Node:
    int kind
    Py_ssize_t leaf     # kind LEAF: its index
    Py_ssize_t count    # children
    Node* children      # for a dict: in the order in which the example wrote its keys
    PyObject** keys     # kind DICT, in that order; kept alive by Flattener.owned, like ...
    PyObject* template  # kind DICT: a dict of these keys, to clone
    PyObject* type      # kind TUPLE: tuple, or a namedtuple class

cdef struct Walk:
    const void** out    # where each leaf's address goes; NULL: addresses are not needed
    PyObject* values    # a list to fill with each leaf's object instead; NULL: look at the leaves
    int lead
    Py_ssize_t n        # length of the leading axis, -1 while unknown
    int lent            # number of leaves that stay in a device's memory, with a NULL address in `out`; -1: none may stay, they are copied here


@cython.final
cdef class Flattener:
    cdef Node* root     # NULL if the tree has containers that the program does not know
    cdef Leaf* leaf
    cdef readonly Py_ssize_t count
    cdef readonly Py_ssize_t sample_bytes
    cdef readonly object treedef
    cdef readonly tuple specs
    cdef readonly str namespace
    cdef list owned

    cdef int pointers(self, object sample, const void** out, list keep) except -1
    cdef int pointers_held(self, object sample, const void** out, list keep) except -1
    cdef int row_pointers(self, object sample, const void** out, list keep) except -1
    cdef Py_ssize_t batch_pointers(self, object samples, const void** out, list keep) except -1
    cdef int pointers_or_lent(self, object sample, const void** out, list keep, bint held) except -1
    cdef Py_ssize_t batch_pointers_or_lent(self, object samples, const void** out, list keep, int* lent) except -1
    cdef object arrays(self, char** data, Py_ssize_t n, object base)

    cdef list values(self, object sample)
    cdef int carefully(self, object sample, Walk* walk, list keep) except -1
    cdef object convert(self, Py_ssize_t index, object value, Walk* walk)
    cdef int leave(self, Py_ssize_t index, object value, Walk* walk) except -1
    cdef list split(self, object sample)
