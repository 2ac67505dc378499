// Keeps a worker's samples until they are acknowledged, sample after sample in chunks, and sends them.
//
// Callers fill the newest chunk. The engine sends the samples that were filled, with as many as possible in one message. A chunk's memory is used
// again when the learner has committed its samples and no request of UCX refers to it. A learner on the same machine reads chunks in place
// (region.hpp). Why this is not the channel's window: docs/design/decisions/0016-three-windows.md.
#pragma once

#include <algorithm>

#include "chunk.hpp"
#include "engine.hpp"
#include "region.hpp"

namespace echo_rdma {

class Window final : public Flow {
  public:
    // At most `most` samples are unacknowledged, but only about `hot` bytes while the learner keeps up. One message has at most about `together` bytes.
    Window(const std::vector<uint64_t> &leaves, uint64_t most, uint64_t together, uint64_t hot = HOT_BYTES)
        : leaves_(leaves), most_(most), together_(together), hot_bytes_(hot) {
        plan();
    }

    // From now on, each sample is sent with its labels behind its leaves. Only for a window that has taken no sample yet. False if it has taken some.
    bool expect_labels() {
        std::lock_guard one(producer_);
        std::lock_guard hold(lock_);
        if (labelled_) return true;
        if (taken_ > 0 || !chunks_.empty()) return false;
        labelled_ = true;
        plan();
        return true;
    }

  private:
    void plan() {
        sample_bytes_ = labelled_ ? LABEL_BYTES : 0;
        for (uint64_t size : leaves_) sample_bytes_ += size;
        const uint64_t most = most_, together = together_, hot = hot_bytes_;
        auto of = [&](uint64_t bytes) { return std::clamp<uint64_t>(bytes / std::max<uint64_t>(1, sample_bytes_), 1, 65536); };
        message_samples_ = of(together);
        chunk_samples_ = uint32_t(std::min(of(std::max(together, CHUNK_BYTES)), std::max<uint64_t>(1, most)));
        hot_most_ = std::min(most, std::max(of(hot), HOT_SAMPLES));
    }

  public:
    ~Window() override {
        for (Chunk *chunk : chunks_) delete chunk;
        for (Chunk *chunk : spares_) delete chunk;
    }

    // --------------------------------------------------------------------------------------------------------- callers

    enum Taken { FULL = 0, TAKEN = 1, STOPPED = 2, NO_MEMORY = 3 };

    // Copies `count` samples, given as one array for each leaf. It takes all or none; an empty window takes any number. Waits for room for `wait_ns`.
    // A negative time ignores the limit; it is for a caller that has already waited for room and may have been overtaken since.
    // `labels`: those of the samples, one after another; null if they have none.
    Taken take(const void *const *columns, uint64_t count, int64_t wait_ns, const char *labels = nullptr) {
        std::lock_guard one(producer_); // so the samples of one caller stay together and in order
        std::unique_lock hold(lock_);
        if (stopped_) return STOPPED;
        if (wait_ns >= 0 && !fits(count, bound())) {
            if (wait_ns == 0) return FULL;
            if (!wait_for_room(hold, count, wait_ns)) return stopped_ ? STOPPED : FULL;
        }
        if (wait_ns < 0) hot_ = may_be_hot();
        if (!provide(count)) return NO_MEMORY;
        for (uint64_t done = 0; done < count;) {
            Chunk *chunk = open_chunk();
            uint32_t some = uint32_t(std::min<uint64_t>(chunk->room - chunk->filled, count - done));
            char *row = chunk->rows + uint64_t(chunk->filled) * sample_bytes_; // `filled` changes only here
            hold.unlock();
            for (size_t i = 0; i < leaves_.size(); i++) {
                auto *column = static_cast<char *>(const_cast<void *>(columns[i])) + done * leaves_[i];
                copy_column<true>(row, column, leaves_[i], sample_bytes_, some);
                row += leaves_[i];
            }
            for (uint32_t i = 0; labelled_ && i < some; i++, row += sample_bytes_) {
                if (labels != nullptr)
                    memcpy(row, labels + (done + i) * LABEL_BYTES, LABEL_BYTES);
                else
                    memset(row, 0xff, LABEL_BYTES);
            }
            hold.lock();
            chunk->filled += some;
            taken_ += some;
            done += some;
        }
        if (engine_ != nullptr) engine_->ring();
        return TAKEN;
    }

