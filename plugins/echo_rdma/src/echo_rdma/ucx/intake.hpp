// The learner's end of one worker's samples. They are checked before a byte is stored, copied or received into slots, and acknowledged in groups.
// They come in messages, or lie in memory of a worker on the same machine (region.hpp).
#pragma once

#include "acknowledgement.hpp"
#include "echo_capi.h"
#include "region.hpp"
#include "window.hpp"

namespace echo_rdma {

class Intake final : public Flow {
  public:
    // `committed` samples of the session are in the store. The worker may be `credit_bytes` ahead of the store.
    // `direct`: rendezvous go straight into slots. That is possible only with lanes on which the receiver moves the bytes.
    Intake(const echo_capi *api, echo_store *store, Engine &engine, uint64_t committed, uint64_t credit_bytes, bool direct)
        : api_(api), store_(store), line_(engine.line), direct_(direct), sample_bytes_(api->sample_bytes(store)),
          ack_(committed, credit_bytes, sample_bytes_), committed_(committed) {
        api_->retain(store_);
        for (uint32_t leaf = 0; leaf < api_->leaf_count(store_); leaf++) leaves_.push_back(api_->leaf_bytes(store_, leaf));
        share_ = int64_t(std::clamp<uint64_t>(SHARE_BYTES / std::max<uint64_t>(1, sample_bytes_), 1, std::max(1u, api_->batch_size(store_) / 4)));
        left_ = share_;
        next_ = committed + 1;
    }

    ~Intake() override { api_->release(store_); }

    struct Figures {
        uint64_t committed, inserted, duplicates, bytes, messages, direct, shown;
        int64_t waiting_since; // ns; since when it waits for space, 0 if it does not wait
        int64_t heard_at;      // ns; when its last message came, 0 if none has
    };
    Figures figures() const {
        return {committed_.load(), inserted_.load(), duplicates_.load(), bytes_.load(), messages_.load(),
                straight_.load(), shown_.load(), waiting_since_.load(), heard_at_.load()};
    }

    bool idle() const { return parked_count_.load() == 0; }

    // Call with the engine's lock held. Nothing more is committed afterwards, so `committed` is final.
    void stop() {
        stopped_ = true;
        line_.leave(this);
        if (partial_.in_run) api_->abort(store_, &partial_.run);
        partial_ = {};
        for (auto &one : parked_)
            if (one->in_run && one->state != ARRIVING) hold(*one);
        give_back();
    }

    // The same, and tells the worker at once which samples are committed, so that it does not send them to the next learner too.
    void conclude(Peer &peer) {
        stop();
        if (ack_.behind(committed_) && !peer.failed && peer.stage == Stage::OPEN) acknowledge(peer);
    }

    // ------------------------------------------------------------------------------------------- called by the engine

