# The part of sample_labels.hpp that Cython code of echo_core itself uses.
from libc.stdint cimport uint64_t

cdef extern from "spec/sample_labels.hpp" namespace "echo" nogil:
    cdef cppclass Labels:
        Labels()
        const double* priorities
        uint64_t* keys
        uint64_t version

    uint64_t NEWEST "echo::Labels::kNewest"
