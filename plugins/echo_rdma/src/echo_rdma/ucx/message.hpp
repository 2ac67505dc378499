// The messages between two ends: active messages with one kind of header, in native byte order, because UCX itself needs machines of the same order.
#pragma once

#include <cstdint>
#include <ctime>

namespace echo_rdma {

enum Kind : uint8_t {
    STREAM = 1,  // bytes of the channel; number: index of the piece, from 0; flag WHOLE: a send ends with it
    CREDIT = 2,  // number: bytes of the stream that have been read in total
    END = 3,     // the sender sends no more pieces; number: how many it sent
    ENDED = 4,   // the answer to END: all pieces have arrived
    BEAT = 5,    // a heartbeat
    SAMPLES = 6, // count samples, the first is number; payload: sample after sample, each leaf after leaf
    ACK = 7,     // number: samples committed; limit: the last number that may be sent
    PART = 8,    // bytes of sample number, from byte limit on; parts come in order, and this worker sends nothing else in between
    KEY = 9,     // a key to memory of the worker: limit bytes from address number on; count: the lease; payload: the key
    SHOWN = 10,  // count samples, the first is number; they lie limit bytes behind the start of that memory, laid out as in SAMPLES
};

constexpr uint8_t WHOLE = 1;
constexpr uint8_t READS = 2; // flag of ACK: the learner has opened the worker's memory

struct Head {
    uint8_t kind;
    uint8_t flags = 0;
    uint16_t zero = 0;
    uint32_t count = 0;
    uint64_t number = 0;
    uint64_t limit = 0;
};
static_assert(sizeof(Head) == 24);

constexpr unsigned MESSAGE_ID = 0;
constexpr size_t PIECE_BYTES = 256 << 10;  // most bytes of one STREAM message
constexpr size_t COPIED_BYTES = 4 << 10;   // UCX copies a payload of up to this size, so that the call completes at once
constexpr uint64_t STREAM_CREDIT = 4 << 20; // most bytes of the stream that are sent and not yet read by the other end

inline int64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

} // namespace echo_rdma
