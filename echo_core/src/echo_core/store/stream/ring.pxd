# The part of ring.hpp that Cython code of echo_core itself uses. Plugins use capi.pxd instead.
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.atomic cimport atomic
from libcpp.vector cimport vector

from echo_core.base.memory.page_lock cimport PageLock
from echo_core.store.door.echo_run cimport echo_run
from echo_core.store.histogram cimport Histogram

cdef extern from "store/stream/gil_handoff.hpp" namespace "echo" nogil:
    cdef cppclass Side:
        void runs()
        void spins()
        void sleeps()

cdef extern from "store/stream/ring.hpp" namespace "echo" nogil:
    cdef cppclass Counters "echo::Ring::Counters":
        uint64_t inserted, stored, batches_taken, batches_out_of_order, push_blocked, notified, aborted, leased
        uint64_t connections, queued, queue_depth_max

    cdef cppclass Ring:
        Ring(const vector[uint64_t]&, uint64_t, uint64_t, uint64_t, int) except +
        @staticmethod
        uint64_t bytes(const vector[uint64_t]&, uint64_t, uint64_t, uint64_t, cbool)
        cbool shared()
        char* base()
        void retain()
        void release()
        int claim(uint32_t, echo_run*)
        char* leaf(const echo_run&, uint32_t)
        void commit(const echo_run&)
        void abort(const echo_run&)
        int wait_space(int64_t)
        int take()
        void give_back(int)
        cbool wait_ready(int64_t)
        char* batch_leaf(int, uint32_t)
        int lock_pages(const PageLock&)
        void close()
        cbool closed()
        Counters counters()
        uint64_t batch_size()
        uint64_t buffers()
        uint64_t leased()
        uint32_t leaf_count()
        uint64_t leaf_bytes(uint32_t)
        uint64_t sample_bytes()
        uint32_t writers_waiting()
        Histogram copy, ingest_round, queue_dwell
        Side writer, learner
        atomic[int64_t] connections
        void spin_for_space()
        void spin_for_batch()