    bool has_room(uint64_t count) {
        std::lock_guard hold(lock_);
        return fits(count, most_);
    }

    // Takes no more samples. Waits for callers that are copying, so that `taken` now counts all samples that callers believe to be taken.
    void stop() {
        {
            std::lock_guard hold(lock_);
            stopped_ = true;
            room_.notify_all();
        }
        std::lock_guard one(producer_);
    }

    // After stop(): the samples that are not acknowledged, one after another.
    std::string leftovers() {
        std::lock_guard hold(lock_);
        std::string rows;
        for (Chunk *chunk : chunks_) {
            const uint64_t done = acknowledged_ + 1 > chunk->first ? std::min<uint64_t>(acknowledged_ + 1 - chunk->first, chunk->filled) : 0;
            rows.append(chunk->rows + done * sample_bytes_, (chunk->filled - done) * sample_bytes_);
        }
        return rows;
    }

    bool labelled() {
        std::lock_guard hold(lock_);
        return labelled_;
    }

    void watch(int change) {
        std::lock_guard hold(lock_);
        watchers_ += change;
        if (engine_ != nullptr) engine_->ring();
    }

    // Waits until the first `number` samples are handed to the network, or committed. False if that does not happen in time.
    bool wait_sent(uint64_t number, int64_t wait_ns) {
        std::unique_lock hold(lock_);
        hurry_ = std::max(hurry_, number);
        if (engine_ != nullptr) engine_->ring();
        waiting_sent_++;
        bool sent = sending_.wait_for(hold, std::chrono::nanoseconds(wait_ns), [&] { return std::max(sent_, acknowledged_) >= number; });
        waiting_sent_--;
        return sent;
    }

    struct Figures {
        uint64_t taken, acknowledged, blocked, bytes, messages;
    };
    Figures figures() {
        std::lock_guard hold(lock_);
        return {taken_, acknowledged_, blocked_, bytes_, messages_};
    }

    // ----------------------------------------------------------------------------------------------------- connections

    // Samples will be sent over `engine`, after `resume` has set the first one and the learner has given credit.
    void attach(Engine *engine) {
        std::lock_guard hold(lock_);
        engine_ = engine;
        limit_ = 0;
        resumed_ = owed_ = told_ = reads_ = hot_ = false;
        if (region_) lease_ = region_->renew(); // before the new connection says which memory may be used again
    }

    void detach() {
        std::lock_guard hold(lock_);
        engine_ = nullptr;
        resumed_ = false;
    }

    // The learner has `number` samples; the samples after them are sent again. False if the learner cannot have so many.
    // A message carries at most `message_bytes`, the most that the lanes take without splitting it, because to join the pieces is another copy.
    // `near`: the learner is on this machine and may read samples in place.
    bool resume(uint64_t number, uint64_t message_bytes, bool near) {
        std::lock_guard one(producer_);
        std::lock_guard hold(lock_);
        message_bytes_ = message_bytes;
        near_ = near;
        if (number > taken_ && acknowledged_ == taken_) taken_ = newest_sent_ = number; // the session existed before, so its numbers continue
        if (number < acknowledged_ || number > newest_sent_) return false;
        if (near && engine_ != nullptr && !region_ && sample_bytes_ > 0) share(); // without an engine this is an observer, which sends nothing
        seal();
        acknowledge_locked(number);
        sent_ = number;
        for (Chunk *chunk : chunks_) chunk->sent = uint32_t(std::clamp<int64_t>(int64_t(number + 1 - chunk->first), 0, chunk->filled));
        resumed_ = true;
        if (engine_ != nullptr) engine_->ring();
        return true;
    }

    // ------------------------------------------------------------------------------------------- called by the engine

    ucp::status message(Peer &peer, const Head &head, void *, size_t, uint64_t, std::string &broken) override {
        std::lock_guard hold(lock_);
        if (head.kind != ACK) {
            broken = "a learner sends no samples";
            return ucp::OK;
        }
        limit_ = std::max(limit_, head.limit);
        reads_ |= (head.flags & READS) != 0;
        if (!resumed_) return ucp::OK; // the stream brings the same number and the resume point
        if (head.number < acknowledged_ || head.number > newest_sent_) {
            broken = "it acknowledged " + std::to_string(head.number) + " samples of " + std::to_string(newest_sent_);
            return ucp::OK;
        }
        if (head.number > acknowledged_) {
            acknowledge_locked(head.number);
            owed_ = owed_ || watchers_ > 0;
        }
        (void)peer;
        return ucp::OK;
    }

