# The part of tables/table.hpp that Cython code of echo_core itself uses. Plugins use capi.pxd and echo_sampler.h instead.
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.atomic cimport atomic
from libcpp.memory cimport unique_ptr
from libcpp.pair cimport pair
from libcpp.vector cimport vector

from echo_core.spec.sample_labels cimport Labels
from echo_core.store.histogram cimport Histogram
from echo_core.base.memory.page_lock cimport PageLock
from echo_core.store.door.echo_run cimport echo_run

cdef extern from "echo_sampler.h" nogil:
    int ECHO_SAMPLER_VERSION
    ctypedef struct echo_sampler:
        uint32_t version
        uint32_t size

cdef extern from "numpy/random/bitgen.h" nogil:
    ctypedef struct bitgen_t:
        pass

cdef extern from *:
    ctypedef char Bytes "char[]"

cdef extern from "tables/table.hpp" namespace "echo::replay" nogil:
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
        uint64_t refused, stale, on_loan, acknowledged, redelivered, policy_version, refused_sample
        double refused_priority

    uint64_t NO_LIMIT "echo::replay::LagLimits::kNoLimit"

    cdef cppclass LagLimits:
        LagLimits()
        cbool kept
        uint64_t max_lag
        double weight

    cdef cppclass Batch:
        uint64_t n
        uint64_t borrower
        void* packed
        cbool locked
        vector[char*] leaf
        uint64_t* keys
        uint64_t* versions
        double* probabilities
        double mass
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
              bitgen_t*, int, const LagLimits&, int64_t, const vector[uint64_t]&, uint64_t) except +
        void retain()
        void release()
        int claim(uint32_t, echo_run*)
        char* leaf(const echo_run&, uint32_t)
        void commit(const echo_run&, const Labels&)
        void abort(const echo_run&)
        int wait_space(int64_t)
        Answer admit(Batch*, uint32_t, uint32_t, cbool)
        uint32_t gather(Batch*)
        cbool redraws_all()
        cbool overwritten(const Batch*, uint32_t)
        Answer sample(Batch*)
        void uncount(const Batch*)
        void finish(Batch*, cbool)
        cbool wait_ready(uint32_t, int64_t)
        cbool arm_ready(int, uint32_t)
        void disarm_ready(int, uint32_t)
        int64_t first_return()
        int arm_space(int)
        void disarm_space(int)
        void weigh(Batch*, double)
        Batch* take_batch(uint64_t) except +
        void give_back(Batch*)
        void lock_pages(const PageLock&)
        cbool can_sample(uint32_t)
        uint32_t row_of(uint64_t)
        uint64_t update(const uint64_t*, const double*, size_t)
        uint64_t erase(const uint64_t*, size_t)
        uint64_t acknowledge(const uint64_t*, size_t)
        uint64_t take_back(uint64_t)
        void find(const uint64_t*, size_t, Batch*, uint8_t*)
        void gather_known(Batch*, uint8_t*)
        void overwrite(const uint64_t*, size_t, const char**, uint8_t*)
        size_t items(uint64_t*, double*, uint32_t*, size_t)
        size_t newest(uint64_t*, size_t)
        cbool sampler_knows(uint32_t)
        void take_log(vector[Change]*) except +
        size_t known_rows(const uint64_t*, size_t, uint32_t*, uint32_t*)
        void close()
        void detach()
        cbool closed()
        TableCounters counters()
        double mass()
        uint64_t capacity()
        uint64_t rows_ready()
        uint32_t leaf_count()
        uint64_t leaf_bytes(uint32_t)
        uint64_t sample_bytes()
        cbool limited(cbool, uint32_t)
        void pause()
        void resume()
        void hold(cbool)
        const Rows& rows()
        void columns(uint32_t*, uint32_t*, uint32_t*, uint64_t*)
        void restore(const uint32_t*, uint32_t, const uint32_t*, const uint32_t*, const uint32_t*, const uint64_t*, uint64_t,
                     const uint32_t*, uint32_t, uint64_t, uint64_t)
        vector[uint32_t] unacknowledged()
        void begin_copy(const uint32_t*, size_t) except +
        size_t copy_some(const uint32_t*, size_t, Batch*)
        cbool take_preserved(vector[uint32_t]*, unique_ptr[Bytes]*)
        void end_copy()
        cbool keeps_versions()
        uint64_t policy_version()
        void set_policy_version(uint64_t)
        void refuse_zero()
        vector[pair[uint64_t, uint64_t]] version_counts()
        atomic[int64_t] connections
        Histogram copy, ingest_round
