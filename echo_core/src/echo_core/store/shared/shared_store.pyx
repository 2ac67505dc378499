# cython: language_level=3, boundscheck=False, wraparound=False
"""A stream store in shared memory: `SharedStore` is the learner's side of it, and the functions of shared_store.pxd are the worker's side.

A transport that sets `Transport.store_memory` gets one from `sink.shared()`. The transport itself passes `fd` and record numbers to its
workers. Their native code maps the store (`remote_attach`) and writes samples into it with `remote_claim` and `remote_commit`; each record is
used by one thread. Once a worker is gone, for whatever reason, the learner calls `reap` for its records. It also calls `tick` several times a
second.

A worker that can write to this memory can corrupt it: see docs/shm.md.
"""
import os

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport echo_run
from echo_core.store.stream.ring cimport Ring, echo_run as ring_run
from echo_core.store.wait.clock cimport now_ns
from echo_core.store.store cimport Store

from echo_core.base.errors import ProtocolError

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int)

cdef extern from "store/shared/remote_writer.hpp" namespace "echo" nogil:
    cdef cppclass Remote:
        Remote(int, uint64_t, const vector[uint64_t]&) except +
        uint64_t batch_size()
        uint64_t leaf_bytes(uint32_t)
        char* leaf(const ring_run&, uint32_t)
        int claim(uint32_t, uint32_t, ring_run*)
        int commit(uint32_t, const ring_run&)
        int wait_space(uint32_t, int64_t)
        cbool idle(uint32_t)
        cbool revoked(uint32_t)
        void yield_ "yield"(uint32_t)
        void leave(uint32_t)

cdef extern from "store/shared/reaper.hpp" namespace "echo" nogil:
    cdef cppclass Reaper:
        Reaper(Ring*, int64_t) except +
        uint32_t enlist()
        uint64_t samples(uint32_t)
        uint64_t revoked(uint32_t)
        int64_t waits_since(uint32_t)
        cbool left(uint32_t)
        void reap(uint32_t)
        void give_up(uint32_t)
        int tick(int*)


cdef class SharedStore:
    """The learner's side. Thread-safe.

    Attributes:
        fd: descriptor of the memfd; valid for as long as this object lives. The file's size is sealed.
        nbytes: size of the memfd.
    """

    cdef Reaper* reaper
    cdef readonly int fd
    cdef readonly object nbytes

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        del self.reaper
        if self.fd >= 0:
            close_descriptor(self.fd)

    def enlist(self) -> int:
        """Return the number of a new record for one thread of a worker; 0 when all 1023 are in use."""
        return self.reaper.enlist()

    def samples(self, uint32_t record) -> int:
        """Return how many samples were committed through this record."""
        return self.reaper.samples(record)

    def revoked(self, uint32_t record) -> int:
        """Return how many claims were taken away from this record."""
        return self.reaper.revoked(record)

    def waiting(self, uint32_t record) -> float:
        """Return for how many seconds the record's thread has been waiting for space; 0.0 if it does not wait."""
        cdef int64_t since = self.reaper.waits_since(record)
        return (now_ns() - since) * 1e-9 if since else 0.0

    def left(self, uint32_t record) -> bool:
        """Whether the worker has said that it makes no further change through this record."""
        return self.reaper.left(record)

    def reap(self, uint32_t record) -> None:
        """Call this when the worker is gone or has left: others get what it held, and another worker can get the record."""
        with nogil:
            self.reaper.reap(record)

    def give_up(self, uint32_t record) -> None:
        """Take back the claim that the record holds; the worker does not want it and waits for this."""
        with nogil:
            self.reaper.give_up(record)

    def tick(self) -> tuple[int, int]:
        """Move batches away from workers that hold a claim for too long. Returns how many were moved, and how many wait for a spare buffer."""
        cdef int moved, stuck = 0
        with nogil:
            moved = self.reaper.tick(&stuck)
        return moved, stuck


def share(Store store not None, double claim_timeout):
    """Return the `SharedStore` of `store`, or None if the store is in private memory."""
    if store.memory_fd < 0:
        return None
    cdef SharedStore shared = SharedStore.__new__(SharedStore)
    shared.reaper = new Reaper(store.ring, <int64_t>(claim_timeout * 1e9))
    shared.fd = os.dup(store.memory_fd)  # a descriptor of our own: the server may close its descriptor first, and another file may then get that number
    shared.nbytes = store.memory_bytes
    return shared


# ---- the worker's side -----------------------------------------------------------------------------------------------------

cdef echo_remote* remote_attach(int fd, object spec) except NULL:
    """Map the learner's store. `fd` can be closed afterwards.

    Raises MemoryError if this process may not map that much, and ProtocolError if the store has another layout.
    """
    cdef vector[uint64_t] sizes
    cdef uint64_t length = os.fstat(fd).st_size
    for leaf in spec.leaves:
        sizes.push_back(leaf.nbytes)
    try:
        return <echo_remote*>new Remote(fd, length, sizes)
    except MemoryError:
        raise MemoryError(
            f"this process cannot map the learner's store of {length:,} bytes; raise its limit of address space (ulimit -v)"
        ) from None
    except ValueError as error:
        raise ProtocolError(f"the learner's store is not laid out as this echo-core expects ({error}); install the same version at both ends") from None


cdef void remote_detach(echo_remote* store) noexcept nogil:
    """Unmap the store. Nothing of it may be used any more."""
    del_remote(<Remote*>store)

cdef void del_remote(Remote* store) noexcept nogil:
    del store

cdef uint32_t remote_batch_size(const echo_remote* store) noexcept nogil:
    return <uint32_t>(<Remote*>store).batch_size()

cdef uint64_t remote_leaf_bytes(const echo_remote* store, uint32_t leaf) noexcept nogil:
    return (<Remote*>store).leaf_bytes(leaf)

cdef int remote_claim(echo_remote* store, uint32_t record, uint32_t wanted, echo_run* out) noexcept nogil:
    """Like echo_capi.claim. A record is used by one thread at a time, and holds one claim at a time."""
    return (<Remote*>store).claim(record, wanted, <ring_run*>out)

cdef char* remote_leaf(echo_remote* store, const echo_run* run, uint32_t leaf) noexcept nogil:
    return (<Remote*>store).leaf((<const ring_run*>run)[0], leaf)

cdef int remote_commit(echo_remote* store, uint32_t record, const echo_run* run) noexcept nogil:
    """Returns ECHO_OK, or ECHO_REVOKED: then nothing of the run was stored, and its slots belong to somebody else from now on."""
    return (<Remote*>store).commit(record, (<const ring_run*>run)[0])

cdef int remote_wait_space(echo_remote* store, uint32_t record, int64_t timeout_ns) noexcept nogil:
    return (<Remote*>store).wait_space(record, timeout_ns)

cdef bint remote_idle(const echo_remote* store, uint32_t record) noexcept nogil:
    """Whether the record holds no claim."""
    return (<Remote*>store).idle(record)

cdef bint remote_revoked(const echo_remote* store, uint32_t record) noexcept nogil:
    """Whether the record's claim was revoked. If so, stop writing and call remote_yield."""
    return (<Remote*>store).revoked(record)

cdef void remote_yield(echo_remote* store, uint32_t record) noexcept nogil:
    (<Remote*>store).yield_(record)

cdef void remote_leave(echo_remote* store, uint32_t record) noexcept nogil:
    """Says that this process makes no further change through the record."""
    (<Remote*>store).leave(record)
