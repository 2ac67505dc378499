# A run of claimed slots, and the results of a claim, as echo_capi.h defines them. For Cython code of echo_core itself.
from libc.stdint cimport uint32_t

cdef extern from "echo_capi.h" nogil:
    ctypedef struct echo_run:
        uint32_t buffer
        uint32_t slot
        uint32_t count
        uint32_t reserved
    int ECHO_OK, ECHO_FULL, ECHO_CLOSED, ECHO_TIMEOUT, ECHO_READY
