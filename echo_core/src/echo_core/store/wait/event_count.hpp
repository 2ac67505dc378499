// Sleeping until a condition holds that another thread makes true: an event count over one futex word.
//
// The two sides must not miss each other. The waiter says "I am waiting" and then looks at the condition; the notifier changes
// the condition and then looks for waiters. Both sides store and then load, on two different words, so only sequentially consistent
// order excludes that neither sees the other (SYNC wakeup, below, at both ends). With acquire/release alone, both loads may
// be served before the stores, and a wake-up is lost for good.
#pragma once

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <ctime>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace echo {

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

class EventCount {
public:
    // shared: threads of other processes wait and notify too, through the same memory.
    explicit EventCount(bool shared = false) : private_(shared ? 0 : FUTEX_PRIVATE_FLAG) {}

    // Call this after a sequentially consistent write that may have made the condition true. It costs one load while nobody waits. It
    // returns whether any thread had to be woken.
    bool notify(int how_many) {
        if (waiters_.load(std::memory_order_seq_cst) == 0) return false;  // SYNC wakeup
        epoch_.fetch_add(1, std::memory_order_seq_cst);
        futex(FUTEX_WAKE, how_many, nullptr);
        return true;
    }

    // Sleeps until `ready()` (which must load with seq_cst) or the deadline (a time of now_ns(); a negative one means none). The call never
    // returns spuriously: its result is the last result of ready(). A signal ends the sleep early so that Python can handle it; the result
    // is then false. `mark` is 1 only while this call counts as a waiter: if the waiter is killed, another process reads `mark` and calls forget().
    template <class Ready>
    bool wait(Ready ready, int64_t deadline, std::atomic<uint32_t> *mark = nullptr) {
        waiters_.fetch_add(1, std::memory_order_seq_cst);  // SYNC wakeup
        if (mark) mark->store(1, std::memory_order_release);
        bool answer;
        for (;;) {
            const uint32_t epoch = epoch_.load(std::memory_order_seq_cst);
            answer = ready();
            if (answer) break;
            timespec relative;
            timespec *limit = nullptr;
            if (deadline >= 0) {
                const int64_t left = deadline - now_ns();
                if (left <= 0) break;
                relative = {time_t(left / 1'000'000'000), long(left % 1'000'000'000)};
                limit = &relative;
            }
            // The kernel compares the word with `epoch` atomically: if a notify came after our load, this returns at once.
            if (futex(FUTEX_WAIT, int(epoch), limit) != 0 && errno == EINTR) {
                answer = ready();
                break;
            }
        }
        if (mark) mark->store(0, std::memory_order_release);
        waiters_.fetch_sub(1, std::memory_order_seq_cst);
        return answer;
    }

    // Removes a waiter that was killed and cannot leave by itself. One waiter too many costs a system call now and then; one too few loses a wake-up.
    void forget() { waiters_.fetch_sub(1, std::memory_order_seq_cst); }

    uint32_t waiters() const { return waiters_.load(std::memory_order_relaxed); }

private:
    long futex(int operation, int value, const timespec *limit) {
        return syscall(SYS_futex, reinterpret_cast<uint32_t *>(&epoch_), operation | private_, value, limit, nullptr, 0);
    }

    std::atomic<uint32_t> epoch_{0};    // invariant: changes between a notify and the return of every wait that it wakes
    std::atomic<uint32_t> waiters_{0};  // invariant: >= the number of threads inside futex wait
    const int private_;
};

}  // namespace echo
