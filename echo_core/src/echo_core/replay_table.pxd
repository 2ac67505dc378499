# What Cython code of echo_core itself sees of replay/table.hpp. Not for plugins: their doors are capi.pxd and echo_sampler.h.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector

from echo_core.door cimport Door
from echo_core.pytree cimport Flattener
from echo_core.ring cimport Histogram, echo_run

cdef extern from "echo_sampler.h" nogil:
    int ECHO_SAMPLER_VERSION
    ctypedef struct echo_sampler:
        uint32_t version
        uint32_t size

cdef extern from "numpy/random/bitgen.h" nogil:
    ctypedef struct bitgen_t:
        pass

cdef extern from "replay/table.hpp" namespace "echo::replay" nogil:
    cdef struct Limits:
        double samples_per_insert, min_diff, max_diff
        int64_t min_size

    ctypedef int Answer
    Answer kDrawn, kWait, kClosed, kNothing

    cdef struct Change:
        uint32_t row, inserted
        double priority

    cdef struct TableCounters "echo::replay::Counters":
        uint64_t size, used, inserts, samples, pending, deleted, evicted, push_blocked, aborted, leased, redrawn, updated, gone
        uint64_t drawn_batches, connections, queued, queue_depth_max, overhead_bytes

    cdef cppclass Batch:
        uint64_t n
        vector[char*] leaf
        uint64_t* keys
        double* probabilities
        float* weights
        uint32_t* rows

    cdef cppclass Rows:
        char* at(uint32_t, uint64_t)
        @staticmethod
        uint64_t plan(const vector[uint64_t]&, uint64_t, vector[uint64_t]*)

    cdef cppclass Batches:
        @staticmethod
        uint64_t bytes_of(const vector[uint64_t]&, uint64_t)

    cdef cppclass Table:
        Table(const vector[uint64_t]&, uint64_t, uint64_t, const Limits&, uint32_t, const echo_sampler*, cbool, const echo_sampler*,
              bitgen_t*, int, const vector[uint64_t]&) except +
        void retain()
        void release()
        int claim(uint32_t, echo_run*)
        char* leaf(const echo_run&, uint32_t)
        void commit(const echo_run&, const double*, uint64_t*)
        void abort(const echo_run&)
        int wait_space(int64_t)
        Answer admit(Batch*, uint32_t, uint32_t, cbool)
        uint32_t gather(Batch*)
        cbool overwritten(const Batch*, uint32_t)
        Answer sample(Batch*)
        void finish(Batch*)
        cbool wait_ready(uint32_t, int64_t)
        void weigh(Batch*, double)
        Batch* take_batch(uint64_t) except +
        void give_back(Batch*)
        cbool can_sample(uint32_t)
        uint32_t row_of(uint64_t)
        uint64_t update(const uint64_t*, const double*, size_t)
        uint64_t erase(const uint64_t*, size_t)
        void find(const uint64_t*, size_t, Batch*, uint8_t*)
        void gather_known(Batch*, uint8_t*)
        void overwrite(const uint64_t*, size_t, const char**, uint8_t*)
        size_t items(uint64_t*, double*, uint32_t*, size_t)
        void take_log(vector[Change]*) except +
        size_t known_rows(const uint64_t*, size_t, uint32_t*, uint32_t*)
        void close()
        void detach()
        cbool closed()
        TableCounters counters()
        uint64_t capacity()
        uint32_t leaf_count()
        uint64_t leaf_bytes(uint32_t)
        uint64_t sample_bytes()
        cbool limited(cbool, uint32_t)
        void pause()
        void resume()
        void hold(cbool)
        const Rows& rows()
        void columns(uint32_t*, uint32_t*, uint32_t*)
        void restore(const uint32_t*, uint32_t, const uint32_t*, const uint32_t*, const uint32_t*, uint64_t, uint64_t)
        atomic[int64_t] connections
        Histogram copy, ingest_round


cdef class BatchLease:
    cdef Table* table
    cdef Batch* batch
    cdef dict drawn(self)


cdef class ReplayTable:
    cdef Table* table
    cdef Door* door
    cdef Flattener flattener
    cdef uint32_t leaves
    cdef size_t sample_bytes
    cdef int forks
    cdef bint python            # whether the sampler is asked through Python
    cdef const echo_sampler* native_sampler
    cdef public double beta
    cdef readonly str name
    cdef readonly object spec, sampler, remover, rng, limiter
    cdef readonly Py_ssize_t batch_size
    cdef readonly int max_times_sampled
    cdef object lock, capsules
    cdef vector[Change] log
    cdef vector[uint64_t] more  # bytes of the leaves that a follower fills in a batch (step_table.pyx)
    cdef object __weakref__

    cdef Table* opened(self) except NULL
    cdef int insert(self, const void** data, Py_ssize_t count, const double* priorities, uint64_t* keys, object borrowed, list keep,
                    object timeout, str caller) except -1
    cdef int wait_claim(self, uint32_t wanted, echo_run* run, object timeout, str caller) except -1
    cdef void copy(self, const void** data, Py_ssize_t first, const echo_run* run) noexcept nogil
    cdef int draw_through_python(self, Batch* batch) except -1
    cdef int catch_up(self) except -1
    cdef bint _draw(self, Batch* batch, uint32_t first, uint64_t n) except -1
    cdef object put(self, object sample, object timeout, object priority)
    cdef object wrap(self, Batch* batch, double beta)
    cpdef object draw(self, object n=*, object timeout=*, object beta=*)
