# The part of tables/records/records.hpp that Cython code of echo_replay itself uses.
from libc.stdint cimport int32_t, int64_t, uint32_t, uint64_t
from libcpp cimport bool as cbool
from libcpp.vector cimport vector

from echo_core.base.memory.page_lock cimport PageLock
from echo_core.store.door.door cimport Door
from echo_core.store.door.echo_run cimport echo_run
from echo_replay.tables.table cimport Answer, Batch, Table

cdef extern from "tables/records/records.hpp" namespace "echo" nogil:
    cdef struct RecordHeader:
        uint32_t lengths[4]
        uint64_t priority
        uint64_t version

    uint64_t UNLABELLED

cdef extern from "tables/records/records.hpp" namespace "echo::replay" nogil:
    cdef struct RecordRow:
        uint32_t lengths[4]
        uint64_t bytes

    cdef struct RecordLeaf:
        uint64_t bytes
        int32_t axis

    cdef cppclass RecordLayout:
        vector[RecordLeaf] leaves
        vector[uint32_t] most

    cdef cppclass PackedBatch:
        char* memory
        uint64_t mapped
        uint64_t totals[4]
        int32_t* offsets[4]
        vector[char*] leaf

    cdef struct RecordCounters:
        uint64_t pages, pages_free, incomplete, refused, half_sent, half_sent_bytes, waiting
        int64_t rows[4]
        uint64_t rows_in[4]
        uint64_t rows_out[4]

    cdef struct Stuck:
        uint64_t size, bytes_wanted, bytes_free

    cdef cppclass Pages:
        pass

    cdef cppclass Records:
        Records(const RecordLayout&, uint64_t, Table*, int) except +
        void retain()
        void release()
        int claim(uint32_t, echo_run*)
        int wait_space(int64_t)
        cbool forget_client(uint64_t)
        vector[uint64_t] clients() except +
        void limit_half_sent(uint64_t)
        int insert(const RecordHeader&, const char**, uint64_t*)
        int wait_room(const uint32_t*, int64_t)
        void settle()
        PackedBatch* take_packed(uint64_t, const uint64_t*) except +
        void give_back(PackedBatch*)
        void lock_pages(const PageLock&)
        void gather(Batch*)
        void count_drawn(const PackedBatch*)
        Answer sample_units(Batch*, uint32_t, uint64_t)
        cbool stuck(uint64_t, Stuck*)
        RecordCounters counters()
        RecordRow row_of(uint32_t)
        void copy_record(uint32_t, char*)
        void place_record(uint32_t, const uint32_t*, const char*, cbool)
        vector[char] waiting_records() except +
        void add_waiting(const RecordHeader&, const char*) except +
        uint64_t page_bytes()

    Door* open_records(Records*) except +
    uint64_t PAGE_BYTES "echo::replay::Pages::kBytes"
    uint64_t MOST_PAGES "echo::replay::Pages::kMost"
