# The part of steps/steps.hpp that Cython code of echo_core itself uses.
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from echo_core.spec.pytree.flattener cimport Flattener
from echo_replay.tables.replay_info cimport ReplayLease
from echo_replay.tables.table cimport Table
from echo_replay.tables.replay_table cimport ReplayTable
from echo_core.store.door.echo_run cimport echo_run

cdef extern from "steps/steps.hpp" namespace "echo::replay" nogil:
    cdef struct Cut:
        uint32_t lookback, forward, period
        cbool pad, transitions, slices, by_steps

    cdef struct View:
        uint32_t burn_in
        vector[uint32_t] stack
        cbool repeat
        int32_t reward
        cbool wide
        double gamma
        uint32_t spans

    cdef struct StepCounters:
        uint64_t steps, held, streams, episodes, truncated, backlog

    cdef cppclass Link:
        pass

    cdef cppclass Made:
        pass

    cdef struct StepsImage:
        uint64_t head, tail, steps, episodes, truncated
        vector[uint8_t] states
        vector[Link] links
        vector[uint64_t] streams
        vector[Made] backlog
        vector[uint64_t] runs

    cdef cppclass Steps:
        uint64_t rows_ready()
        Steps(const vector[uint64_t]&, uint64_t, const Cut&, const View&, Table*, int, uint64_t) except +
        void retain()
        void release()
        int claim(uint32_t, echo_run*)
        char* leaf(const echo_run&, uint32_t)
        void commit(const echo_run&)
        int wait_space(int64_t)
        size_t end_streams(uint64_t)
        StepCounters counters()
        uint64_t capacity()
        uint64_t leaf_bytes(uint32_t)
        void save(StepsImage*) except +
        void restore(const StepsImage&, uint64_t) except +
        void copy_steps(uint32_t, uint64_t, uint64_t, char*)
        void place_steps(uint32_t, uint64_t, uint64_t, const char*)
        uint64_t head()
        void flush()


cdef class StepTable(ReplayTable):
    cdef Steps* steps
    cdef Flattener batch_flattener, next_flattener, figures_flattener
    cdef readonly object layout, step
    cdef readonly set restored_clients

    cdef list trees(self, ReplayLease lease)
