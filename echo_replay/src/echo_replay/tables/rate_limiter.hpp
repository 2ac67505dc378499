// When inserts and samples must wait: the rate limiter of Reverb (Cassirer et al. 2021, rate_limiter.cc), with its formulas.
//
//   can_insert(n): size + n <= min_size  or  (inserts + n) * r - samples <= max_diff
//   can_sample(n): size >= min_size      and  inserts * r - samples - n >= min_diff
//
// r is samples_per_insert, and size is the number of items in the table. In a queue, items that were removed without having been sampled
// (deleted, refused, too large a policy lag) count as sampled; in Reverb each of them takes one place of the queue for ever. Inserts that are
// claimed and not committed count as done in can_insert, so that several writers together never exceed the limit. They do not count in
// can_sample. Not thread-safe: the table's mutex guards it.
#pragma once

#include <cmath>
#include <cstdint>

namespace echo::replay {

struct Limits {
    double samples_per_insert, min_diff, max_diff;
    int64_t min_size;
};

class Limiter {
public:
    explicit Limiter(const Limits &limits) : limits_(limits) {}

    bool can_insert(int64_t n, int64_t size) const {
        return size + pending + n <= limits_.min_size ||
               double(inserts + pending + n) * limits_.samples_per_insert - double(samples + spared) <= limits_.max_diff;
    }
    // Returns how many of `wanted` inserts may happen now.
    int64_t room(int64_t wanted, int64_t size) const {
        if (can_insert(wanted, size)) return wanted;
        const double by_rate =
            std::floor((limits_.max_diff + double(samples + spared)) / limits_.samples_per_insert) - double(inserts + pending);
        const int64_t by_size = limits_.min_size - size - pending;
        int64_t n = by_rate > double(by_size) ? int64_t(by_rate) : by_size;
        if (n >= wanted) n = wanted - 1;
        if (n < 0) n = 0;
        // The quotient is rounded, so the formula itself decides.
        while (n > 0 && !can_insert(n, size)) --n;
        while (n + 1 < wanted && can_insert(n + 1, size)) ++n;
        return n;
    }
    bool can_sample(int64_t n, int64_t size) const {
        return size >= limits_.min_size &&
               double(inserts) * limits_.samples_per_insert - double(samples + spared) - double(n) >= limits_.min_diff;
    }
    const Limits &limits() const { return limits_; }

    int64_t inserts = 0, samples = 0, pending = 0;
    int64_t spared = 0;  // items of a queue that were removed without having been sampled

private:
    const Limits limits_;
};

}  // namespace echo::replay
