// Decides which loop's connections get space when the store is full and there are several loops.
//
// Without turns, a loop that is running when space appears would always be quicker than one that has to be
// woken, and its connections would get all the space. So loops queue up: the one in front serves each of its
// waiting connections once, passes the turn on, and wakes the next.
#pragma once

#include <algorithm>
#include <atomic>
#include <deque>
#include <mutex>

#include "events.hpp"

namespace echo_tcp::learner {

class Turns {
public:
    // The number of loops in the queue; it may be outdated at once.
    std::size_t waiting() const noexcept { return waiting_.load(std::memory_order_relaxed); }

    // Puts the calling loop into the queue if it is not there yet, and returns whether it is its turn. If not,
    // its `bell` (an eventfd, which identifies the loop here) is written when its turn comes.
    bool mine(int bell) {
        std::lock_guard<std::mutex> lock(lock_);
        if (std::find(queue_.begin(), queue_.end(), bell) == queue_.end()) queue_.push_back(bell);
        waiting_.store(queue_.size(), std::memory_order_relaxed);
        return queue_.front() == bell;
    }
    // The turn of `bell` is over and it wants another one. Returns whether that has already come.
    bool pass(int bell) {
        std::lock_guard<std::mutex> lock(lock_);
        if (queue_.size() == 1) return true;
        queue_.pop_front();
        queue_.push_back(bell);
        ring_eventfd(queue_.front());
        return false;
    }
    // No connection of that loop waits any more.
    void leave(int bell) {
        std::lock_guard<std::mutex> lock(lock_);
        const auto at = std::find(queue_.begin(), queue_.end(), bell);
        if (at == queue_.end()) return;
        const bool front = at == queue_.begin();
        queue_.erase(at);
        waiting_.store(queue_.size(), std::memory_order_relaxed);
        if (front && !queue_.empty()) ring_eventfd(queue_.front());
    }

private:
    std::mutex lock_;
    std::deque<int> queue_;
    std::atomic<std::size_t> waiting_{0};
};

}  // namespace echo_tcp::learner
