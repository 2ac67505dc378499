// Eventfds to be written once when a store has space: for those who sleep in epoll, where an event count cannot wake them.
//
// Who arms one says so and then looks for space; who makes space does so and then looks for armed ones (SYNC wakeup, as in
// event_count.hpp: sequentially consistent at both ends, or a wake-up is lost).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unistd.h>
#include <vector>

namespace echo {

class Bells {
public:
    void arm(int eventfd) {
        std::lock_guard<std::mutex> lock(lock_);
        armed_.push_back(eventfd);
        count();
    }
    void disarm(int eventfd) {
        std::lock_guard<std::mutex> lock(lock_);
        armed_.erase(std::remove(armed_.begin(), armed_.end(), eventfd), armed_.end());
        count();
    }
    // To be asked after a sequentially consistent write that may have made space.
    bool any() const { return count_.load(std::memory_order_seq_cst) != 0; }  // SYNC wakeup
    void ring() {
        // The eventfds are the parent's even in a forked child, and the lock may be held by a thread that does not exist there.
        if (!any() || getpid() != born_) return;
        std::lock_guard<std::mutex> lock(lock_);
        for (int fd : armed_) {
            const uint64_t one = 1;
            [[maybe_unused]] const auto written = write(fd, &one, sizeof one);
        }
        armed_.clear();
        count();
    }

private:
    void count() { count_.store(uint32_t(armed_.size()), std::memory_order_seq_cst); }  // SYNC wakeup

    const pid_t born_ = getpid();
    std::atomic<uint32_t> count_{0};
    std::mutex lock_;  // held while an eventfd is written: a disarmed descriptor can be closed without being written after
    std::vector<int> armed_;
};

}  // namespace echo
