// Requests of other threads to a loop. Those threads never touch a connection themselves.
#pragma once

#include "peer.hpp"

namespace echo_tcp::learner {

// A connection that has passed its handshake. The holder of this object owns `fd`.
struct NewPeer {
    int fd = -1;
    std::uint64_t key = 0;
    ClientId client{};
    std::uint64_t base = 0;  // number of samples that the client knows to be committed
    bool echo1 = false;
    bool observer = false;   // it may send no samples
    std::int64_t beat_ns = 0;  // a sign of life is due after so long without a byte sent; 0: never
    std::string unsent;      // the rest of the handshake, still to be sent
    std::string leftover;    // bytes that came after the handshake
    std::shared_ptr<Figures> figures;
};

struct Reply {
    std::uint64_t key = 0;
    std::string frame;
    bool late = false;  // to a request that was parked
};

struct Commands {
    std::vector<NewPeer> added;
    std::vector<std::uint64_t> begun;                            // keys
    std::vector<Reply> replies;
    std::vector<std::uint64_t> parked;                           // keys of those who made a request that is answered later
    std::vector<std::pair<std::uint64_t, std::string>> refused;  // key, reason: they broke the protocol
    std::vector<std::pair<std::uint64_t, std::string>> evicted;  // key, reason: others take their places
    std::vector<std::uint64_t> pinged;                           // keys
    bool withdrawn = false;  // the weights before `weights` are no longer offered
    std::shared_ptr<const Weights> weights;
    std::int64_t stop_by = 0;
    std::string stop_reason;  // for the peers; empty: the usual one
    std::uint8_t stop_flags = 0;  // of the BYE frames
};

class Mailbox {
public:
    Mailbox() : fd_(new_eventfd()) {}
    ~Mailbox() {
        for (const NewPeer &peer : commands_.added) close(peer.fd);  // they came after the loop had ended
        close(fd_);
    }
    Mailbox(const Mailbox &) = delete;
    Mailbox &operator=(const Mailbox &) = delete;

    int fd() const noexcept { return fd_; }  // readable when there is something to take

    template <class Change>
    void put(Change change) {
        std::lock_guard<std::mutex> lock(lock_);
        change(commands_);
        ring();
    }
    // The loop need not wake for this change, unless it waits for such changes (`hurry`).
    template <class Change>
    void put_unhurried(Change change) {
        std::lock_guard<std::mutex> lock(lock_);
        change(commands_);
        unseen_ = true;
        if (hurry_) ring();
    }
    void hurry(bool now) {
        std::lock_guard<std::mutex> lock(lock_);
        hurry_ = now;
        if (hurry_ && unseen_) ring();
    }
    Commands take() {
        std::lock_guard<std::mutex> lock(lock_);
        rung_ = unseen_ = false;
        clear_eventfd(fd_);
        return std::exchange(commands_, {});
    }

private:
    void ring() {
        if (!std::exchange(rung_, true)) ring_eventfd(fd_);
    }

    const int fd_;
    std::mutex lock_;
    Commands commands_;
    bool rung_ = false;
    bool unseen_ = false, hurry_ = false;
};

}  // namespace echo_tcp::learner