    ucp::status message(Peer &peer, const Head &head, void *data, size_t length, uint64_t attributes, std::string &broken) override {
        if (stopped_) return ucp::OK;
        heard_at_ = peer.engine->now();
        uint64_t end = head.number + head.count; // one past the message's last sample
        if (head.kind == PART) return part(peer, head, static_cast<const char *>(data), length, attributes, broken);
        if (head.kind == KEY) return look(peer, head, data, length, attributes, broken);
        bool shown = head.kind == SHOWN;
        const char *rows = shown ? sight_.at(head.limit, head.count * sample_bytes_) : static_cast<const char *>(data);
        if (head.kind != SAMPLES && !shown)
            broken = "a worker acknowledges nothing";
        else if (head.count == 0 || head.count > 65536 || head.number == 0 || end <= head.number)
            broken = "a message of " + std::to_string(head.count) + " samples from number " + std::to_string(head.number);
        else if (shown && (length != 0 || rows == nullptr))
            broken = std::to_string(head.count) + " samples at " + std::to_string(head.limit) + ", outside of its memory";
        else if (!shown && length != head.count * sample_bytes_)
            broken = std::to_string(length) + " bytes for " + std::to_string(head.count) + " samples of " + std::to_string(sample_bytes_);
        else if (end - 1 > ack_.limit())
            broken = "sample " + std::to_string(end - 1) + ", with credit up to " + std::to_string(ack_.limit());
        else if (partial_.bytes > 0)
            broken = "samples in the middle of another";
        else if (early_.size() > 4096)
            broken = "samples out of order";
        else if (again(head.number, end))
            broken = "samples " + std::to_string(head.number) + " to " + std::to_string(end - 1) + " again";
        else if (is_early(head.number, end))
            broken = "overlapping samples, from " + std::to_string(head.number);
        if (!broken.empty()) return ucp::OK;
        uint64_t bytes = head.count * sample_bytes_;
        bytes_ += bytes + sizeof head;
        messages_++;
        if (end - 1 <= committed_) { // all samples are duplicates, so not even their place is kept
            duplicates_ += head.count;
            ack_.owe();
            return ucp::OK;
        }
        Parked one{};
        one.first = head.number;
        one.count = head.count;
        one.bytes = bytes;
        if (attributes & ucp::MessageParam::RENDEZVOUS) {
            one.state = OFFERED;
            one.descriptor = data;
            place(std::move(one));
            return ucp::INPROGRESS;
        }
        if (head.number <= next_ && parked_.empty()) { // it is in order and nothing waits, so it is stored at once
            skip_known(one);
            one.row += insert(rows, one.row, one.count);
            if (taken_back_) broken = TAKEN_BACK;
            next_ = std::max(next_, end);
            if (one.row == one.count) {
                bring_in();
                return ucp::OK;
            }
        }
        one.state = HERE;
        one.rows = rows;
        if (shown) { // the worker keeps it until it is acknowledged
            push(std::move(one));
            return ucp::OK;
        }
        if (attributes & ucp::MessageParam::DATA) {
            one.descriptor = data; // UCX keeps the data until it is released
            push(std::move(one));
            return ucp::INPROGRESS;
        }
        one.memory = allocate(length);
        if (!one.memory) {
            broken = "no memory for what it sent";
            return ucp::OK;
        }
        memcpy(one.memory.get(), data, length);
        one.rows = one.memory.get();
        push(std::move(one));
        return ucp::OK;
    }

    bool turn(Peer &peer) override {
        bool worked = false;
        if (partial_.in_run && peer.engine->now() - partial_.since > HOLD_NS) move_out(peer);
        full_ = false;
        if (!stopped_) {
            begin(peer);
            uint64_t rows = 0;
            while (!parked_.empty() && rows < TURN_ROWS) {
                Parked &front = *parked_.front();
                if (front.state == FAILED) {
                    peer.engine->give_up(peer, "a transfer failed");
                    break;
                }
                if (front.state == HERE) {
                    skip_known(front);
                    uint32_t some = insert(front.rows, front.row, front.count);
                    if (taken_back_) peer.engine->give_up(peer, TAKEN_BACK);
                    front.row += some;
                    rows += some;
                    if (front.row < front.count) break; // no space
                } else if (front.state == IN_SLOTS) {
                    api_->commit(store_, &front.run); // in order; otherwise a lost link could leave a hole that no sample number shows
                    count_in(front.count);
                    straight_ += front.count;
                } else
                    break; // it is still being received
                drop(peer, front);
                parked_.pop_front();
                parked_count_ = parked_.size();
                worked = true;
            }
            worked |= rows > 0;
            if (!full_ || parked_.empty()) line_.leave(this); // samples that are still being received must not hold up the other workers
        }
        if (!peer.failed && ack_.due(committed_, peer.engine->quiet())) {
            acknowledge(peer);
            worked = true;
        }
        waiting_since_ = full_ && !parked_.empty() ? (waiting_since_ ? waiting_since_.load() : peer.engine->now()) : 0;
        return worked;
    }

    bool hurries() const override { return partial_.in_run; }

    bool sleeps(Peer &, int eventfd) override {
        if (stopped_ || closed_ || parked_.empty() || !full_ || !line_.first(this, store_)) return true;
        armed_ = eventfd;
        return api_->arm_space(store_, eventfd) != ECHO_READY;
    }

    void lost(Peer &peer) override {
        stop();
        if (armed_ >= 0) api_->disarm_space(store_, armed_);
        armed_ = -1;
        for (auto &one : parked_) drop(peer, *one);
        for (auto &[first, one] : early_) drop(peer, *one);
        // Samples that are being received belong to UCX until the forced close has completed; `received` gives their slots back.
        std::erase_if(parked_, [](auto &one) { return one->state != ARRIVING; });
        early_.clear();
        parked_count_ = 0;
        sight_.close(); // no parked sample lies there any longer
    }

