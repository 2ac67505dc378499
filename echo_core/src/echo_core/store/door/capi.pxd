# The native interface for Cython plugins: `from echo_core.store.door.capi cimport ...`. The C struct is that of echo_capi.h, the only stable native surface.
from libc.stdint cimport int64_t, uint32_t, uint64_t

cdef extern from "echo_capi.h" nogil:
    int ECHO_CAPI_VERSION
    int ECHO_OK, ECHO_FULL, ECHO_CLOSED, ECHO_TIMEOUT, ECHO_READY
    int ECHO_GAUGE_QUEUED, ECHO_HIST_COPY, ECHO_HIST_INGEST_ROUND
    ctypedef struct echo_store:
        pass
    ctypedef struct echo_run:
        uint32_t buffer
        uint32_t slot
        uint32_t count
        uint32_t reserved
    ctypedef struct echo_capi:
        uint32_t version
        uint32_t size
        void (*retain)(echo_store*) noexcept nogil
        void (*release)(echo_store*) noexcept nogil
        uint32_t (*leaf_count)(const echo_store*) noexcept nogil
        uint64_t (*leaf_bytes)(const echo_store*, uint32_t) noexcept nogil
        uint64_t (*sample_bytes)(const echo_store*) noexcept nogil
        uint32_t (*batch_size)(const echo_store*) noexcept nogil
        int (*claim)(echo_store*, uint32_t, echo_run*) noexcept nogil
        void* (*leaf)(echo_store*, const echo_run*, uint32_t) noexcept nogil
        void (*commit)(echo_store*, const echo_run*) noexcept nogil
        void (*abort)(echo_store*, const echo_run*) noexcept nogil
        int (*wait_space)(echo_store*, int64_t) noexcept nogil
        int (*arm_space)(echo_store*, int) noexcept nogil
        void (*disarm_space)(echo_store*, int) noexcept nogil
        void (*gauge_add)(echo_store*, int, int64_t) noexcept nogil
        void (*queue_depth)(echo_store*, uint64_t) noexcept nogil
        void (*observe)(echo_store*, int, uint64_t) noexcept nogil
        int (*put)(echo_store*, const void* const*, uint32_t, uint32_t*) noexcept nogil

cdef const echo_capi* echo_table(uint32_t version) except NULL
cdef echo_store* echo_store_of(object capsule) except NULL
cdef int echo_leaf_pointers(object spec, object sample, const void** out, list keep) except -1
cdef int echo_leaf_pointers_held(object spec, object sample, const void** out, list keep) except -1
cdef Py_ssize_t echo_batch_pointers(object spec, object samples, const void** out, list keep) except -1
