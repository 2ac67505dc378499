# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Slots of the learner's store that an environment fills in place: `reserve(direct)` returns a `Reserved`."""
from libc.stdint cimport uint32_t

from echo_core.store.door.capi cimport ECHO_OK, echo_run
from echo_core.wire.reservation cimport Reservation

from echo_shm._direct cimport REVOKED, Direct, Mapping

from echo_core.base.errors import EchoError


def reserve(Direct owner not None):
    """A claimed slot; None if the store is full or not mapped, or if the learner has not yet taken back one that was given up (see `idle`).

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
    if mapping.store.claim(record, 1, &slot.run) != ECHO_OK:
        owner.reservable.append(record)
        return None
    slot.mapping, slot.record, slot.owner, slot.spec, slot.open = mapping, record, owner, owner.spec, True
    return slot


cpdef uint32_t idle(Direct owner) except? 0:
    """A record for a reservation; 0 while none is free, because a record that was given up belongs to the learner until the learner returns it."""
    cdef Mapping mapping = owner.mapping
    cdef uint32_t record
    if mapping is not None:
        for record in owner.reservable:
            if mapping.store.idle(record):
                return record
    return 0


cdef class Reserved(Reservation):
    """One slot in the learner's store, claimed for this worker. If it is held longer than the learner's `claim_timeout` while its batch
    waits for nothing else, the learner gives it to others, and commit() then says so."""

    cdef Mapping mapping
    cdef echo_run run
    cdef uint32_t record
    cdef Direct owner

    cdef char* leaf(self, uint32_t index) noexcept:
        return self.mapping.store.leaf(self.run, index)

    cdef bint here(self) noexcept:
        return self.owner.here()

    cdef int put(self) except -1:
        if self.owner.mapping is not self.mapping:
            self.free()
            raise EchoError("the learner of this slot is gone, or was for a while, or this client was closed; nothing was stored: reserve another")
        if self.mapping.store.commit(self.record, self.run) == REVOKED:
            self.free()
            raise EchoError("this slot was held for longer than the learner's claim_timeout and given to others; reserve another, and fill it sooner")
        self.owner.made += 1
        return self.free()

    cdef int leave(self) except -1:
        self.free()
        function = self.owner.give_up() if self.owner.mapping is self.mapping else None
        if function is not None:
            function(self.record, self.mapping)
        return 0

    cdef int drop(self) except -1:
        self.free()
        # The garbage collector may run in a thread that holds the connection's lock. So another thread, which may wait for the lock, informs the learner.
        if self.owner.mapping is self.mapping:
            self.owner.dropped.put((self.record, self.mapping))
        return 0

    cdef int free(self) except -1:
        """Make the record free for another reservation, or leave it to the learner to take back."""
        if self.owner.mapping is self.mapping:
            self.owner.reservable.append(self.record)
        else:
            self.mapping.store.leave(self.record)
        return 0
