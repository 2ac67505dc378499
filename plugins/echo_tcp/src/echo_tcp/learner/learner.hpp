// The learner's data plane: the loops, and which loop serves which client.
//
// Python hands over sockets that have passed the handshake and gets events back. All work between
// a socket and the store is done by the loops' threads, which never take the GIL.
#pragma once

#include "loop.hpp"

namespace echo_tcp::learner {

// A snapshot of one connection's figures.
struct PeerRow {
    std::uint64_t key, samples, bytes, version, digest, partial, read_at, parked_at, wanted_at, sampled_at;
};

// What a loop holds for one connection beside samples.
struct HeldRow {
    std::uint64_t key, bytes, version, version_bytes;
};

// A listener's counters, summed over all loops.
struct TotalsRow {
    std::uint64_t samples, duplicates, bytes_received, bytes_sent, frames, direct_frames, parked, evicted,
        staged_bytes, protocol_errors, acks, weights_sent, rounds, active, waiting;
};

class Learner {
public:
    // `group` is the number of these loops in `requests`. `labelled`: see Store.
    Learner(const echo_capi *api, echo_store *store, unsigned threads, std::uint64_t staging_limit, std::int64_t silence_ns,
            std::shared_ptr<Requests> requests, std::uint64_t group, echo_store *labelled = nullptr)
        : events_(std::make_shared<Events>()), requests_(std::move(requests)), born_in_(getpid()) {
        give_sockets_back_in_children();
        for (unsigned i = 0; i < threads; ++i)
            loops_.push_back(std::make_unique<Loop>(api, store, events_, *requests_, group, turns_, staging_limit, silence_ns, labelled));
        try {
            for (auto &loop : loops_) loop->start();
        } catch (...) {
            stop(0);
            throw;
        }
    }
    ~Learner() {
        if (getpid() == born_in_) {
            stop(0);
            return;
        }
        // In a forked child the loops' threads do not exist, and all of this belongs to the parent. The fork handler has closed the sockets.
        for (auto &loop : loops_) static_cast<void>(loop.release());
    }
    Learner(const Learner &) = delete;
    Learner &operator=(const Learner &) = delete;

    int events_fd() const noexcept { return events_->fd(); }
    std::vector<Event> take_events() { return events_->take(); }
    void tell_when_holding() noexcept { events_->tell_when_holding(); }

    // The key by which events name the connection; `peer.fd` belongs to its loop from now on.
    std::uint64_t add(NewPeer peer) {
        const std::uint64_t lane = ClientIdHash{}(peer.client) % loops_.size();
        peer.figures = std::make_shared<Figures>();
        sockets_of_ours.add(peer.fd);
        {
            std::lock_guard<std::mutex> lock(figures_lock_);
            peer.key = ++last_number_ * loops_.size() + lane;
            figures_.emplace(peer.key, peer.figures);
        }
        const std::uint64_t key = peer.key;
        loops_[lane]->mailbox.put([&](Commands &c) { c.added.push_back(std::move(peer)); });
        return key;
    }
    // Python has handled the connection's `added` event, so the loop may serve it now.
    void begin(std::uint64_t key) {
        loop_of(key).mailbox.put([&](Commands &c) { c.begun.push_back(key); });
    }
    // Python has handled the connection's `lost` event.
    void forget(std::uint64_t key) {
        std::lock_guard<std::mutex> lock(figures_lock_);
        figures_.erase(key);
    }
    // An empty string with room for a frame of `bytes`. The caller fills it and gives it to reply().
    std::string frame_for(std::uint64_t key, std::size_t bytes) { return loop_of(key).recycled.take(bytes); }
    void reply(std::uint64_t key, std::string frame, bool late = false) {
        loop_of(key).mailbox.put([&](Commands &c) { c.replies.push_back({key, std::move(frame), late}); });
    }
    // A request of this connection is answered later, and no longer counts as one that is being answered.
    void parked(std::uint64_t key) {
        loop_of(key).mailbox.put_unhurried([&](Commands &c) { c.parked.push_back(key); });
    }
    void refuse(std::uint64_t key, std::string reason) {
        loop_of(key).mailbox.put([&](Commands &c) { c.refused.emplace_back(key, std::move(reason)); });
    }

