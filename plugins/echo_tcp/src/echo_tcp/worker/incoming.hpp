// Parses the learner's messages: acknowledgements, weights, answers, pings, and the goodbye.
//
// The I/O thread alone feeds it with bytes of the socket, in pieces of any size. Every announced length
// is checked before memory is taken for it. An error text means that the peer broke the format.
#pragma once

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../frame.hpp"
#include "../recycled_buffers.hpp"
#include "weights.hpp"

namespace echo_tcp::worker {

class Incoming {
public:
    struct Message {  // CONTROL and PING
        FrameHeader header;
        std::string payload;
    };

    // Collected since the owner last looked. The owner takes what it needs and calls taken().
    std::optional<std::uint64_t> ack;  // the newest number, or (original protocol) further samples
    std::uint32_t crowd = 0;           // workers that send at this time, as the newest acknowledgement says
    std::vector<Message> messages;
    std::optional<WeightsBlob> weights;  // the newest version that is whole
    std::optional<std::string> bye;
    bool job_ended = false;  // whether the goodbye says so
    const std::shared_ptr<RecycledBuffers> recycled = std::make_shared<RecycledBuffers>();  // readers of a message give its memory back here

    explicit Incoming(bool original) : original_(original) {}

    void taken() {
        ack.reset();
        messages.clear();
        weights.reset();
        bye.reset();
        job_ended = false;
    }

    // Begins with a new link: discards a message that was read in part from the old one.
    void restart() {
        have_ = 0;
        body_left_ = 0;
        last_ack_ = 0;
        crowd = 0;
        small_.clear();
        assembly_.restart();
        taken();
    }

    bool in_weights() const noexcept { return kind() == Kind::weights; }  // whether the last header was one of weights

    // Returns nullptr, or a text that says what is wrong.
    const char* feed(const std::byte* data, std::size_t n) {
        if (original_) return feed_original(data, n);
        while (n) {
            if (have_ < sizeof header_) {
                std::size_t part = std::min(n, sizeof header_ - have_);
                std::memcpy(reinterpret_cast<std::byte*>(&header_) + have_, data, part);
                have_ += part;
                data += part;
                n -= part;
                if (have_ < sizeof header_) break;
                if (const char* wrong = begin()) return wrong;
            } else {
                std::size_t part = std::min<std::uint64_t>(n, body_left_);
                if (const char* wrong = body(data, part)) return wrong;
                body_left_ -= part;
                data += part;
                n -= part;
            }
            if (body_left_ == 0) {
                if (const char* wrong = end()) return wrong;
                have_ = 0;
            }
        }
        return nullptr;
    }

private:
    static constexpr std::uint64_t max_number = (std::uint64_t{1} << 63) - 1;

    Kind kind() const noexcept { return static_cast<Kind>(header_.kind); }

    static const char* within(bool ok, const char* otherwise) { return ok ? nullptr : otherwise; }

    const char* begin() {
        body_left_ = header_.length;
        small_.clear();
        if (header_.table || (header_.count && kind() != Kind::ack) || header_.seq > max_number) {
            return "it sent a frame header with impossible fields";
        }
        const std::uint8_t flags = header_.flags;
        const std::uint64_t length = header_.length;
        switch (kind()) {
            case Kind::ack:
                return within(!flags && !length, "it sent an ACK frame with flags or a payload");
            case Kind::control:
                if ((flags & ~flag_reply) || length < 4 || length > max_control_bytes) {
                    return "it sent a CONTROL frame of an impossible size";
                }
                small_ = recycled->take(length);
                return nullptr;
            case Kind::ping:
                return within(!(flags & ~flag_reply) && !length,
                              "it sent a PING frame with a payload");
            case Kind::bye:
                return within(!(flags & ~flag_ended) && length <= max_bye_bytes, "it sent a BYE frame too long");
            case Kind::weights:
                if ((flags & ~(flag_first_chunk | flag_last_chunk)) || !length ||
                    length > max_weights_chunk) {
                    return "it sent a WEIGHTS frame of an impossible size";
                }
                return assembly_.begin_chunk(header_);
            default: return "it sent a frame of a kind that does not travel to workers";
        }
    }

    const char* body(const std::byte* data, std::size_t n) {
        if (kind() == Kind::weights) return assembly_.add(data, n);
        small_.append(reinterpret_cast<const char*>(data), n);
        return nullptr;
    }

    const char* end() {
        switch (kind()) {
            case Kind::ack:
                if (header_.seq < last_ack_) return "it took an acknowledgement back";
                last_ack_ = header_.seq;
                ack = header_.seq;
                crowd = header_.count;
                break;
            case Kind::control:
            case Kind::ping: messages.push_back({header_, std::move(small_)}); break;
            case Kind::bye:
                bye = std::move(small_);
                job_ended = header_.flags & flag_ended;
                break;
            case Kind::weights:
                if (header_.flags & flag_last_chunk) return assembly_.finish(weights);
                break;
            default: break;
        }
        return nullptr;
    }

    const char* feed_original(const std::byte* data, std::size_t n) {
        for (std::size_t i = 0; i < n; ++i) {
            if (data[i] != std::byte{1}) return "it sent something else than acknowledgements";
        }
        ack = ack.value_or(0) + n;
        return nullptr;
    }

    const bool original_;
    FrameHeader header_{};
    std::size_t have_ = 0;         // bytes of header_ that have come
    std::uint64_t body_left_ = 0;  // bytes of its payload that are still to come
    std::uint64_t last_ack_ = 0;
    std::string small_;
    WeightsAssembly assembly_;
};

}  // namespace echo_tcp::worker