    bool turn(Peer &peer) override {
        Message messages[AT_ONCE];
        size_t count = 0;
        {
            std::lock_guard hold(lock_);
            if (!resumed_) return false; // until then the stream belongs to the handshake
            if (owed_) owed_ = !peer.inbox.insert(&acknowledgement_, sizeof acknowledgement_); // this wakes waiting callers: see connection.py
            if (region_ && near_ && !told_ && limit_ > 0) tell(peer);
            size_t at = 0;
            for (size_t in_flight = peer.in_flight; count < AT_ONCE && in_flight < IN_FLIGHT && next(at, messages[count]); count++)
                in_flight += messages[count].parts;
            if (count > 0 && waiting_sent_ > 0) sending_.notify_all();
        }
        if (count == 0) return false;
        size_t posted = 0;
        for (; posted < count && !peer.failed; posted++) post(peer, messages[posted]); // without the lock: a request that is done at once calls `sent_out`
        std::lock_guard hold(lock_);
        for (size_t i = 0; i < count; i++) let_go(messages[i].chunk, i < posted ? 1 : 1 + messages[i].parts);
        return true;
    }

    bool sleeps(Peer &peer, int) override {
        std::lock_guard hold(lock_);
        if (!resumed_ || peer.failed || sent_ >= taken_ || sent_ >= limit_) return true;
        if (peer.in_flight >= IN_FLIGHT) return true; // UCX wakes the engine when some requests are done
        for (Chunk *chunk : chunks_)
            if (chunk->sent < chunk->filled) return holds_back(*chunk);
        return true;
    }

    void lost(Peer &) override {}

  private:
    static constexpr uint64_t SMALL = 4 << 10;        // so few bytes are not worth a message on a busy link.
    static constexpr uint64_t CHUNK_BYTES = 64 << 10; // least size of a chunk, so that not each small message needs memory of its own.
    // Bytes and samples in flight to a learner that keeps up. They are few enough that samples are still in a cache when they are sent, or when the learner
    // reads them in place. With 16 MB or more, a learner reads half as fast, and TCP sends at two thirds of the speed.
    static constexpr uint64_t HOT_BYTES = 2 << 20, HOT_SAMPLES = 4;
    static constexpr uint64_t CARD_BYTES = 1 << 20; // most bytes of a message that is read by a network card and not by a processor.
    static constexpr int64_t HOT_NS = 5'000'000; // without room for so long (some ms more than a window) the learner counts as slow, and more may be sent.
    static constexpr size_t AT_ONCE = 64;        // messages of one turn; acknowledgements are handled in between turns.
    static constexpr size_t IN_FLIGHT = 64;      // most requests of UCX: more of them only slow it down, and later samples would not travel together

    struct Message {
        Chunk *chunk;
        Head head;
        const char *at;
        uint64_t bytes;
        uint32_t parts; // requests of UCX
    };

    // Finds the next message to send, starting with chunk `i`. Beside one reference per part, it holds one more to its chunk until all parts are posted.
    bool next(size_t &i, Message &message) {
        while (i < chunks_.size() && chunks_[i]->sent == chunks_[i]->filled) i++;
        if (i == chunks_.size()) return false;
        Chunk *chunk = chunks_[i];
        uint64_t from = chunk->first + chunk->sent;
        if (from > limit_ || holds_back(*chunk)) return false;
        bool shown = reads_ && chunk->offset > 0;
        uint64_t fitting = shown ? message_samples_ : std::min(message_samples_, message_bytes_ / std::max<uint64_t>(1, sample_bytes_));
        uint32_t count = uint32_t(std::min({uint64_t(chunk->filled - chunk->sent), limit_ + 1 - from, std::max<uint64_t>(1, fitting)}));
        uint64_t bytes = count * sample_bytes_, parts = shown ? 1 : std::max<uint64_t>(1, (bytes + message_bytes_ - 1) / message_bytes_);
        Head head{.kind = shown ? SHOWN : parts > 1 ? PART : SAMPLES, .count = count, .number = from};
        if (shown) head.limit = chunk->offset + chunk->sent * sample_bytes_;
        message = {chunk, head, chunk->rows + uint64_t(chunk->sent) * sample_bytes_, bytes, uint32_t(parts)};
        chunk->sent += count;
        chunk->in_flight.fetch_add(1 + message.parts, std::memory_order_relaxed);
        sent_ = from + count - 1;
        newest_sent_ = std::max(newest_sent_, sent_);
        bytes_ += bytes + parts * sizeof head;
        messages_++;
        return true;
    }