  private:
    static constexpr const char *TAKEN_BACK = "it has taken back samples that were not acknowledged";
    static constexpr uint64_t TURN_ROWS = 1024; // rows of one worker before it is another worker's turn
    static constexpr uint64_t SHARE_BYTES = 32 << 10; // space for one worker while others wait for it, but at most a quarter of a batch
    static constexpr size_t AT_ONCE = 8;        // rendezvous of one worker at the same time
    static constexpr int64_t HOLD_NS = 5'000'000; // how long a sample may keep its slot while its parts are awaited

    enum State { OFFERED, ARRIVING, HERE, IN_SLOTS, FAILED };

    struct Parked {
        uint64_t first;
        uint32_t count, row = 0;
        size_t bytes;
        State state;
        bool in_run = false;
        void *descriptor = nullptr; // belongs to UCX
        const char *rows = nullptr;
        Memory memory;
        echo_run run{};
        std::vector<ucp::IoVec> pieces;
        Intake *intake = nullptr;
        std::shared_ptr<Flow> keep; // keeps the flow alive while UCX writes to its memory
        Peer *peer = nullptr;
    };

    // A sample that comes in parts. It lies in its slot from the first part on, unless no slot is free or the parts come slowly.
    struct Partial {
        uint64_t number = 0, bytes = 0;
        bool in_run = false, known = false;
        int64_t since = 0;
        echo_run run{};
        Memory memory;
    };

    // Keeps the slots of a worker that is gone until UCX writes to none of them any more, and then gives them back. The last slot comes first, because the
    // store hands out the slot that was given back last before others, and the next worker's samples should lie there in order.
    void hold(Parked &one) {
        held_.emplace(one.first, one.run);
        one.in_run = false;
    }

    void give_back() {
        for (auto &one : parked_)
            if (one->in_run) return;
        for (auto at = held_.rbegin(); at != held_.rend(); ++at) api_->abort(store_, &at->second);
        held_.clear();
    }

    // Takes a key to the worker's memory.
    ucp::status look(Peer &peer, const Head &head, const void *key, size_t length, uint64_t attributes, std::string &broken) {
        if (attributes & ucp::MessageParam::RENDEZVOUS)
            broken = "a key by rendezvous";
        else
            broken = sight_.open(peer.ep, head.number, head.limit, head.count, key, length);
        ack_.owe(); // the acknowledgement says whether the key works
        return ucp::OK;
    }

    // Samples that come in parts: see intake_parts.hpp.
    ucp::status part(Peer &peer, const Head &head, const char *data, size_t length, uint64_t attributes, std::string &broken);
    void whole();
    void move_out(Peer &peer);
    template <class Each> void through_leaves(uint64_t offset, uint64_t length, Each each);

    // Messages that are offered by rendezvous: see intake_offers.hpp.
    void begin(Peer &peer);
    bool only_slots_before(const Parked *one) const;
    bool claim_all(Parked &one);
    static void on_received(void *request, ucp::status status, size_t, void *argument);
    static void received(Parked *one, ucp::status status);

    // True if samples come a second time although they may not. A worker sends each sample once per connection; only for that reason does its credit bound
    // the samples that have arrived and are not committed. Committed samples may come again: the resume point of this connection was fixed while an
    // earlier connection may still have gone on for a moment.
    bool again(uint64_t first, uint64_t end) const { return first < next_ && end - 1 > committed_ && !parked_.empty(); }

    // True if some of these samples wait in `early_`.
    bool is_early(uint64_t first, uint64_t end) const {
        auto after = early_.lower_bound(first);
        if (after != early_.end() && after->first < end) return true;
        return after != early_.begin() && std::prev(after)->first + std::prev(after)->second->count > first;
    }

    // Messages may overtake each other on the network. A message that comes early waits for the missing ones.
    void place(Parked one) {
        if (one.first > next_) {
            uint64_t first = one.first;
            early_.emplace(first, std::make_unique<Parked>(std::move(one)));
            return;
        }
        next_ = std::max(next_, one.first + one.count);
        parked_.push_back(std::make_unique<Parked>(std::move(one)));
        bring_in();
    }

    void bring_in() {
        for (auto at = early_.begin(); at != early_.end() && at->first <= next_; at = early_.erase(at)) {
            next_ = std::max(next_, at->first + at->second->count);
            parked_.push_back(std::move(at->second));
        }
        parked_count_ = parked_.size();
    }

