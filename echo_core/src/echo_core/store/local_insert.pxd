from libc.stdint cimport int64_t, uint32_t, uint64_t

from echo_core.store.door.door cimport Door
from echo_core.spec.pytree.flattener cimport Flattener
from echo_core.spec.sample_labels cimport Labels
from echo_core.base.memory.page_lock cimport PageLock
from echo_core.store.door.echo_run cimport echo_run
from echo_core.store.storage cimport Storage

cdef extern from "store/local_insert.hpp" namespace "echo" nogil:
    # Call it with the GIL, which it releases for large copies. `claimed`: a run that the first samples go into, or NULL.
    size_t copy_in[Store](Store*, const void**, size_t, size_t, const Labels&, const echo_run*)


# The argument for `Ring.lock_pages` and `Table.lock_pages`; `place` is a `cuda.Place`.
cdef PageLock page_lock(object place)

cdef class LocalInsert(Storage):
    cdef Door* door                  # of the store behind it: for writes to a slot that do not use copy_now
    cdef Flattener flattener
    cdef uint32_t leaves
    cdef size_t sample_bytes
    cdef readonly bint refuses_zero  # whether the sampler refuses priorities of 0, see Sampler

    cdef int put_one(self, object sample, const Labels* labels, object timeout, str caller) except -1
    cdef Py_ssize_t put_many(self, object samples, object priorities, list keys, uint64_t version, object timeout, str caller) except -1
    cdef int wait_in(self, const void** data, size_t done, size_t count, const Labels* labels, object borrowed, list keep,
                     object timeout, str caller) except -1
    cdef int put_lent(self, const void** data, size_t count, const Labels* labels, list keep, object timeout, str caller) except -1
    cdef int wait_claim(self, uint32_t wanted, echo_run* run, object timeout, str caller) except -1

    # The following methods depend on the store; each kind of store overrides them.
    cdef int check(self) except -1
    cdef Door* door_for(self) except NULL
    cdef size_t copy_now(self, const void** data, size_t done, size_t count, const Labels* labels, const echo_run* claimed)
    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil
    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil
    cdef void spins(self) noexcept nogil
    cdef void runs(self) noexcept nogil
    cdef str blocked_writers(self)
