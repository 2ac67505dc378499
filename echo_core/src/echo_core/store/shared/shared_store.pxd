# The worker's side of a store in shared memory, for Cython plugins: `from echo_core.store.shared.shared_store cimport ...`. See shared_store.pyx.
from libc.stdint cimport int64_t, uint32_t, uint64_t

from echo_core.store.door.capi cimport echo_run

cdef extern from *:
    """
    struct echo_remote;
    #define ECHO_REVOKED 5
    """
    ctypedef struct echo_remote:
        pass
    int ECHO_REVOKED

cdef echo_remote* remote_attach(int fd, object spec) except NULL
cdef void remote_detach(echo_remote* store) noexcept nogil
cdef uint32_t remote_batch_size(const echo_remote* store) noexcept nogil
cdef uint64_t remote_leaf_bytes(const echo_remote* store, uint32_t leaf) noexcept nogil
cdef int remote_claim(echo_remote* store, uint32_t record, uint32_t wanted, echo_run* out) noexcept nogil
cdef char* remote_leaf(echo_remote* store, const echo_run* run, uint32_t leaf) noexcept nogil
cdef int remote_commit(echo_remote* store, uint32_t record, const echo_run* run) noexcept nogil
cdef int remote_wait_space(echo_remote* store, uint32_t record, int64_t timeout_ns) noexcept nogil
cdef bint remote_idle(const echo_remote* store, uint32_t record) noexcept nogil
cdef bint remote_revoked(const echo_remote* store, uint32_t record) noexcept nogil
cdef void remote_yield(echo_remote* store, uint32_t record) noexcept nogil
cdef void remote_leave(echo_remote* store, uint32_t record) noexcept nogil
