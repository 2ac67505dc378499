// Events from the loops to Python: a queue, and an eventfd that is readable while the queue is not empty.
#pragma once

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace echo_tcp::learner {

inline int new_eventfd() {
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (fd < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
    return fd;
}
inline void ring_eventfd(int fd) noexcept {
    const std::uint64_t one = 1;
    [[maybe_unused]] const auto written = write(fd, &one, sizeof one);
}
inline void clear_eventfd(int fd) noexcept {
    std::uint64_t count;
    [[maybe_unused]] const auto taken = read(fd, &count, sizeof count);
}

struct Event {
    enum Kind : int {
        added = 0,     // the first event of a connection; the connection is served after begin() has been called
        lost = 1,      // text: the reason; number: 1 if the peer broke the protocol
        receipt = 2,   // number: version; digest
        released = 3,  // number: the ticket of weights that are no longer in use
        holding = 4,   // memory that counts is held for a connection, see tell_when_holding()
    };
    Kind kind;
    std::uint64_t peer = 0;
    std::uint64_t number = 0;
    std::uint64_t digest = 0;
    std::string text;
};

class Events {
public:
    Events() : fd_(new_eventfd()) {}
    ~Events() { close(fd_); }
    Events(const Events &) = delete;
    Events &operator=(const Events &) = delete;

    int fd() const noexcept { return fd_; }

    void push(Event event) {
        std::lock_guard<std::mutex> lock(lock_);
        queue_.push_back(std::move(event));
        if (queue_.size() == 1) ring_eventfd(fd_);
    }
    // Asks for one event `holding` as soon as a loop holds memory that counts for a connection. At first it is asked for.
    // Both ends exchange, so one of them comes first: either the loop sees the wish, or the caller sees the loop's figures from now on.
    void tell_when_holding() noexcept { asked_.exchange(true, std::memory_order_acq_rel); }  // SYNC holding
    // A loop holds such memory for a connection for which it held none, and its figures say so.
    void holding() {
        if (asked_.exchange(false, std::memory_order_acq_rel)) push({Event::holding, 0, 0, 0, {}});  // SYNC holding
    }
    std::vector<Event> take() {
        std::lock_guard<std::mutex> lock(lock_);
        clear_eventfd(fd_);
        return std::exchange(queue_, {});
    }

private:
    const int fd_;
    std::mutex lock_;
    std::vector<Event> queue_;
    std::atomic<bool> asked_{true};
};

}  // namespace echo_tcp::learner
