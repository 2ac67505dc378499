// The learner's part in handling writers of other processes that are gone, or that hold a claim for too long. Thread-safe.
#pragma once

#include <array>
#include <mutex>

#include "store/stream/area.hpp"

namespace echo_shm {

using echo::Area, echo::Buffer, echo::Control, echo::now_ns, echo::Open, echo::Progress, echo::Record, echo::Returned;

class Reaper : private Area {
public:
    // `store` lies at `base`, and is retained for as long as the reaper lives. timeout_ns limits how long a claim may delay the batch that contains it.
    Reaper(const echo_capi *capi, echo_store *store, char *base, uint64_t length, const std::vector<uint64_t> &leaf_bytes, int64_t timeout_ns)
        : Area(base, length, leaf_bytes), capi_(*capi), store_(store), timeout_(timeout_ns) {
        capi_.retain(store_);
    }
    ~Reaper() { capi_.release(store_); }

    // Returns the number of a record for a new writer, or 0 when all are taken.
    uint32_t enlist() {
        std::lock_guard<std::mutex> lock(lock_);
        for (uint32_t id = 1; id < Area::kRecords; ++id)
            if (!seen_[id].used) {
                Record &r = record_[id];
                r.left.store(0), r.samples.store(0), r.revoked.store(0), r.waits_since.store(0), r.waiting.store(0);
                seen_[id] = {true, 0, 0};
                return id;
            }
        return 0;
    }
    uint64_t samples(uint32_t id) const { return record_[id].samples.load(std::memory_order_relaxed); }
    uint64_t revoked(uint32_t id) const { return record_[id].revoked.load(std::memory_order_relaxed); }
    int64_t waits_since(uint32_t id) const { return record_[id].waits_since.load(std::memory_order_relaxed); }
    bool left(uint32_t id) const { return record_[id].left.load(std::memory_order_acquire) != 0; }

    void reap(uint32_t id);     // the record's process is gone, or has said that it no longer uses the record
    void give_up(uint32_t id);  // the record's process does not want the claim that it holds, and waits for this call
    // Call this several times a second: it moves batches away from stalled writers. Returns how many were moved; *stuck counts the stalled
    // writers whose batch cannot be moved because no spare buffer is free.
    int tick(int *stuck);

private:
    void settle(uint32_t id);
    void move(uint32_t b, int64_t now, int *moved, int *stuck);
    bool take_back(uint32_t id);

    struct Seen {
        bool used = false;
        uint64_t word = 0;
        int64_t since = 0;  // the now_ns() since when the record shows `word`
    };

    void abort(const echo_run &run) { capi_.abort(store_, &run); }
    void space_appeared() { abort({0, 0, 0, 0}); }  // also for threads of this process that wait in epoll

