# cython: language_level=3, boundscheck=False, wraparound=False
"""How samples of this process get into a store, a stream's or a replay table's: they are checked and copied in, and wait if it is full."""
import numpy as np

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libcpp.vector cimport vector

from echo_core.spec.pytree.flattener cimport Flattener
from echo_core.spec.sample_labels cimport Labels
from echo_core.store.door.echo_run cimport ECHO_CLOSED, ECHO_OK, echo_run
from echo_core.store.wait.patience cimport Patience

from echo_core.spec.arrays import as_float64
from echo_core.spec.device import Lent
from echo_core.base.errors import ClosedError, EchoError, EchoTimeoutError
from echo_core.store.sampler import must_be_positive

cdef enum:
    INLINE_LEAVES = 64  # samples with more leaves keep their pointers on the heap
    HELD_BYTES = 32768  # larger samples are copied without the GIL (local_insert.hpp), so we hold references to their arrays


cdef class LocalInsert(Storage):
    """A storage into which samples of this process are copied. The methods that differ between storages are overridden."""

    cdef int put_one(self, object sample, const Labels* labels, object timeout, str caller) except -1:
        cdef const void* inline_data[INLINE_LEAVES]
        cdef vector[const void*] heap_data
        cdef const void** data = inline_data
        cdef list keep = []
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        cdef bint held = self.sample_bytes > HELD_BYTES
        if self.flattener.pointers_or_lent(sample, data, keep, held):
            return self.put_lent(data, 1, labels, keep, timeout, caller)
        if held:
            sample = None
        if self.copy_now(data, 0, 1, labels, NULL) == 1:
            return 0
        return self.wait_in(data, 0, 1, labels, sample, keep, timeout, caller)

    cdef Py_ssize_t put_many(self, object samples, object priorities, list keys, uint64_t version, object timeout, str caller) except -1:
        """Returns how many samples there were. `keys` is a list that receives an array of their keys, or None."""
        cdef const void* inline_data[INLINE_LEAVES]
        cdef vector[const void*] heap_data
        cdef const void** data = inline_data
        cdef list keep = []
        cdef Py_ssize_t count
        cdef int lent = 0
        cdef Labels labels
        cdef uint64_t[::1] room
        cdef const double[::1] values
        if self.leaves > INLINE_LEAVES:
            heap_data.resize(self.leaves)
            data = heap_data.data()
        count = self.flattener.batch_pointers_or_lent(samples, data, keep, &lent)
        if keys is not None:
            keys.append(np.empty(count, np.uint64))
        if count == 0:
            return 0
        if keys is not None:
            room = keys[0]
            labels.keys = &room[0]
        if priorities is not None:
            values = new_priorities(priorities, count, self.refuses_zero)
            labels.priorities = &values[0]
        labels.version = version
        if lent:
            self.put_lent(data, count, &labels, keep, timeout, caller)
            return count
        self.wait_in(data, self.copy_now(data, 0, count, &labels, NULL), count, &labels, None, keep, timeout, caller)
        return count

    cdef int wait_in(self, const void** data, size_t done, size_t count, const Labels* labels, object borrowed, list keep,
                     object timeout, str caller) except -1:
        """Inserts samples `done` to `count` from the leaf runs at `data`, as soon as the store has room.

        `keep` holds the arrays behind `data`. If it does not, `borrowed` is the sample that holds them. Such addresses are valid until the
        GIL is released, because another thread could then take an array out of the sample and free the memory that we copy from.
        """
        cdef echo_run run
        cdef size_t left
        while done < count:
            if borrowed is not None:
                self.flattener.pointers_held(borrowed, data, keep)
                borrowed = None
            left = count - done
            try:
                self.wait_claim(<uint32_t>left if left < 0x7fffffff else 0x7fffffff, &run, timeout, caller)
            except (EchoTimeoutError, ClosedError) as error:
                error.inserted = done
                raise
            done = self.copy_now(data, done, count, labels, &run)
        return 0

    cdef int put_lent(self, const void** data, size_t count, const Labels* labels, list keep, object timeout, str caller) except -1:
        """Inserts samples some of whose leaves are in the memory of a device. The device writes those straight into their slots.

        A sample is committed only after the device has written its part. If the device fails, the slots are given back.
        """
        cdef echo_run run
        cdef uint32_t leaf
        cdef size_t done = 0, left
        cdef list lent = [one for one in keep if isinstance(one, Lent)], places = [leaf for leaf in range(self.leaves) if data[leaf] == NULL]
        while done < count:
            left = count - done
            try:
                self.wait_claim(<uint32_t>left if left < 0x7fffffff else 0x7fffffff, &run, timeout, caller)
                try:
                    for leaf, one in zip(places, lent):
                        size = self.door.leaf_bytes(leaf)
                        one.copy_to(<uintptr_t>self.door.leaf(run, leaf), done * size, run.count * size)
                except BaseException:
                    self.door.abort(run)
                    raise
            except (EchoError, EchoTimeoutError, ClosedError) as error:
                error.inserted = done
                raise
            done = self.copy_now(data, done, done + run.count, labels, &run)
        return 0

    cdef int wait_claim(self, uint32_t wanted, echo_run* run, object timeout, str caller) except -1:
        cdef int status
        self.check()
        cdef Patience patience = Patience(timeout)
        with nogil:
            self.spins()
        while True:
            with nogil:
                status = self.claim_now(wanted, run)
                if status != ECHO_OK and status != ECHO_CLOSED:
                    self.wait_space(patience.slice())
                    status = self.claim_now(wanted, run)
                self.runs()
            if status == ECHO_OK:
                return 0
            if status == ECHO_CLOSED:
                raise ClosedError(f"{caller}: the server is closed and takes no more samples")
            if patience.turn():
                patience.report(caller, "space", self.blocked_writers())

    cdef int check(self) except -1:
        """Raises an error if the store cannot be used at all."""

    cdef Door* door_for(self) except NULL:
        """Returns the door for writes to a slot; it stays the storage's."""
        self.check()
        return self.door

    cdef size_t copy_now(self, const void** data, size_t done, size_t count, const Labels* labels, const echo_run* claimed):
        return 0

    cdef int claim_now(self, uint32_t wanted, echo_run* run) noexcept nogil:
        return ECHO_CLOSED

    cdef int wait_space(self, int64_t timeout_ns) noexcept nogil:
        return ECHO_CLOSED

    cdef void spins(self) noexcept nogil:
        """A wait for space begins. A store may look for space for a moment before the thread sleeps."""

    cdef void runs(self) noexcept nogil:
        """The wait has ended or was interrupted, and this thread takes the GIL back (see gil_handoff.hpp)."""

    cdef str blocked_writers(self):
        return ""


cdef PageLock page_lock(object place):
    driver = place.driver
    return PageLock(
        driver.address_of("cuCtxPushCurrent_v2"), driver.address_of("cuCtxPopCurrent_v2"), driver.address_of("cuMemHostRegister_v2"),
        driver.address_of("cuMemHostUnregister"), place.context)


def new_priorities(priorities, count, refuses_zero=False):
    """Returns the priorities of `count` new samples as a float64 array.

    Raises:
        ValueError: the shape is wrong, or a priority is negative, not finite, or 0 where the sampler `refuses_zero`; names the sample.
    """
    values = np.atleast_1d(as_float64(priorities, "priorities"))
    if values.shape != (count,):
        raise ValueError(f"{count} samples need priorities of shape ({count},), not {values.shape}")
    bad = ~(np.isfinite(values) & (values >= 0))
    if bad.any():
        i = int(bad.argmax())
        raise ValueError(f"priority {values[i]} of sample {i} must be finite and not negative; nothing was inserted")
    if refuses_zero and not values.all():
        raise ValueError(must_be_positive(f"priority 0.0 of sample {int((values == 0).argmax())}") + "; nothing was inserted")
    return values
