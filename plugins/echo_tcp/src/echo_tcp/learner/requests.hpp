// Requests of clients, from the loops to the threads that carry them out. The requests of one client are carried out one after another, in
// order. One thread carries out all of them as long as each is short: several would wait for each other's locks, and for Python's. The next
// thread helps when those at work have been at one request for some time.
#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace echo_tcp::learner {

struct Request {
    std::uint64_t group = 0;   // of the loops that the client belongs to
    std::uint64_t client = 0;  // its key in these loops
    std::uint64_t number = 0;  // of the request
    std::string payload;
    bool alone = false;  // no other thread waits for the next one
};

class Requests {
public:
    Requests() = default;
    Requests(const Requests &) = delete;
    Requests &operator=(const Requests &) = delete;

    void put(Request request) {
        std::unique_lock<std::mutex> lock(lock_);
        Queue &queue = queues_[{request.group, request.client}];
        queue.waiting.push_back(std::move(request));
        if (queue.waiting.size() > 1 || queue.busy) return;
        ready_.push_back(&queue);
        // A thread at work takes it when it is done. A thread must watch, in case that this takes long.
        const bool call = !watched_ || help_at() <= Clock::now();
        lock.unlock();
        if (call) changed_.notify_one();
    }

    // Waits for the next request. The caller carries it out and then calls done(). Nothing: the queue is over and empty.
    std::optional<Request> take() {
        std::unique_lock<std::mutex> lock(lock_);
        idle_++;
        while (ready_.empty() || help_at() > Clock::now()) {
            if (over_ && ready_.empty()) break;
            const Clock::time_point until = help_at();
            if (watched_ || until <= Clock::now()) {
                changed_.wait(lock);
            } else {
                watched_ = true;
                changed_.wait_until(lock, until);
                watched_ = false;
            }
        }
        idle_--;
        if (ready_.empty()) return {};
        Queue &queue = *ready_.front();
        ready_.pop_front();
        queue.busy = true;
        queue.since = Clock::now();
        at_work_.push_back(&queue);
        Request request = std::move(queue.waiting.front());
        queue.waiting.pop_front();
        request.alone = idle_ == 0;
        const bool watch = !ready_.empty() && !watched_, over = over_;
        lock.unlock();
        if (over) {
            changed_.notify_all();
        } else if (watch) {
            changed_.notify_one();
        }
        return request;
    }

    // The caller has carried out a request of this client, and calls take() soon. Returns whether more requests of the client wait.
    bool done(std::uint64_t group, std::uint64_t client) {
        std::lock_guard<std::mutex> lock(lock_);
        const auto found = queues_.find({group, client});
        Queue &queue = found->second;
        queue.busy = false;
        at_work_.erase(std::find(at_work_.begin(), at_work_.end(), &queue));
        if (queue.waiting.empty()) {
            queues_.erase(found);
            return false;
        }
        ready_.push_back(&queue);
        return true;
    }

    // Whether requests of this client wait or are being carried out.
    bool has(std::uint64_t group, std::uint64_t client) const {
        std::lock_guard<std::mutex> lock(lock_);
        return queues_.count({group, client}) != 0;
    }

    // take() waits no more: it returns what is left, then nothing.
    void end() {
        std::lock_guard<std::mutex> lock(lock_);
        over_ = true;
        changed_.notify_all();
    }

private:
    using Clock = std::chrono::steady_clock;
    static constexpr std::chrono::microseconds short_request{200};

    struct Queue {
        std::deque<Request> waiting;
        bool busy = false;  // one of its requests is being carried out
        Clock::time_point since;  // when that began
    };

    // When a thread may begin, because all threads at work have been at their requests for long.
    Clock::time_point help_at() const {
        Clock::time_point latest = Clock::time_point::min();
        for (const Queue *queue : at_work_) latest = std::max(latest, queue->since + short_request);
        return latest;
    }

    mutable std::mutex lock_;
    std::condition_variable changed_;
    std::map<std::pair<std::uint64_t, std::uint64_t>, Queue> queues_;  // a map, because its elements stay in their places
    std::deque<Queue *> ready_;
    std::vector<Queue *> at_work_;
    unsigned idle_ = 0;
    bool watched_ = false;  // a thread looks again when help_at() has come
    bool over_ = false;
};

}  // namespace echo_tcp::learner