    void push(Parked one) {
        if (one.row > 0) { // it was begun, so it is the next one, no matter what `next_` says
            parked_.push_back(std::make_unique<Parked>(std::move(one)));
            bring_in();
        } else
            place(std::move(one));
    }

    void skip_known(Parked &one) {
        uint64_t known = committed_ + 1 > one.first + one.row ? committed_ + 1 - one.first - one.row : 0;
        uint32_t some = uint32_t(std::min<uint64_t>(known, one.count - one.row));
        one.row += some;
        duplicates_ += some;
        ack_.owe(some > 0);
    }

    uint32_t insert(const char *rows, uint32_t row, uint32_t count) {
        uint32_t done = 0;
        bool shown = sight_.holds(rows);
        full_ = false;
        while (row + done < count) {
            echo_run run;
            if (!claim(count - row - done, run)) break;
            char *at = const_cast<char *>(rows) + uint64_t(row + done) * sample_bytes_;
            for (uint32_t leaf = 0; leaf < leaves_.size(); leaf++) {
                copy_column<false>(at, static_cast<char *>(api_->leaf(store_, &run, leaf)), leaves_[leaf], sample_bytes_, run.count);
                at += leaves_[leaf];
            }
            if (shown && !sight_.valid()) { // the worker has another learner by now and uses this memory again
                api_->abort(store_, &run);
                taken_back_ = true;
                break;
            }
            api_->commit(store_, &run);
            done += run.count;
        }
        if (done > 0) count_in(done);
        if (shown) shown_ += done;
        return done;
    }

    // `whole`: claims the slots in one run, even if that is more than a share.
    bool claim(uint32_t count, echo_run &run, bool whole = false) {
        full_ = true;
        if (!line_.first(this, store_)) {
            line_.join(this, store_);
            return false;
        }
        bool contended = line_.others(this, store_);
        if (contended && left_ <= 0) {
            left_ += share_; // a message that was taken as a whole may have exceeded a share
            line_.pass(this, store_);
            return false;
        }
        int status = api_->claim(store_, contended && !whole ? uint32_t(std::min<int64_t>(count, left_)) : count, &run);
        full_ = status != ECHO_OK;
        closed_ |= status == ECHO_CLOSED;
        if (full_)
            line_.join(this, store_);
        else
            left_ = contended ? left_ - run.count : share_;
        return !full_;
    }

    void acknowledge(Peer &peer) {
        peer.engine->post(peer, ack_.say(committed_, sight_.opened() ? READS : uint8_t(0)));
    }

    void count_in(uint64_t count) {
        committed_ += count;
        inserted_ += count;
        ack_.owe();
    }

    void drop(Peer &peer, Parked &one) {
        if (one.descriptor != nullptr) library().am_data_release(peer.engine->worker(), one.descriptor);
        one.descriptor = nullptr;
        if (one.state == OFFERED || one.state == HERE) one.memory.reset();
    }

    const echo_capi *api_;
    echo_store *store_;
    Line &line_; // belongs to the engine, which outlives every flow of its peers
    const bool direct_;
    std::vector<uint64_t> leaves_;
    const uint64_t sample_bytes_;
    Acknowledgement ack_;
    uint64_t next_;
    int64_t share_, left_; // in samples; used while others wait
    bool full_ = false, closed_ = false, stopped_ = false, taken_back_ = false;
    int armed_ = -1;
    Partial partial_;
    Sight sight_;
    std::deque<std::unique_ptr<Parked>> parked_; // in order
    std::map<uint64_t, std::unique_ptr<Parked>> early_;
    std::multimap<uint64_t, echo_run> held_; // by sample number, after stop()
    std::atomic<uint64_t> committed_, inserted_{0}, duplicates_{0}, bytes_{0}, messages_{0}, straight_{0}, shown_{0};
    std::atomic<size_t> parked_count_{0};
    std::atomic<int64_t> waiting_since_{0}, heard_at_{0};
};

inline void stop_intake(Engine &engine, Intake &intake, Peer &peer) {
    Engine::Visit visit(engine);
    intake.conclude(peer);
}

} // namespace echo_rdma

#include "intake_offers.hpp"
#include "intake_parts.hpp"
