# The part of histogram.hpp that Cython code of echo_core itself uses.
from libc.stdint cimport uint64_t

cdef extern from "store/histogram.hpp" namespace "echo" nogil:
    cdef cppclass HistogramSnapshot "echo::Histogram::Snapshot":
        uint64_t count, min, max, p50, p90, p99
        double mean

    cdef cppclass Histogram:
        void record(uint64_t)
        HistogramSnapshot snapshot()
        void reset()
