# cython: language_level=3, boundscheck=False, wraparound=False
"""The learner's end of a lane (see lane.hpp): `Copier` copies a worker's samples into the store, without the GIL."""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, echo_capi, echo_store, echo_store_of, echo_table

cdef extern from "lane.hpp" namespace "echo_shm" nogil:
    int64_t now_ns()
    cdef cppclass LaneReader:
        @staticmethod
        uint64_t bytes(const vector[uint64_t]&, uint64_t)
        LaneReader(int, const vector[uint64_t]&, uint64_t, const echo_capi*, echo_store*) except +
        @staticmethod
        vector[uint64_t] with_labels(vector[uint64_t], cbool)
        int run()
        void finish()
        uint64_t copied()
        cbool catch_up(int64_t)
        int64_t waits_since()

ENDED, CLOSED, BROKEN = range(3)  # outcomes of `Copier.run`


cdef vector[uint64_t] columns(object spec, cbool labels):
    cdef vector[uint64_t] sizes
    for leaf in spec.leaves:
        sizes.push_back(leaf.nbytes)
    return LaneReader.with_labels(sizes, labels)


def lane_bytes(spec, uint64_t rows, cbool labels) -> int:
    """The size in bytes of a lane of `rows` samples; `labels`: they may have labels. Raises MemoryError if no machine has so much."""
    cdef uint64_t length = LaneReader.bytes(columns(spec, labels), rows)
    if length == 0:
        raise MemoryError(f"no machine has memory for {rows:,} samples of {spec.sample_bytes:,} bytes")
    return length


cdef class Copier:
    """Copies from the lane in `fd` (which can be closed afterwards) into the store of `native`, which has one more leaf if samples may have
    labels: see `Sink.labelled`. Only one thread may call `run`.

    Raises MemoryError if the lane cannot be mapped.
    """

    cdef LaneReader* lane
    cdef object native  # keeps the store

    def __cinit__(self, int fd, spec, uint64_t rows, cbool labels, native):
        self.native = native
        self.lane = new LaneReader(fd, columns(spec, labels), rows, echo_table(ECHO_CAPI_VERSION), echo_store_of(native))

    def __dealloc__(self):
        del self.lane

    def run(self) -> int:
        """Copy samples as they come. ENDED: `finish` was called. CLOSED: the store is closed. BROKEN: the worker wrote an impossible number."""
        cdef int outcome
        with nogil:
            outcome = self.lane.run()
        return outcome

    def finish(self) -> None:
        """End `run` when all samples that are whole by now are copied, as far as there is space for them."""
        self.lane.finish()

    def catch_up(self, double seconds) -> bool:
        """Sleep until all samples that are whole by now are committed, the time is over, or `run` ends. Returns whether they are committed."""
        cdef bint whole
        cdef int64_t ns = <int64_t>(seconds * 1e9)
        with nogil:
            whole = self.lane.catch_up(ns)
        return whole

    @property
    def copied(self) -> int:
        """The number of committed samples."""
        return self.lane.copied()

    @property
    def waiting(self) -> float:
        """How many seconds it has been waiting for space; 0.0 if it is not waiting."""
        cdef int64_t since = self.lane.waits_since()
        return (now_ns() - since) * 1e-9 if since else 0.0