    // Ends a connection that has done nothing wrong.
    void evict(std::uint64_t key, std::string reason) {
        loop_of(key).mailbox.put([&](Commands &c) { c.evicted.emplace_back(key, std::move(reason)); });
    }
    // Sends a PING, which the worker answers.
    void ping(std::uint64_t key) {
        loop_of(key).mailbox.put([&](Commands &c) { c.pinged.push_back(key); });
    }
    // clock_ns() of the last read that brought something; 0 if the connection is not read, because it waits for space or begin() has not been called, or is gone.
    std::uint64_t heard_at(std::uint64_t key) const {
        std::lock_guard<std::mutex> lock(figures_lock_);
        const auto found = figures_.find(key);
        return found == figures_.end() || found->second->parked_at.get() != 0 ? 0 : found->second->read_at.get();
    }

    // A ticket that is unique among all publishes.
    std::uint64_t new_ticket() noexcept { return tickets_.fetch_add(1, std::memory_order_relaxed) + 1; }

    // `payload` must not change until the event `released` with this ticket.
    void publish(std::uint64_t version, std::uint64_t digest, std::string head, const char *payload, std::uint64_t bytes,
                 std::uint64_t ticket) {
        std::lock_guard<std::mutex> lock(publish_lock_);
        auto weights = std::make_shared<Weights>();
        weights->version = version;
        weights->digest = digest;
        weights->head = std::move(head);
        weights->payload = payload;
        weights->payload_bytes = bytes;
        weights->ticket = ticket;
        weights->events = events_;
        weights->renumbered = renumbered_ = renumbered_ || version <= newest_;
        newest_ = version;
        for (auto &loop : loops_) loop->mailbox.put([&](Commands &c) { c.weights = weights; });
    }

    // Offer nothing until the next publish(). The weights are released as soon as nobody is being sent them.
    void withdraw() {
        std::lock_guard<std::mutex> lock(publish_lock_);
        for (auto &loop : loops_)
            loop->mailbox.put([](Commands &c) {
                c.weights.reset();
                c.withdrawn = true;
            });
    }

    std::vector<PeerRow> peers() const {
        std::lock_guard<std::mutex> lock(figures_lock_);
        std::vector<PeerRow> rows;
        for (const auto &[key, f] : figures_)
            rows.push_back({key, f->samples.get(), f->bytes.get(), f->version.get(), f->digest.get(), f->partial.get(),
                            f->read_at.get(), f->parked_at.get(), f->wanted_at.get(), f->sampled_at.get()});
        return rows;
    }

    // The connections for which memory is held that counts: `least_held` bytes, or a version of the weights that is on its way.
    std::vector<HeldRow> held() const {
        std::lock_guard<std::mutex> lock(figures_lock_);
        std::vector<HeldRow> rows;
        for (const auto &[key, f] : figures_)
            if (f->count()) rows.push_back({key, f->held.get(), f->sending.get(), f->sending_bytes.get()});
        return rows;
    }

    TotalsRow totals() const {
        TotalsRow sum{};
        for (const auto &loop : loops_) {
            const Totals &t = loop->totals;
            sum.samples += t.samples.get();
            sum.duplicates += t.duplicates.get();
            sum.bytes_received += t.bytes_received.get();
            sum.bytes_sent += t.bytes_sent.get();
            sum.frames += t.frames.get();
            sum.direct_frames += t.direct_frames.get();
            sum.parked += t.parked.get();
            sum.evicted += t.evicted.get();
            sum.staged_bytes += t.staged_bytes.get();
            sum.protocol_errors += t.protocol_errors.get();
            sum.acks += t.acks.get();
            sum.weights_sent += t.weights_sent.get();
            sum.rounds += t.rounds.get();
            sum.active += t.active.get();
            sum.waiting += t.waiting.get();
        }
        return sum;
    }

    // Says goodbye to the peers and waits for them until `deadline` (clock_ns). Idempotent.
    void stop(std::int64_t deadline, const std::string &reason = {}, std::uint8_t flags = 0) {
        deadline = std::max<std::int64_t>(deadline, 1);
        for (auto &loop : loops_)
            loop->mailbox.put([&](Commands &c) {
                c.stop_by = deadline;
                c.stop_reason = reason;
                c.stop_flags = flags;
            });
        for (auto &loop : loops_) loop->join();
    }

private:
    Loop &loop_of(std::uint64_t key) { return *loops_[key % loops_.size()]; }

    const std::shared_ptr<Events> events_;
    const std::shared_ptr<Requests> requests_;
    const pid_t born_in_;
    Turns turns_;
    std::vector<std::unique_ptr<Loop>> loops_;
    mutable std::mutex figures_lock_;
    std::unordered_map<std::uint64_t, std::shared_ptr<Figures>> figures_;
    std::uint64_t last_number_ = 0;
    std::atomic<std::uint64_t> tickets_{0};
    std::mutex publish_lock_;
    std::uint64_t newest_ = 0;
    bool renumbered_ = false;
};

}  // namespace echo_tcp::learner
