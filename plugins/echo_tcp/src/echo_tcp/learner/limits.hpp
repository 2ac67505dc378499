// The limits of what a worker may send: every header is checked here before it has any effect.
#pragma once

#include <algorithm>
#include <string>

#include "../frame.hpp"

namespace echo_tcp::learner {

// Describes how `h` breaks the protocol; empty if it is valid. `labels`: whether the store takes samples with labels.
inline std::string breach(const FrameHeader &h, std::uint64_t sample_bytes, bool labels = false) {
    const auto frame = [&h](const char *name) {
        return std::string(name) + " frame of " + std::to_string(h.length) + " bytes, count " +
               std::to_string(h.count) + ", number " + std::to_string(h.seq);
    };
    if (h.kind < 1 || h.kind > std::uint8_t(Kind::bye)) return "frame of unknown kind " + std::to_string(h.kind);
    if (h.table != 0) return "frame for table " + std::to_string(h.table) + ", there is only table 0";
    if (h.seq >> 63) return "frame with a number beyond 2**63 - 1";
    std::uint8_t flags = 0;
    std::uint64_t least = 0, most = 0;
    const char *name = "";
    switch (static_cast<Kind>(h.kind)) {
        case Kind::data:
            if (h.flags & ~(flag_more | flag_labels)) return "DATA frame with unknown flags " + std::to_string(h.flags);
            if (h.flags & flag_labels && !labels) return "samples with labels, which only replay tables take";
            if (h.count < 1 || h.count > max_data_count || h.seq < 1)
                return frame("DATA") + ": samples are numbered from 1 and at most " +
                       std::to_string(max_data_count) + " travel in a frame";
            // The product cannot overflow: count is at most 2^16, and a sample that fits in memory is far below 2^47 bytes.
            if (h.length != h.count * (sample_bytes + (h.flags & flag_labels ? label_bytes : 0)))
                return frame("DATA") + " where a sample is " + std::to_string(sample_bytes) + " bytes";
            if (h.count * sample_bytes > std::max(max_data_bytes, sample_bytes))
                return frame("DATA") + ", the limit is " + std::to_string(max_data_bytes) + " bytes";
            return {};
        case Kind::control: name = "CONTROL"; flags = flag_reply; least = 4; most = max_control_bytes; break;
        case Kind::receipt: name = "RECEIPT"; least = most = 8; break;
        case Kind::subscribe: name = "SUBSCRIBE"; flags = flag_waiting; break;
        case Kind::ping: name = "PING"; flags = flag_reply; break;
        case Kind::bye: name = "BYE"; most = max_bye_bytes; break;
        case Kind::ack: return "an ACK frame, which only learners send";
        case Kind::weights: return "a WEIGHTS frame, which only learners send";
    }
    if (h.flags & ~flags) return std::string(name) + " frame with unknown flags " + std::to_string(h.flags);
    if (h.count != 0 || h.length < least || h.length > most)
        return frame(name) + ": expected count 0 and " + std::to_string(least) + " to " +
               std::to_string(most) + " bytes";
    return {};
}

}  // namespace echo_tcp::learner
