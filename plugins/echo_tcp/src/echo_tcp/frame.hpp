// The byte stream of Echo's wire protocol after the handshake, as both native ends see it.
//
// Every message is one FrameHeader followed by `length` bytes of payload. echo_core/wire/protocol.py holds the
// same table for pure-Python peers; a test compares the two.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace echo_tcp {

// Headers and samples are written to the socket as they lie in memory.
static_assert(std::endian::native == std::endian::little,
              "echo's wire format is little-endian and nothing here swaps bytes");

enum class Kind : std::uint8_t {
    data = 1,       // worker -> learner: count samples, numbered from seq on (a session starts at 1)
    ack = 2,        // learner -> worker: seq samples are committed; the first is the resume point. count: connections that
                    // send samples at this time, or 0 if that is not known
    control = 3,    // both ways: u32 n, n bytes of JSON, then a raw blob; seq is the request's id
    weights = 4,    // learner -> worker: one chunk of version seq
    receipt = 5,    // worker -> learner: version seq is held whole; payload: its digest, u64
    subscribe = 6,  // worker -> learner: push weights newer than version seq; later ones only say whether a call waits
    ping = 7,       // both ways: seq comes back
    bye = 8,        // both ways: an orderly end; payload: the reason, UTF-8. A worker may come back unless it has flag_ended
};

// Bits of FrameHeader::flags. The meaning of bit 0 depends on the kind.
inline constexpr std::uint8_t flag_reply = 1;        // control, ping: this answers a request of the receiver
inline constexpr std::uint8_t flag_more = 1;         // data: another frame of samples follows, so this one needs no acknowledgement of its own
inline constexpr std::uint8_t flag_labels = 2;       // data: the labels of each sample (label_bytes) follow the leaves
inline constexpr std::uint8_t flag_ended = 1;        // bye of a learner: the job has ended, and the worker does not connect again
inline constexpr std::uint8_t flag_last_chunk = 1;   // weights: the version is whole with this one
inline constexpr std::uint8_t flag_waiting = 1;      // subscribe: a call of the worker waits for a version that it does not hold
inline constexpr std::uint8_t flag_first_chunk = 2;  // weights: discard a version that was begun before

struct FrameHeader {
    std::uint8_t kind;
    std::uint8_t flags;
    std::uint16_t table;
    std::uint32_t count;
    std::uint64_t seq;
    std::uint64_t length;
};

static_assert(sizeof(FrameHeader) == 24 && alignof(FrameHeader) == 8);
static_assert(offsetof(FrameHeader, kind) == 0 && offsetof(FrameHeader, flags) == 1);
static_assert(offsetof(FrameHeader, table) == 2 && offsetof(FrameHeader, count) == 4);
static_assert(offsetof(FrameHeader, seq) == 8 && offsetof(FrameHeader, length) == 16);
static_assert(std::is_trivially_copyable_v<FrameHeader>);

// The most that a peer may announce. A peer that announces more is broken; this is found before anything is allocated.
inline constexpr std::uint64_t max_data_bytes = 16u << 20;  // of samples without labels; or one sample, if that is larger
inline constexpr std::uint32_t max_data_count = 65536;

// A sample's labels are its priority and its policy version (echo_core/wire/labels.py). A sample without labels has only ones there.
inline constexpr std::uint64_t label_bytes = 16;
inline constexpr std::uint64_t max_control_bytes = 1u << 20;
inline constexpr std::uint64_t max_weights_chunk = 256u << 10;
inline constexpr std::uint64_t max_bye_bytes = 1u << 10;

inline FrameHeader make_header(Kind kind, std::uint64_t seq, std::uint64_t length = 0,
                               std::uint32_t count = 0, std::uint8_t flags = 0) noexcept {
    return FrameHeader{static_cast<std::uint8_t>(kind), flags, 0, count, seq, length};
}

}  // namespace echo_tcp
