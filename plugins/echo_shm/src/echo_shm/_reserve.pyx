# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Slots of the learner's store that an environment fills in place: `reserve(direct)` gives a `Reserved`."""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint32_t

from echo_core.capi cimport ECHO_OK, echo_run
from echo_core.shared cimport ECHO_REVOKED, remote_claim, remote_commit, remote_idle, remote_leaf, remote_leave

from echo_shm._direct cimport Direct, Mapping

from echo_core.errors import EchoError


def reserve(Direct owner not None):
    """A claimed slot; None when the store is full or not mapped, or the learner has yet to take back one that was given up (see `idle`).

    Raises EchoError when all reservations are in use.
    """
    cdef Reserved slot = Reserved.__new__(Reserved)
    cdef Mapping mapping = owner.mapping
    cdef uint32_t record = 0
    if mapping is None or not owner.ready or not owner.here():
        return None
    if not owner.reservable:
        raise EchoError("every slot that this client may reserve is in use; commit or abort one, or connect with more reservations")
    record = idle(owner)
    if record == 0:
        return None
    owner.reservable.remove(record)
    if remote_claim(mapping.store, record, 1, &slot.run) != ECHO_OK:
        owner.reservable.append(record)
        return None
    slot.mapping, slot.record, slot.owner, slot.spec, slot.open = mapping, record, owner, owner.spec, True
    return slot


cpdef uint32_t idle(Direct owner) except? 0:
    """A record for a reservation; 0 while there is none, because what was given up with it is the learner's until that says so."""
    cdef Mapping mapping = owner.mapping
    cdef uint32_t record
    if mapping is not None:
        for record in owner.reservable:
            if remote_idle(mapping.store, record):
                return record
    return 0


@cython.no_gc_clear
cdef class Leaf:
    """Exporter of one leaf's bytes in a reserved slot. It lives as long as any array on them (numpy keeps the exporter, not the buffer)."""

    cdef Reserved slot
    cdef char* data
    cdef Py_ssize_t size

    def __cinit__(self, Reserved slot):
        self.slot = slot
        slot.views += 1

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __dealloc__(self):
        self.slot.views -= 1


cdef class Reserved:
    """One slot in the learner's store, claimed for this worker: fill `sample` in place, then `commit()`.

        with client.reserve() as slot:
            env.step(action, out=slot.sample["obs"])
            slot.sample["reward"][...] = reward
            slot.commit()

    Leaving the block uncommitted aborts. One slot, one thread. A slot that is held longer than the learner's `claim_timeout` while its
    batch waits for nothing else is given to others: commit() then says so.

    Attributes:
        sample: the example's pytree of writable arrays over the learner's memory, uninitialised.
    """

    cdef Mapping mapping
    cdef echo_run run
    cdef uint32_t record
    cdef Direct owner
    cdef object spec
    cdef bint open
    cdef Py_ssize_t views
    cdef object __weakref__

    @property
    def sample(self):
        if not self.open:
            raise ValueError("this slot was committed or aborted already; reserve another")
        leaves = []
        cdef Leaf leaf
        for index, spec in enumerate(self.spec.leaves):
            leaf = Leaf.__new__(Leaf, self)
            leaf.data = remote_leaf(self.mapping.store, &self.run, index)
            leaf.size = spec.nbytes
            leaves.append(np.ndarray(spec.shape, spec.dtype, leaf))
        return self.spec.flattener.unflatten(leaves)

    def commit(self):
        """The sample is whole: show it to the learner.

        Raises:
            BufferError: an array of `sample` is still alive; it would write to memory that is another's.
            ValueError: committed or aborted already.
            EchoError: it was held for too long and taken away, or the learner is gone; nothing was stored.
        """
        self._finish()
        if self.owner.mapping is not self.mapping:
            self._free()
            raise EchoError("the learner of this slot is gone, or was for a while, or this client was closed; nothing was stored: reserve another")
        if remote_commit(self.mapping.store, self.record, &self.run) == ECHO_REVOKED:
            self._free()
            raise EchoError("this slot was held for longer than the learner's claim_timeout and given to others; reserve another, and fill it sooner")
        self.owner.samples += 1
        self._free()

    def abort(self):
        """Give the slot back. Raises BufferError and ValueError as `commit`."""
        self._finish()
        self._free()
        function = self.owner.give_up() if self.owner.mapping is self.mapping else None
        if function is not None:
            function(self.record, self.mapping)

    cdef int _finish(self) except -1:
        if not self.owner.here():
            raise ValueError("this slot was reserved before a fork and belongs to the parent process")
        if not self.open:
            raise ValueError("this slot was committed or aborted already; reserve another")
        if self.views:
            raise BufferError(f"{self.views} arrays of this slot are still alive: drop them (and what was made of them) before commit or abort")
        self.open = False
        return 0

    cdef int _free(self) except -1:
        """The record is for another reservation, or for the learner to take."""
        if self.owner.mapping is self.mapping:
            self.owner.reservable.append(self.record)
        else:
            remote_leave(self.mapping.store, self.record)
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.open and not self.views:
            self.abort()

    def __del__(self):
        if self.open and self.owner.here():  # every array is dead: each holds a reference to this slot
            self.open = False
            self._free()
            # The garbage collector may run in a thread that holds the connection's lock: whoever may wait for that tells the learner.
            if self.owner.mapping is self.mapping:
                self.owner.dropped.put((self.record, self.mapping))
