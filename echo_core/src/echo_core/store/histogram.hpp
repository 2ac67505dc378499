// Latency histograms that cost little enough to be always on: eight buckets per octave (6 % wide on average), relaxed counters.
#pragma once

#include <atomic>
#include <bit>
#include <cstdint>

namespace echo {

class Histogram {
public:
    static constexpr int kBuckets = 16 + 60 * 8;

    void record(uint64_t nanoseconds) {
        counts_[bucket(nanoseconds)].fetch_add(1, std::memory_order_relaxed);
        sum_.fetch_add(nanoseconds, std::memory_order_relaxed);
        uint64_t seen = max_.load(std::memory_order_relaxed);
        while (nanoseconds > seen && !max_.compare_exchange_weak(seen, nanoseconds, std::memory_order_relaxed)) {}
        seen = min_.load(std::memory_order_relaxed);
        while (nanoseconds < seen && !min_.compare_exchange_weak(seen, nanoseconds, std::memory_order_relaxed)) {}
    }

    struct Snapshot {
        uint64_t count, min, max, p50, p90, p99;
        double mean;
    };

    // A reader may run at the same time as record(): every figure is one that was right at some moment during the call.
    Snapshot snapshot() const {
        uint64_t counts[kBuckets], total = 0;
        for (int i = 0; i < kBuckets; ++i) total += counts[i] = counts_[i].load(std::memory_order_relaxed);
        if (total == 0) return {0, 0, 0, 0, 0, 0, 0.0};
        Snapshot s{total, min_.load(std::memory_order_relaxed), max_.load(std::memory_order_relaxed), 0, 0, 0,
                   double(sum_.load(std::memory_order_relaxed)) / double(total)};
        if (s.min > s.max) s.min = s.max;  // the first record() is between its two updates
        const uint64_t rank[3] = {(total + 1) / 2, (total * 9 + 9) / 10, (total * 99 + 99) / 100};
        uint64_t *const out[3] = {&s.p50, &s.p90, &s.p99};
        uint64_t seen = 0;
        int next = 0;
        for (int i = 0; i < kBuckets && next < 3; ++i) {
            seen += counts[i];
            while (next < 3 && seen >= rank[next]) {
                const uint64_t middle = floor_of(i) + (floor_of(i + 1) - floor_of(i)) / 2;
                *out[next++] = middle < s.min ? s.min : middle > s.max ? s.max : middle;
            }
        }
        return s;
    }

    void reset() {
        for (auto &count : counts_) count.store(0, std::memory_order_relaxed);
        sum_.store(0, std::memory_order_relaxed);
        max_.store(0, std::memory_order_relaxed);
        min_.store(UINT64_MAX, std::memory_order_relaxed);
    }

private:
    static int bucket(uint64_t v) {
        if (v < 16) return int(v);
        const int octave = 63 - std::countl_zero(v);  // >= 4
        return 16 + (octave - 4) * 8 + int((v >> (octave - 3)) & 7);
    }
    static uint64_t floor_of(int i) {
        if (i < 16) return uint64_t(i);
        const int octave = (i - 16) / 8 + 4;
        if (octave > 63) return UINT64_MAX;
        return (uint64_t(8) + uint64_t((i - 16) % 8)) << (octave - 3);
    }

    std::atomic<uint64_t> counts_[kBuckets] = {};
    std::atomic<uint64_t> sum_{0}, max_{0}, min_{UINT64_MAX};
};

}  // namespace echo
