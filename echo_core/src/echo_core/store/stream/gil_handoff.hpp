// Passing the GIL between a writer and a learner of one process without sleeping.
//
// Two Python threads that feed each other through the store take turns: the learner cannot run while the writer holds the GIL, and
// the writer cannot run while the learner holds it. Without this file, each turn costs a wake-up of a sleeping thread (30 us), as much as
// hundreds of inserts. So the waiting thread spins for a moment, and takes the GIL only after the other thread has released it; taking it
// then does not sleep. All of this is a hint: it is relaxed, limited in time, and switched off for a while after it brought no gain. Long waits,
// and writers outside Python (a transport's threads), never spin.
#pragma once

#include <atomic>

#include "../wait/event_count.hpp"

namespace echo {

class Side {
public:
    // What the thread does: it runs (it has the GIL or is about to take it), it spins, or it sleeps and will take long to come back.
    void runs() {
        if (state_.load(std::memory_order_relaxed) != kRuns) state_.store(kRuns, std::memory_order_relaxed);
    }
    void spins() { state_.store(kSpins, std::memory_order_relaxed); }
    void sleeps() { state_.store(kSleeps, std::memory_order_relaxed); }

    // Call this without the GIL. It waits briefly until `ready()` holds and `other` has released the GIL. A caller that returns too early
    // sleeps, as it would without this call. Spinning is useless only if `other` sleeps. It is worth it if `other` was woken or spins as
    // well: otherwise two sides that have both slept once would wake each other from sleep for ever.
    template <class Ready>
    void spin(const Side &other, Ready ready) {
        if (other.state_.load(std::memory_order_relaxed) == kSleeps) return;
        if (skip_.load(std::memory_order_relaxed) > 0) {
            skip_.fetch_sub(1, std::memory_order_relaxed);
            return;
        }
        const int64_t end = now_ns() + kSpinNs;
        do {
            for (int i = 0; i < 32; ++i) breathe();
            if (other.state_.load(std::memory_order_relaxed) != kRuns && ready()) return;
        } while (now_ns() < end);
        skip_.store(kPenalty, std::memory_order_relaxed);
    }

    // The same if the others run elsewhere (in other processes) and do not need this process's GIL. If a call brought no gain, the next
    // waits sleep at once.
    template <class Ready>
    void watch(Ready ready) {
        if (skip_.load(std::memory_order_relaxed) > 0) {
            skip_.fetch_sub(1, std::memory_order_relaxed);
            return;
        }
        const int64_t end = now_ns() + kWatchNs;
        do {
            for (int i = 0; i < 32; ++i) breathe();
            if (ready()) return;
        } while (now_ns() < end);
        skip_.store(kPenalty, std::memory_order_relaxed);
    }

private:
    // This is less than the processor time of a wake-up: on a machine with as many workers as cores, a learner that watches keeps one of them from working.
    static constexpr int64_t kWatchNs = 10'000;
    static constexpr int64_t kSpinNs = 150'000;
    static constexpr int kPenalty = 15;  // number of waits that sleep at once after one that spun in vain

    static void breathe() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        asm volatile("yield");
#endif
    }

    enum State { kSleeps, kSpins, kRuns };
    std::atomic<int> state_{kSleeps};
    std::atomic<int> skip_{0};
};

}  // namespace echo