    void post(Peer &peer, const Message &message) {
        Head head = message.head;
        uint64_t size = head.kind == SHOWN ? 0 : message.bytes, each = message.parts > 1 ? message_bytes_ : size;
        for (uint64_t part = 0, offset = 0; part < message.parts; part++, offset += each) {
            if (head.kind == PART) head.limit = offset;
            peer.engine->post(peer, head, message.at + offset, std::min(each, size - offset), &Window::sent_out, message.chunk);
        }
    }

    bool fits(uint64_t count, uint64_t most) const {
        uint64_t under_way = taken_ - acknowledged_;
        return under_way == 0 || under_way + count <= most;
    }

    uint64_t bound() const { return hot_ ? hot_most_ : most_; }

    bool may_be_hot() const { return message_bytes_ < CARD_BYTES; }

    // Waits until a quarter of the bound is free and there is room for `count`. False if that does not happen in time, or no more samples are taken.
    bool wait_for_room(std::unique_lock<std::mutex> &hold, uint64_t count, int64_t wait_ns) {
        auto wait = [&](uint64_t most, int64_t ns) {
            room_at_ = count < most ? std::min(most / 4 * 3, most - count) : 0;
            waiting_room_ = true;
            room_.wait_for(hold, std::chrono::nanoseconds(ns), [&] { return stopped_ || taken_ - acknowledged_ <= room_at_; });
            waiting_room_ = false;
            return !stopped_ && fits(count, most);
        };
        if (hot_) {
            if (wait(hot_most_, HOT_NS)) return true;
            hot_ = false; // until the learner has caught up, or the full window leaves no choice but to wait for it
            if (stopped_) return false;
            if (fits(count, most_)) return true;
        }
        blocked_++;
        if (!wait(most_, wait_ns)) return false;
        hot_ = may_be_hot();
        return true;
    }

    // A busy link sends full messages: while some are in flight, a small message waits for the next acknowledgement.
    bool holds_back(const Chunk &chunk) const {
        bool growing = !chunk.sealed && chunk.filled < chunk.room;
        uint64_t ready = chunk.filled - chunk.sent;
        return growing && ready < message_samples_ && ready * sample_bytes_ < SMALL && sent_ > acknowledged_ && sent_ >= hurry_;
    }

    // Makes memory that the learner can read, enough for all samples that may be in flight. It is used from the next chunk on.
    void share() {
        uint64_t chunks = most_ / chunk_samples_ + 2;
        region_ = Region::make(engine_->context(), chunks * chunk_bytes());
        if (!region_) return;
        lease_ = region_->renew();
        for (Chunk *chunk : spares_) delete chunk;
        spares_.clear();
    }

    uint64_t chunk_bytes() const { return (chunk_samples_ * sample_bytes_ + 63) / 64 * 64; }

    void tell(Peer &peer) {
        Memory key = allocate(region_->key().size());
        if (!key) return;
        memcpy(key.get(), region_->key().data(), region_->key().size());
        told_ = true;
        peer.engine->post(peer, Head{.kind = KEY, .count = lease_, .number = region_->address(), .limit = region_->bytes()}, std::move(key), region_->key().size());
    }

    void seal() {
        if (!chunks_.empty()) chunks_.back()->sealed = true;
    }

    // Provides chunks for `count` samples, so that taking them cannot fail half way.
    bool provide(uint64_t count) {
        uint64_t room = chunks_.empty() || chunks_.back()->sealed ? 0 : chunks_.back()->room - chunks_.back()->filled;
        for (room += spares_.size() * uint64_t(chunk_samples_); room < count; room += chunk_samples_) {
            auto chunk = std::make_unique<Chunk>();
            chunk->window = this;
            chunk->room = chunk_samples_;
            if (region_ && (chunk->rows = region_->take(chunk_bytes())) != nullptr)
                chunk->offset = region_->offset(chunk->rows);
            else {
                chunk->own = allocate(chunk_bytes());
                if (!chunk->own) return false;
                chunk->rows = chunk->own.get();
            }
            spares_.push_back(chunk.release());
        }
        return true;
    }

