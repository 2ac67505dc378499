// How long a wait looks again and again before it sleeps.
//
// A wake-up takes about as long as kMost. So spinning saves time if the wait is shorter, and costs at most as much again if it is longer (competitive
// spinning: Karlin et al., "Empirical studies of competitive spinning for a shared-memory multiprocessor", 1991). Most waits resemble the one before:
// the time is halved after each long wait, and is kMost again after a short one. A learner that waits long for each rollout soon stops spinning.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>

namespace echo_ipc {

class Spin {
public:
    static constexpr int64_t kMost = 50'000;  // ns

    // ns; 0 on a single processor, where the other side cannot run meanwhile.
    int64_t time() const { return time_.load(std::memory_order_relaxed); }

    // `found`: whether there was something in the end.
    void waited(int64_t ns, bool found) {
        if (alone()) return;
        const int64_t half = time() / 2;
        if (ns > 2 * kMost) time_.store(half < kLeast ? 0 : half, std::memory_order_relaxed);
        else if (found) time_.store(kMost, std::memory_order_relaxed);
    }

private:
    static constexpr int64_t kLeast = 1'000;

    static bool alone() {
        static const bool one = [] {
            cpu_set_t usable;
            return sched_getaffinity(0, sizeof usable, &usable) == 0 && CPU_COUNT(&usable) == 1;
        }();
        return one;
    }

    std::atomic<int64_t> time_{alone() ? 0 : kMost};
};

}  // namespace echo_ipc