    const echo_capi &capi_;
    echo_store *const store_;
    const int64_t timeout_;
    std::mutex lock_;
    std::array<Seen, Area::kRecords> seen_{};
};

// Afterwards the record says exactly what its writer had done, and nobody else advances it.
inline void Reaper::settle(uint32_t id) {
    Control &c = *control_;
    uint64_t open = c.open.load(std::memory_order_seq_cst);
    if (Open::pending(open) == id) settle_open(open);
    uint64_t returned = c.returned.load(std::memory_order_seq_cst);
    if (Returned::pending(returned) == id) settle_returned(returned);
    for (uint64_t b = 0; b < total_; ++b) {
        Buffer &buffer = buffer_[b];
        uint64_t progress = buffer.progress.load(std::memory_order_seq_cst);
        // The learner's own writers may add to the count meanwhile; the writer that is gone adds nothing.
        while (Progress::pending(progress) == id && Progress::state(progress) == Progress::kOpen) progress = settle_progress(buffer, progress);
        if (Progress::pending(progress) == id && Progress::state(progress) == Progress::kOpening)  // the buffer was never published
            buffer.progress.compare_exchange_strong(progress, Progress::lap(progress) | Progress::kFree, std::memory_order_seq_cst);
    }
}

inline bool Reaper::take_back(uint32_t id) {
    Record &r = record_[id];
    const uint64_t word = r.word.load(std::memory_order_seq_cst), place = r.place.load(std::memory_order_relaxed);
    const bool held = (word & 3) == Record::kHeld;
    const uint32_t b = uint32_t(place >> 32), slot = uint32_t(place), count = r.count.load(std::memory_order_relaxed);
    if (held && b < total_ && uint64_t(slot) + count <= batch_ &&
        Progress::state(buffer_[b].progress.load(std::memory_order_seq_cst)) == Progress::kOpen)
        abort({b, slot, count, 0});
    r.word.store((word | 3) + 1, std::memory_order_release);
    return held;
}

inline void Reaper::reap(uint32_t id) {
    std::lock_guard<std::mutex> lock(lock_);
    settle(id);
    take_back(id);
    Record &r = record_[id];
    if (r.waiting.exchange(0, std::memory_order_seq_cst)) control_->space.forget();
    seen_[id].used = false;
    // The writer may have been about to wake somebody.
    control_->ready.notify(INT_MAX);
    space_appeared();
}

inline void Reaper::give_up(uint32_t id) {
    std::lock_guard<std::mutex> lock(lock_);
    take_back(id);
}

inline int Reaper::tick(int *stuck) {
    std::lock_guard<std::mutex> lock(lock_);
    const int64_t now = now_ns();
    std::vector<uint32_t> holds(total_, 0), stalls(total_, 0);
    for (uint32_t id = 1; id < Area::kRecords; ++id) {
        if (!seen_[id].used) continue;
        Record &r = record_[id];
        const uint64_t word = r.word.load(std::memory_order_acquire), b = r.place.load(std::memory_order_relaxed) >> 32;  // SYNC quarantine
        if (word != seen_[id].word || seen_[id].since == 0) seen_[id].word = word, seen_[id].since = now;
        if ((word & 3) != Record::kHeld || b >= total_) continue;
        ++holds[b];
        if (now - seen_[id].since >= timeout_) ++stalls[b];
    }
    int moved = 0;
    *stuck = 0;
    for (uint32_t b = 0; b < total_; ++b) {
        const uint64_t progress = buffer_[b].progress.load(std::memory_order_seq_cst);
        if (Progress::state(progress) == Progress::kQuarantine && holds[b] == 0)  // all bytes that its writers wrote come before the bytes that we write next
            buffer_[b].progress.store(Progress::lap(progress) | Progress::kSpare, std::memory_order_release);
        if (stalls[b]) move(b, now, &moved, stuck);
    }
    space_appeared();  // a remote writer that made space cannot write to the eventfds of this process
    return moved;
}

// Copies the committed samples of buffer `b` to a spare buffer, which takes its place. This happens once only stalled writers have anything
// left to write there. Buffer `b` is used again after those writers have moved on.
inline void Reaper::move(uint32_t b, int64_t now, int *moved, int *stuck) {
    Buffer &from = buffer_[b];
    uint64_t progress = from.progress.load(std::memory_order_seq_cst);
    while (progress & Progress::kPending && Progress::state(progress) == Progress::kOpen) progress = settle_progress(from, progress);
    if (Progress::state(progress) != Progress::kOpen) return;
    // Nothing is pending, so a writer that has committed here is no longer HELD. A writer that is HELD now, and until the exchange below
    // succeeds, has not committed.
    std::vector<bool> missing(batch_, false);
    uint64_t count = 0;
    for (uint32_t id = 1; id < Area::kRecords; ++id) {
        Record &r = record_[id];
        const uint64_t word = r.word.load(std::memory_order_seq_cst), place = r.place.load(std::memory_order_relaxed);
        if (!seen_[id].used || (word & 3) != Record::kHeld || place >> 32 != b || word != seen_[id].word || now - seen_[id].since < timeout_) continue;
        for (uint64_t i = uint32_t(place), end = i + r.count.load(std::memory_order_relaxed); i < end && i < batch_; ++i, ++count) missing[i] = true;
    }
    if (count == 0 || Progress::count(progress) + count != batch_) return;
    uint32_t spare = 0;
    while (spare < total_ && Progress::state(buffer_[spare].progress.load(std::memory_order_acquire)) != Progress::kSpare) ++spare;
    if (spare == total_) {
        ++*stuck;
        return;
    }
    // This exchange decides: if a writer commits before it, the exchange fails; a writer that commits after it finds that the buffer is no longer OPEN.
    if (!from.progress.compare_exchange_strong(progress, Progress::lap(progress) | Progress::kQuarantine, std::memory_order_seq_cst)) return;  // SYNC batch
    for (uint64_t i = 0; i < batch_;) {
        uint64_t end = i;
        while (end < batch_ && !missing[end]) ++end;
        for (uint32_t leaf = 0; end > i && leaf < leaf_count(); ++leaf) {
            const uint64_t bytes = leaf_bytes(leaf);
            std::memcpy(batch_leaf(int(spare), leaf) + i * bytes, batch_leaf(int(b), leaf) + i * bytes, (end - i) * bytes);
        }
        for (i = end; i < batch_ && missing[i];) ++i;
    }
    Buffer &to = buffer_[spare];
    to.order.store(from.order.load(std::memory_order_relaxed), std::memory_order_relaxed);
    to.ready_at.store(0, std::memory_order_relaxed);
    to.overtaken.store(from.overtaken.load(std::memory_order_relaxed), std::memory_order_relaxed);
    const uint64_t lap = Progress::next_lap(to.progress.load(std::memory_order_relaxed));
    to.progress.store(lap | Progress::kOpen | (batch_ - count), std::memory_order_seq_cst);
    for (uint32_t i = 0; i < batch_; ++i)
        if (missing[i]) abort({spare, i, 1, 0});
    ++*moved;
}

}  // namespace echo_shm
