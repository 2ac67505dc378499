from echo_core.store.stream.ring cimport Counters, Ring
from echo_core.store.histogram cimport HistogramSnapshot

cdef class StreamLease:
    cdef Ring* ring
    cdef int buffer

cdef class SampleInfo:
    cdef Ring* ring
    cdef Counters counters

cdef class Sample:
    cdef readonly object batch
    cdef readonly object info
    cdef object lease    # of a replay table: it has keys, probabilities and weights
    cdef dict arrays
    cdef object column(self, str name)

cdef StreamLease stream_lease(Ring* ring, int buffer)
cdef Sample new_sample(Ring* ring, object batch)
cdef Sample replay_sample(object batch, object info, object lease)
cdef object snapshot(HistogramSnapshot s)
