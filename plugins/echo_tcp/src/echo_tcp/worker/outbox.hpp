// Small messages that a worker sends besides samples: receipts, requests, pings, its goodbye.
// It also knows which requests wait for an answer. It takes no lock: the caller holds the engine's mutex.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "../frame.hpp"

namespace echo_tcp::worker {

class Outbox {
public:
    enum class Answer { none, here, lost };  // lost: the link broke after the question left

    bool empty() const noexcept { return queue_.empty(); }

    void push(Kind kind, std::uint64_t seq, std::string_view payload = {}, std::uint8_t flags = 0) {
        // A learner whose store is full reads nothing, but goes on to send weights. Of these messages only the newest one counts, and the
        // older ones would fill the memory.
        if (kind == Kind::receipt || kind == Kind::subscribe)
            std::erase_if(queue_, [kind](const Item& item) { return item.kind == kind; });
        queue_.push_back({frame(kind, seq, payload, flags), 0, kind});
    }

    // Queues a request; its answer is asked for by the number returned.
    std::uint64_t ask(std::string_view payload) {
        std::uint64_t id = ++last_id_;
        asked_[id] = {};
        queue_.push_back({frame(Kind::control, id, payload, 0), id, Kind::control});
        return id;
    }

    // The oldest message, to be written now. A request counts as sent from here on, because the worker
    // cannot know whether the learner received enough of it to act on it.
    std::string pop() {
        Item item = std::move(queue_.front());
        queue_.pop_front();
        if (auto it = asked_.find(item.id); it != asked_.end()) it->second.left = true;
        return std::move(item.bytes);
    }

    void answered(std::uint64_t id, std::string payload) {
        auto it = asked_.find(id);  // the answer is dropped if no caller waits for it any more
        if (it == asked_.end()) return;
        it->second.state = Answer::here;
        it->second.payload = std::move(payload);
    }

    Answer look(std::uint64_t id) const {
        auto it = asked_.find(id);
        return it == asked_.end() ? Answer::lost : it->second.state;
    }

    std::string take(std::uint64_t id) {
        std::string payload = std::move(asked_[id].payload);
        forget(id);
        return payload;
    }

    // No caller waits for this answer any more. A request that has not been sent will not be sent.
    void forget(std::uint64_t id) {
        asked_.erase(id);
        std::erase_if(queue_, [id](const Item& item) { return item.id == id; });
    }

    // The link is lost: drops all messages that belong to it. Requests that have not been sent stay
    // for the next link.
    void link_lost() {
        std::erase_if(queue_, [](const Item& item) { return item.id == 0; });
        for (auto& [id, question] : asked_) {
            if (question.left && question.state == Answer::none) question.state = Answer::lost;
        }
    }

private:
    struct Item {
        std::string bytes;
        std::uint64_t id;  // number of the request; 0 for other messages
        Kind kind;
    };
    struct Question {
        Answer state = Answer::none;
        bool left = false;
        std::string payload;
    };

    static std::string frame(Kind kind, std::uint64_t seq, std::string_view payload,
                             std::uint8_t flags) {
        FrameHeader header = make_header(kind, seq, payload.size(), 0, flags);
        std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
        return bytes.append(payload);
    }

    std::deque<Item> queue_;
    std::map<std::uint64_t, Question> asked_;
    std::uint64_t last_id_ = 0;
};

}  // namespace echo_tcp::worker
