// Eventfds that are written once when a store has space, or when a batch can be drawn: for threads that sleep in poll or epoll, where an
// event count cannot wake them.
//
// A thread that arms an eventfd announces it and then looks for space. A thread that makes space looks for armed eventfds afterwards
// (SYNC wakeup, as in event_count.hpp: the order is sequentially consistent at both ends, otherwise a wake-up is lost).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <unistd.h>
#include <vector>

#include "../../base/memory/fork_count.hpp"

namespace echo {

class SpaceEventfds {
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
    // Call this after a sequentially consistent write that may have made space.
    bool any() const { return count_.load(std::memory_order_seq_cst) != 0; }  // SYNC wakeup
    void signal() {
        // A forked child must not write: the eventfds are still the parent's, and the lock may be held by a thread that does not exist in the child.
        if (!any() || fork_count() != born_) return;
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

    const uint32_t born_ = fork_count();
    std::atomic<uint32_t> count_{0};
    std::mutex lock_;  // held while an eventfd is written, so that nobody writes to a descriptor after disarm() returned and it was closed
    std::vector<int> armed_;
};

}  // namespace echo
