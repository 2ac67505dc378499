# cython: language_level=3
"""A ring of slots that are filled and read in place: ring.hpp for Python."""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from .segment cimport (
    Event, Header, FieldLayout, Mapping, Part, Segment, _Closing, copy_in, deadline_of, getpid, kDone, kFull, kGives, kGone, kLater, kNothing, kTakes, now_ns,
    slice_until,
)


cdef extern from "<sched.h>" nogil:
    int sched_yield "::sched_yield"()

cdef extern from "<atomic>" namespace "std" nogil:
    cdef cppclass atomic_u64 "std::atomic<uint64_t>":
        uint64_t load()

cdef extern from "process.hpp" namespace "echo_ipc" nogil:
    int64_t c_start_of "echo_ipc::start_of"(int64_t)

cdef extern from "ring.hpp" namespace "echo_ipc" nogil:
    cdef cppclass Held:
        uint64_t slot, ticket, number
    cdef cppclass RingControl:
        atomic_u64 written, ready, lost, taken, abandoned, returned
    cdef cppclass CRing "echo_ipc::Ring":
        CRing(const Segment&)
        uint64_t slots()
        uint64_t physical()
        uint64_t policy()
        uint64_t available()
        uint64_t start(uint64_t)
        const RingControl& figures()
        Header* header()
        int claim(uint64_t, int64_t, Held*)
        int commit(uint64_t, Held*)
        int abort(uint64_t, const Held&)
        int take(uint64_t, int64_t, Held*)
        int release(uint64_t, const Held&)
        void look()
        @staticmethod
        uint64_t size_of "bytes"(uint64_t, uint64_t, uint64_t)
    uint64_t kMostSlots, kNoNumber
    uint64_t kErrorPolicy "echo_ipc::kError"

cdef extern from "spin.hpp" namespace "echo_ipc" nogil:
    cdef cppclass Spin:
        int64_t time()
        void waited(int64_t, cbool)

MOST_SLOTS = kMostSlots