    // Returns a chunk with room for at least one sample.
    Chunk *open_chunk() {
        if (!chunks_.empty()) {
            Chunk *last = chunks_.back();
            if (!last->sealed && last->filled < last->room) return last;
            last->sealed = true;
        }
        Chunk *chunk = spares_.back(); // the chunk that was used last is still in the cache
        spares_.pop_back();
        chunk->first = taken_ + 1;
        chunk->filled = chunk->sent = 0;
        chunk->sealed = false;
        chunks_.push_back(chunk);
        return chunk;
    }

    void acknowledge_locked(uint64_t number) {
        acknowledged_ = number;
        while (!chunks_.empty()) {
            Chunk *chunk = chunks_.front();
            bool whole = chunk->sealed || chunk->filled == chunk->room;
            if (chunk->first + chunk->filled - 1 > number || !whole) break;
            chunks_.pop_front();
            retire(chunk);
        }
        if (taken_ - acknowledged_ <= hot_most_ / 2) hot_ = may_be_hot();
        if (waiting_room_ && taken_ - acknowledged_ <= room_at_) room_.notify_all();
        if (waiting_sent_ > 0) sending_.notify_all();
    }

    // The chunk's samples are committed. Its memory is free when UCX does not use it any more either.
    void retire(Chunk *chunk) {
        if (chunk->in_flight.load(std::memory_order_acquire) > 0) { // FREE
            chunk->room = 0; // tells `sent_out` that the chunk is retired
            return;
        }
        if (chunk->offset > 0 || (!region_ && spares_.size() < 64))
            spares_.push_back(chunk);
        else
            delete chunk;
    }

    static void sent_out(void *argument) {
        auto *chunk = static_cast<Chunk *>(argument);
        for (uint32_t held = chunk->in_flight.load(std::memory_order_relaxed); held > 1;)
            if (chunk->in_flight.compare_exchange_weak(held, held - 1, std::memory_order_release)) return; // FREE; it was not the last request: no lock
        std::lock_guard hold(chunk->window->lock_);
        chunk->window->let_go(chunk, 1);
    }

    // `count` requests no longer refer to the chunk. Runs under the lock, so that no thread sees the chunk as free and uses it after it is gone.
    void let_go(Chunk *chunk, uint32_t count) {
        if (chunk->in_flight.fetch_sub(count, std::memory_order_acq_rel) > count || chunk->room != 0) return; // FREE: all of its bytes have been read
        chunk->room = chunk_samples_;
        retire(chunk);
    }

    // An ACK frame of echo_core.wire.protocol. When the uplink reads one, it looks at the window and not at the numbers in the frame.
    struct {
        uint8_t kind = 2, flags = 0;
        uint16_t table = 0;
        uint32_t count = 0;
        uint64_t number = 0, length = 0;
    } acknowledgement_;

    static constexpr uint64_t LABEL_BYTES = 16; // of one sample (echo_core/wire/labels.py); only ones if it has none

    const std::vector<uint64_t> leaves_;
    bool labelled_ = false; // whether rows end with labels
    uint64_t sample_bytes_ = 0, most_, together_, hot_bytes_, hot_most_, message_bytes_ = 1, message_samples_;
    uint32_t chunk_samples_, lease_ = 0;
    std::unique_ptr<Region> region_; // null until a learner is near
    std::mutex producer_; // taken before lock_
    std::mutex lock_;     // taken inside the engine's lock
    std::condition_variable room_, sending_;
    std::deque<Chunk *> chunks_; // oldest first
    std::vector<Chunk *> spares_;
    Engine *engine_ = nullptr;
    uint64_t taken_ = 0, sent_ = 0, newest_sent_ = 0, acknowledged_ = 0, limit_ = 0, hurry_ = 0;
    uint64_t blocked_ = 0, bytes_ = 0, messages_ = 0;
    uint64_t room_at_ = 0; // callers that wait for room are woken when so many samples are in flight
    int watchers_ = 0, waiting_sent_ = 0;
    bool stopped_ = false, resumed_ = false, owed_ = false, waiting_room_ = false;
    bool near_ = false;                 // the learner is on this machine; only such a learner gets the key to the region
    bool told_ = false, reads_ = false; // the learner has got the key, and has opened the region
    bool hot_ = false;                  // the learner keeps up
};

} // namespace echo_rdma
