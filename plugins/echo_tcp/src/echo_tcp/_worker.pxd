# cython: language_level=3
# Cython declarations of the worker's engine (worker/engine.hpp), and the objects around it.
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp cimport bool
from libcpp.memory cimport shared_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

cdef extern from "worker/engine.hpp" namespace "echo_tcp::worker" nogil:
    uint64_t now_ns()  # CLOCK_MONOTONIC
    cdef enum class Status:
        ok
        due
        wait
        closed
        failed
        lost

    cdef cppclass Pages:
        const void* data()
        size_t size()

    cdef cppclass WeightsBlob:
        uint64_t version
        string meta
        Pages payload

    cdef cppclass RecycledBuffers "echo_tcp::RecycledBuffers":
        void give(string)

    cdef cppclass EngineConfig:
        bool original
        uint64_t block_bytes
        uint64_t window_bytes
        uint64_t window_samples
        uint32_t silence_ms

    cdef cppclass Counters:
        uint64_t bytes_sent
        uint64_t bytes_received
        uint64_t frames_sent
        uint64_t send_blocked
        uint64_t blocked_ns
        uint64_t answers
        uint64_t links
        uint64_t restarts

    cdef cppclass EngineStats:
        Counters counters
        uint64_t appended
        uint64_t acked
        uint64_t window_bytes
        uint64_t version
        uint64_t holds
        uint64_t rtt_p50
        uint64_t rtt_p99
        bool connected

    cdef cppclass Leftover "echo_tcp::worker::Engine::Leftover":
        uint32_t count
        bool labelled
        string payload

    cdef cppclass Engine:
        Engine(const vector[uint64_t]& leaf_bytes, const EngineConfig& config) except +
        bool small()
        Status put_one(const void* const* leaves, const void* labels) except +
        Status put(const void* const* leaves, uint64_t n, int64_t slice_ns, bool again, const void* labels) except +
        void pump() except +
        uint64_t appended()
        Status flushed(uint64_t number, int64_t slice_ns) except +
        Status acknowledged(uint64_t number, int64_t slice_ns) except +
        uint64_t ask(const string& payload) except +
        Status answer(uint64_t id, int64_t slice_ns, string& payload) except +
        shared_ptr[RecycledBuffers] recycled()
        void forget(uint64_t id)
        void subscribe() except +
        void waits_for_weights(bool begins) except +
        bool take_weights(WeightsBlob& out)
        void hold(uint64_t number, uint64_t digest) except +
        uint64_t holds()
        Status held(uint64_t holds_before, int64_t slice_ns)
        bool attach(int fd, const string& rest, uint32_t beat_ms, bool restarted) except +
        unsigned wait_event(int64_t slice_ns)
        Status linked(int64_t slice_ns)
        void fail(const string& why, bool broken_format)
        void end_job()
        void damaged(const string& why)
        uint64_t base()
        void begin_close()
        void part(const string& reason) except +
        Status parted(int64_t slice_ns)
        void stop()
        Leftover leftover(uint64_t) except +
        void leave_to_parent()
        Status state()
        bool forked()
        bool broken_format()
        bool job_ended()
        bool broken_weights()
        string why() except +
        EngineStats stats()

    void watch_forks()

    cppclass Descriptors "echo_tcp::Descriptors":
        void add(int)

    Descriptors sockets_of_ours "echo_tcp::sockets_of_ours"


cdef extern from "frame.hpp" namespace "echo_tcp" nogil:
    size_t HEADER_BYTES "sizeof(echo_tcp::FrameHeader)"
    int KIND_DATA "int(echo_tcp::Kind::data)"
    int KIND_ACK "int(echo_tcp::Kind::ack)"
    int KIND_CONTROL "int(echo_tcp::Kind::control)"
    int KIND_WEIGHTS "int(echo_tcp::Kind::weights)"
    int KIND_RECEIPT "int(echo_tcp::Kind::receipt)"
    int KIND_SUBSCRIBE "int(echo_tcp::Kind::subscribe)"
    int KIND_PING "int(echo_tcp::Kind::ping)"
    int KIND_BYE "int(echo_tcp::Kind::bye)"
    int flag_reply, flag_labels, flag_ended, flag_last_chunk, flag_first_chunk
    uint64_t LABEL_BYTES "echo_tcp::label_bytes"
    uint64_t max_data_bytes, max_data_count, max_control_bytes, max_weights_chunk, max_bye_bytes


# The goals that a call may wait for.
cdef enum Goal:
    FLUSHED       # the network has all samples up to a number
    ACKNOWLEDGED  # all samples up to a number are committed
    HELD          # more versions of weights have come than a given number
    LINKED        # the learner has sent the resume point
    PARTED        # the link has ended


cdef class Worker:
    cdef Engine* engine
    cdef Py_ssize_t count  # leaves of a sample
    cdef bint small        # copied with the GIL held
    cdef bint original
    cdef bint closed
    cdef bint end_is_told  # a caller has got the error that says that the job has ended
    cdef object untold     # the error that says what a close() that was interrupted could not say, or None
    cdef object spec
    cdef object flattener
    cdef double timeout
    cdef list spare        # an empty list for the next send, or None while a send uses it
    cdef tuple newest      # verified weights: (version, meta, Blob, digest, number of learner restarts before it)
    cdef int64_t shown     # `lives` of the weights that a caller got last; -1 if no caller got any
    cdef int64_t lives     # how often the learner that numbers the weights has changed, as far as weights have shown it
    cdef object numbered_by  # that learner
    cdef readonly str name
    cdef readonly str address

    cdef int take(self, object sample, const void** leaves, object timeout, const char* labels) except -1
    cdef int put(self, const void** leaves, uint64_t n, object timeout, const char* labels) except -1
    cdef int until(self, Goal goal, uint64_t number, Patience patience) except -1
    cdef int check(self) except -1
    cdef object error(self, Status status)


cdef class Patience:
    cdef Worker worker
    cdef object wait
    cdef double seconds, longest, began
    cdef bint looked
    cdef str what
    cdef object begun(self)
    cdef int64_t next_slice(self) except -1
    cdef str situation(self)
    cdef str advice(self)


cdef class Question:
    cdef Worker worker
    cdef uint64_t number
    cdef str op
    cdef bint over


cdef class Answer:
    cdef string payload
    cdef shared_ptr[RecycledBuffers] recycled


cdef class Blob:
    cdef WeightsBlob blob
