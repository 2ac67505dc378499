# cython: language_level=3, boundscheck=False, wraparound=False
"""The learner's side of a stream store that workers write to: `SharedStore`.

The listener passes `fd` and record numbers to its workers, which map the store and write samples into it (remote_writer.hpp); each record is used by
one thread. Once a worker is gone, for whatever reason, the listener calls `reap` for its records. It also calls `tick` several times a second.

A worker that can write to this memory can corrupt it: see docs/shm.md.
"""
import os

from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, echo_capi, echo_store, echo_store_of, echo_table

from echo_core.base.errors import PluginVersionError

cdef extern from "<unistd.h>" nogil:
    int close_descriptor "close"(int)

cdef extern from "reaper.hpp" namespace "echo_shm" nogil:
    int64_t now_ns()
    cdef cppclass Reaper:
        Reaper(const echo_capi*, echo_store*, char*, uint64_t, const vector[uint64_t]&, int64_t) except +
        uint32_t enlist()
        uint64_t samples(uint32_t)
        uint64_t revoked(uint32_t)
        int64_t waits_since(uint32_t)
        cbool left(uint32_t)
        void reap(uint32_t)
        void give_up(uint32_t)
        int tick(int*)


cdef class SharedStore:
    """The store of `sink`, whose `memory` is not None. Thread-safe. A claim that delays its batch for longer than `claim_timeout` seconds is revoked.

    Attributes:
        fd: descriptor of the memfd; valid for as long as this object lives. The file's size is sealed.
        nbytes: size of the memfd.
    """

    cdef Reaper* reaper
    cdef readonly int fd
    cdef readonly object nbytes

    def __cinit__(self, sink, double claim_timeout):
        cdef vector[uint64_t] sizes
        self.fd = -1
        fd, self.nbytes, address = sink.memory
        for leaf in sink.spec.leaves:
            sizes.push_back(leaf.nbytes)
        try:
            self.reaper = new Reaper(
                echo_table(ECHO_CAPI_VERSION), echo_store_of(sink.native), <char*><uintptr_t>address, self.nbytes, sizes, <int64_t>(claim_timeout * 1e9)
            )
        except ValueError as error:
            raise PluginVersionError(f"echo-shm was built against another echo-core, which laid out a store differently ({error}); rebuild it") from None
        self.fd = os.dup(fd)  # a descriptor of our own: the server may close its descriptor first, and another file may then get that number

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
