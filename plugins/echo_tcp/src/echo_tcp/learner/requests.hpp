// Requests of clients, from the loops to the threads that carry them out. The requests of one client are carried out one after another, in
// order; those of different clients side by side.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <optional>

#include "events.hpp"

namespace echo_tcp::learner {

struct Request {
    std::uint64_t group = 0;   // of the loops that the client belongs to
    std::uint64_t client = 0;  // its key in these loops
    std::uint64_t number = 0;  // of the request
    std::string payload;
};

class Requests {
public:
    Requests() : fd_(eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC)) {
        if (fd_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    }
    ~Requests() { close(fd_); }
    Requests(const Requests &) = delete;
    Requests &operator=(const Requests &) = delete;

    void put(Request request) {
        std::lock_guard<std::mutex> lock(lock_);
        Queue &queue = queues_[{request.group, request.client}];
        queue.waiting.push_back(std::move(request));
        if (queue.waiting.size() == 1 && !queue.busy) make_ready(queue);
    }

    // Waits for the next request. The caller carries it out and then calls done(). Nothing: the queue is over and empty.
    std::optional<Request> take() {
        idle_.fetch_add(1, std::memory_order_relaxed);
        std::uint64_t one;
        while (read(fd_, &one, sizeof one) < 0 && errno == EINTR) {}
        idle_.fetch_sub(1, std::memory_order_relaxed);
        std::lock_guard<std::mutex> lock(lock_);
        if (ready_.empty()) return {};
        Queue &queue = *ready_.front();
        ready_.pop_front();
        queue.busy = true;
        Request request = std::move(queue.waiting.front());
        queue.waiting.pop_front();
        return request;
    }

    void done(std::uint64_t group, std::uint64_t client) {
        std::lock_guard<std::mutex> lock(lock_);
        const auto found = queues_.find({group, client});
        found->second.busy = false;
        if (found->second.waiting.empty()) {
            queues_.erase(found);
        } else {
            make_ready(found->second);
        }
    }

    // Whether requests of this client wait or are being carried out.
    bool has(std::uint64_t group, std::uint64_t client) const {
        std::lock_guard<std::mutex> lock(lock_);
        return queues_.count({group, client}) != 0;
    }

    // How many threads wait for a request, about.
    unsigned idle() const noexcept { return idle_.load(std::memory_order_relaxed); }

    // take() waits no more: it returns what is left, then nothing.
    void end() noexcept {
        const std::uint64_t many = 1 << 20;
        [[maybe_unused]] const auto written = write(fd_, &many, sizeof many);
    }

private:
    struct Queue {
        std::deque<Request> waiting;
        bool busy = false;  // one of its requests is being carried out
    };

    void make_ready(Queue &queue) {
        ready_.push_back(&queue);
        ring_eventfd(fd_);
    }

    const int fd_;
    mutable std::mutex lock_;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Queue> queues_;  // a map, because its elements stay in their places
    std::deque<Queue *> ready_;
    std::atomic<unsigned> idle_{0};
};

}  // namespace echo_tcp::learner
