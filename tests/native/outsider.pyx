# cython: language_level=3
"""A plugin by somebody else, in Cython: it cimports echo_core.capi and nothing more."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from echo_core.store.door.capi cimport (
    ECHO_CAPI_VERSION,
    ECHO_CLOSED,
    ECHO_FULL,
    ECHO_OK,
    echo_batch_pointers,
    echo_capi,
    echo_leaf_pointers,
    echo_run,
    echo_store,
    echo_store_of,
    echo_table,
)

cdef const echo_capi* echo = echo_table(ECHO_CAPI_VERSION)


def other_version(uint32_t version):
    """What a plugin built for this version of the API meets."""
    echo_table(version)


def store_of(capsule):
    """Whether this is a store."""
    return echo_store_of(capsule) != NULL


cdef int put(echo_store* store, const void** leaves, uint32_t count) noexcept nogil:
    """Copy `count` samples into the store; how many found room."""
    cdef uint32_t done = 0, leaf
    cdef uint64_t size
    cdef echo_run run
    while done < count:
        if echo.claim(store, count - done, &run) != ECHO_OK:
            break
        for leaf in range(echo.leaf_count(store)):
            size = echo.leaf_bytes(store, leaf)
            memcpy(echo.leaf(store, &run, leaf), <const char*>leaves[leaf] + done * size, run.count * size)
        echo.commit(store, &run)
        done += run.count
    return done


def send(capsule, spec, sample, bint batch=False):
    """Send one sample, or N stacked ones, through the native door; how many found room."""
    cdef echo_store* store = echo_store_of(capsule)
    cdef const void** leaves = <const void**>malloc((len(spec.leaves) + 1) * sizeof(void*))
    cdef Py_ssize_t count = 1
    cdef int done
    cdef uint32_t taken = 0
    keep = []
    if leaves == NULL:
        raise MemoryError()
    try:
        if batch:
            count = echo_batch_pointers(spec, sample, leaves, keep)
            with nogil:
                done = put(store, leaves, count)
        else:
            echo_leaf_pointers(spec, sample, leaves, keep)
            done = 1 if echo.put(store, leaves, 1, &taken) == ECHO_OK and taken == 1 else 0
        return done
    finally:
        free(leaves)


def status(capsule):
    """Of a claim, which is given back."""
    cdef echo_run run
    cdef int answer = echo.claim(echo_store_of(capsule), 1, &run)
    if answer == ECHO_OK:
        echo.abort(echo_store_of(capsule), &run)
    return {ECHO_OK: "ok", ECHO_FULL: "full", ECHO_CLOSED: "closed"}[answer]
