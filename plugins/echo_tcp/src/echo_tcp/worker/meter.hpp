// A worker's counters. They are plain numbers, because they change only under the engine's mutex.
#pragma once

#include <array>
#include <bit>
#include <chrono>
#include <cstdint>

namespace echo_tcp::worker {

inline std::uint64_t now_ns() noexcept {
    return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                      std::chrono::nanoseconds(1));
}

// A histogram of round-trip times in quarter octaves: a quantile is exact to about 10 %.
class Latency {
public:
    void record(std::uint64_t ns) noexcept {
        ++counts_[index(ns)];
        ++total_;
    }

    std::uint64_t quantile(double q) const noexcept {
        if (!total_) return 0;
        auto rank = static_cast<std::uint64_t>(q * static_cast<double>(total_ - 1));
        std::uint64_t seen = 0;
        for (std::size_t i = 0; i < counts_.size(); ++i) {
            seen += counts_[i];
            if (seen > rank) return (4 + i % 4) << (i / 4);
        }
        return 0;
    }

private:
    static std::size_t index(std::uint64_t ns) noexcept {
        if (ns < 4) ns = 4;
        auto octave = static_cast<std::size_t>(std::bit_width(ns)) - 3;
        return octave * 4 + ((ns >> octave) & 3);
    }

    std::array<std::uint64_t, 62 * 4> counts_{};
    std::uint64_t total_ = 0;
};

struct Counters {
    std::uint64_t bytes_sent = 0;    // written to sockets, headers and repetitions included
    std::uint64_t bytes_received = 0;
    std::uint64_t frames_sent = 0;   // DATA frames begun, repetitions included
    std::uint64_t send_blocked = 0;  // calls that had to wait for room
    std::uint64_t blocked_ns = 0;    // and how long they waited in total
    std::uint64_t answers = 0;       // to requests
    std::uint64_t links = 0;         // connections made
    std::uint64_t restarts = 0;      // connections to a learner that had been restarted
};

}  // namespace echo_tcp::worker
