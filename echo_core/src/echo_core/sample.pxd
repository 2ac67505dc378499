from echo_core.ring cimport Counters, HistogramSnapshot, Ring

cdef class Lease:
    cdef Ring* ring
    cdef int buffer

cdef class SampleInfo:
    cdef Ring* ring
    cdef Counters counters

cdef class Sample:
    cdef readonly object batch
    cdef readonly SampleInfo info

cdef Lease new_lease(Ring* ring, int buffer)
cdef Sample new_sample(Ring* ring, object batch)
cdef object snapshot(HistogramSnapshot s)
