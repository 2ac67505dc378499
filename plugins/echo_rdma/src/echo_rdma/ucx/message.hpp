// What two ends say to each other: active messages of one kind of header, both native-endian (UCX itself needs machines of one order).
#pragma once

#include <cstdint>
#include <ctime>

namespace echo_rdma {

enum Kind : uint8_t {
    STREAM = 1,  // bytes of the channel; number: index of the piece, from 0; flag WHOLE: a send ends with it
    CREDIT = 2,  // number: bytes of the stream that have been read, all in all
    END = 3,     // number: how many pieces there were; no more come
    ENDED = 4,   // answer to END: all of it has arrived
    BEAT = 5,    // still here
    SAMPLES = 6, // count samples, the first is number; payload: sample after sample, each leaf after leaf
    ACK = 7,     // number: samples committed; limit: the last number that may be sent
    PART = 8,    // of sample number, the bytes from limit on; in order, and nothing else of this worker's in between
    KEY = 9,     // to memory of the worker, limit bytes from address number on; count: the lease; payload: the key
    SHOWN = 10,  // count samples, the first is number; they lie limit bytes behind the start of that memory, as in SAMPLES
};

constexpr uint8_t WHOLE = 1;
constexpr uint8_t READS = 2; // of ACK: the learner has opened the worker's memory

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
constexpr size_t PIECE_BYTES = 256 << 10;  // of one STREAM message
constexpr size_t COPIED_BYTES = 4 << 10;   // up to which UCX is to copy a payload, and be done with it
constexpr uint64_t STREAM_CREDIT = 4 << 20; // of the stream, sent and not read by the other end

inline int64_t clock_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

} // namespace echo_rdma