cdef class NativeRing(_Closing):
    """ring.hpp over a mapping that was checked.

    `claim` and `take` return an outcome, which is DONE, NOTHING, FULL or HELD (LATER: the lock was not free), and a Hold if it is DONE.
    """

    cdef CRing* ring
    cdef int pid
    cdef int64_t started
    cdef Spin claims, takes

    def __cinit__(self, Mapping mapping not None):
        cdef Header* header = <Header*>mapping.memory
        if not mapping.writable:
            raise ValueError("a ring cannot be used with read-only memory")
        if (
            header.words[1] > kMostSlots or header.words[0] > header.words[1] or header.words[3] > 3 or header.words[2] > mapping.size
            or CRing.size_of(header.schema_bytes, header.words[1], header.words[2]) != mapping.size
        ):
            raise ValueError("the sizes of this shared memory do not fit together")
        self.mapping = mapping
        self.ring = new CRing(Segment(mapping.memory, mapping.writable))

    def __dealloc__(self):
        del self.ring

    @staticmethod
    def size(uint64_t schema_bytes, uint64_t physical, uint64_t slot) -> int:
        """The size of a segment for `physical` slots of `slot` bytes."""
        return CRing.size_of(schema_bytes, physical, slot)

    cdef void myself(self):
        """Ask for every call: a forked child has another number."""
        cdef int now = getpid()
        if now != self.pid:
            self.started = c_start_of(now)
            self.pid = now

    def start(self, uint64_t slot) -> int:
        """Where a slot's data begins, in bytes from the beginning of the mapping."""
        return self.ring.start(slot)

    @property
    def available(self) -> int:
        self.check()
        return self.ring.available()

    @property
    def written(self) -> int:
        self.check()
        return self.ring.figures().written.load()

    def figures(self) -> dict:
        self.check()
        cdef const RingControl* words = &self.ring.figures()
        return {
            "written": words.written.load(), "available": words.ready.load(), "taken": words.taken.load(), "lost": words.lost.load(),
            "abandoned": words.abandoned.load(), "returned": words.returned.load(), "repairs": self.ring.header().lock.repairs(),
        }

    def claim(self, timeout=None, spin=None) -> tuple:
        """A slot to fill: (DONE, Hold), or (FULL, None) or (HELD, None) if there was none in time. `spin`: seconds; None: see spin.hpp."""
        return self.hold(True, timeout, spin)

    def take(self, timeout=None, spin=None) -> tuple:
        """The oldest slot that is ready: (DONE, Hold), or (NOTHING, None) if there was none in time."""
        return self.hold(False, timeout, spin)

    @property
    def spins(self) -> tuple:
        """For how many ns `claim` and `take` would spin now if they are told nothing else."""
        return self.claims.time(), self.takes.time()

    cdef tuple hold(self, bint writing, timeout, spin):
        cdef int64_t deadline = deadline_of(timeout), fixed = fixed_of(spin), began = 0, until = 0, most
        cdef int outcome
        cdef uint32_t seen
        cdef int64_t looked = 0
        cdef object error = None
        cdef bint spinning = True, last = False
        cdef Spin* adapting = &self.claims if writing else &self.takes
        cdef Event* event = &self.ring.header().freed if writing else &self.ring.header().changed
        # Made beforehand, so that nothing can go wrong between getting a slot and having an object that gives it back.
        cdef Hold hold = Hold.__new__(Hold)
        hold.ring, hold.mapping, hold.writing = self, self.mapping, writing
        self.myself()
        self.mapping.did(kGives if writing else kTakes)
        while True:
            self.check()
            with nogil:
                while True:
                    seen = event.look()
                    if writing:
                        outcome = self.ring.claim(self.pid, self.started, &hold.held)
                    elif began == 0 or not spinning or self.ring.available() > 0:  # while this spins, it looks without the lock
                        outcome = self.ring.take(self.pid, self.started, &hold.held)
                    if outcome == kDone or not spinning or (outcome == kFull and self.ring.policy() == kErrorPolicy):
                        break
                    if began == 0:
                        began = now_ns()
                        until = end_of(began, fixed, adapting, deadline)
                        spinning = until > began
                        if not spinning:
                            break
                    else:
                        spinning = now_ns() < until
                    sched_yield()  # the other side may be waiting for this very core
                if outcome != kDone and not (outcome == kFull and self.ring.policy() == kErrorPolicy):
                    most = slice_until(deadline)
                    if most > 0 and outcome != kLater and not last:
                        event.sleep(seen, most)
            if outcome == kDone:
                hold.live = True
                if began != 0:
                    adapting.waited(now_ns() - began, True)
                return kDone, hold
            if outcome == kFull and self.ring.policy() == kErrorPolicy:
                return kFull, None
            if error is not None and outcome != kLater:
                raise error
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                adapting.waited(now_ns() - began, False)
                return outcome, None
            if outcome == (kFull if writing else kNothing):  # otherwise somebody who lives holds what this waits for
                error = self.ended(kTakes if writing else kGives, &looked)
                last = error is not None  # what came before the end is still found

    def wait(self, timeout=None, spin=None) -> bool:
        """Sleep until a slot can be taken; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), fixed = fixed_of(spin), began = 0, until = 0, looked = 0, most
        cdef uint32_t seen
        cdef object error = None
        cdef bint last = False
        self.mapping.did(kTakes)
        while True:
            self.check()
            with nogil:
                if began == 0 and self.ring.available() == 0:
                    began = now_ns()
                    until = end_of(began, fixed, &self.takes, deadline)
                    while self.ring.available() == 0 and now_ns() < until:
                        sched_yield()
                seen = self.ring.header().changed.look()
                if self.ring.available() == 0:
                    self.ring.look()
                most = 0 if self.ring.available() > 0 or last else slice_until(deadline)
                if most > 0:
                    self.ring.header().changed.sleep(seen, most)
            if self.ring.available() > 0:
                if began != 0:
                    self.takes.waited(now_ns() - began, True)
                return True
            if error is not None:
                raise error
            PyErr_CheckSignals()
            if slice_until(deadline) == 0:
                self.takes.waited(now_ns() - began, False)
                return False
            error = self.ended(kGives, &looked)
            last = error is not None


cdef int64_t fixed_of(spin) except? -2:
    """ns; -1: as `Spin` says."""
    if spin is None:
        return -1
    return <int64_t>(min(max(<double>spin, 0.0), 0.1) * 1e9)


cdef int64_t end_of(int64_t began, int64_t fixed, const Spin* adapting, int64_t deadline) noexcept nogil:
    """Until when to spin."""
    cdef int64_t until = began + (fixed if fixed >= 0 else adapting.time())
    return deadline if deadline >= 0 and until > deadline else until


@cython.no_gc_clear  # __dealloc__ needs what this refers to, also if the collector has found it in a cycle
cdef class Hold:
    """A slot that this process holds. It is given back when this object goes.

    Attributes:
        slot: which one.
        number: of the rollout in it; only for slots that were taken.
    """

    cdef NativeRing ring
    cdef Mapping mapping  # the collector may have taken it from the ring already
    cdef Held held
    cdef bint live, writing

    def __dealloc__(self):
        if self.live:  # also after close(): others wait for the slot. In a forked child the slot is the parent's, and this does nothing
            with nogil:
                self.give_back()

    cdef int give_back(self) noexcept nogil:
        return self.ring.ring.abort(getpid(), self.held) if self.writing else self.ring.ring.release(getpid(), self.held)

    @property
    def slot(self) -> int:
        return self.held.slot

    @property
    def number(self) -> int:
        return self.held.number

    def write(self, FieldLayout layout not None, list arrays) -> int:
        """Copy arrays into the slot. Returns 0; -1 - i if array i does not fit, and then nothing was copied."""
        cdef vector[Part] parts = vector[Part](layout.count)
        cdef int64_t none = -1
        cdef int bad = layout.fill(arrays, parts.data(), False, &none)
        if bad:
            return -bad
        self.ring.check()
        if not self.live or not self.writing:
            raise ValueError("this slot is not held for writing")
        with nogil:
            copy_in(self.ring.mapping.memory + self.ring.ring.start(self.held.slot), parts.data(), layout.count)
        return 0

    def commit(self) -> int:
        """Make the slot ready. Returns its number; -1 if the policy dropped it, -2 if this process does not hold it."""
        cdef int outcome = kGone
        while self.live and self.writing:
            self.ring.check()
            self.live = False  # another thread must not give it back meanwhile
            with nogil:
                outcome = self.ring.ring.commit(getpid(), &self.held)
            if outcome != kLater:
                break
            self.live = True
            PyErr_CheckSignals()
        if outcome == kGone:
            return -2
        return -1 if self.held.number == kNoNumber else self.held.number

    def release(self) -> bool:
        """Give the slot back, uncommitted if it was claimed. False if this process does not hold it."""
        cdef int outcome
        if not self.live:
            return False
        self.ring.check()
        self.live = False
        with nogil:
            outcome = self.give_back()
        return outcome == kDone
