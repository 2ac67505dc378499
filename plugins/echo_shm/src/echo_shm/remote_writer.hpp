// A writer in another process. It claims slots in the learner's store through the same words as the learner's own writers (ring.hpp of echo_core), but so
// that it may be killed, or stopped for an hour, between any two instructions. docs/design/shm.md has the argument.
//
//   record: INTENT --claim: open or returned changes, by us--> HELD --commit: progress changes, by us--> DONE
//
// * The writer notes in its record what it wants before it changes the word (the write-ahead), and the change carries its number as `pending`.
//   Afterwards the writer notes the change in its record and removes its number. If another thread needs the word in between, that thread
//   does both steps for the writer (Area::settle_*).
// * A revoked claim shows in `progress`: the buffer is no longer OPEN, so commit() cannot succeed. Until the writer has read that,
//   nobody else uses the buffer.
#pragma once

#include "store/stream/area.hpp"

namespace echo_shm {

using echo::Area, echo::Buffer, echo::Control, echo::now_ns, echo::Open, echo::Progress, echo::Record, echo::Returned;

class Remote : public Area {
public:
    static constexpr int kRevoked = 5;  // a further result beside those of echo_status

    Remote(int fd, uint64_t length, const std::vector<uint64_t> &leaf_bytes) : Area(fd, length, leaf_bytes) {}
    // A writer in the learner's process: ThreadSanitizer can follow it.
    Remote(char *base, uint64_t length, const std::vector<uint64_t> &leaf_bytes) : Area(base, length, leaf_bytes) {}

    // Each record number is used by one thread at a time.
    int claim(uint32_t id, uint32_t wanted, echo_run *out);
    int commit(uint32_t id, const echo_run &run);  // ECHO_OK or kRevoked: then nothing of the run was stored, and the run is no longer ours
    // The claim is not wanted any more: the learner takes it back after this process has asked for it. `idle` says whether the record holds no claim.
    bool idle(uint32_t id) const {
        const uint64_t step = record_[id].word.load(std::memory_order_acquire) & 3;
        return step == Record::kIdle || step == Record::kDone;
    }
    // The claim was revoked, and this process has stopped writing to its slots.
    void yield(uint32_t id) {
        Record &r = record_[id];
        r.revoked.fetch_add(1, std::memory_order_relaxed);
        // release: our last bytes come before the learner gives the buffer to others.
        r.word.store((r.word.load(std::memory_order_relaxed) | 3) + 1, std::memory_order_release);  // SYNC quarantine
    }
    int wait_space(uint32_t id, int64_t timeout_ns);
    // This process has made its last change with this record.
    void leave(uint32_t id) { record_[id].left.store(1, std::memory_order_release); }

private:
    bool pop_returned(uint32_t id, uint64_t step, echo_run *out);
    bool open_next(uint32_t id, uint64_t full);
    void held(Record &r, uint64_t step) { r.word.store(step + Record::kHeld, std::memory_order_seq_cst); }
    void intend(Record &r, uint32_t buffer, uint32_t slot, uint32_t count) {
        r.place.store(uint64_t(buffer) << 32 | slot, std::memory_order_relaxed);
        r.count.store(count, std::memory_order_relaxed);
    }
};

inline int Remote::claim(uint32_t id, uint32_t wanted, echo_run *out) {
    Control &c = *control_;
    if (c.closed.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    Record &r = record_[id];
    const uint64_t step = (r.word.load(std::memory_order_relaxed) | 3) + 1;
    r.word.store(step + Record::kIntent, std::memory_order_relaxed);
    if (uint32_t(c.returned.load(std::memory_order_relaxed)) != 0 && pop_returned(id, step, out)) return ECHO_OK;
    uint64_t open = c.open.load(std::memory_order_acquire);  // SYNC open
    for (;;) {
        if (open & Open::kPending) {
            open = settle_open(open);
            continue;
        }
        const uint32_t next = Open::next(open);
        if (next < batch_) {
            const uint32_t count = wanted < batch_ - next ? wanted : uint32_t(batch_ - next);
            intend(r, Open::buffer(open), next, count);
            // release: the record says what we claim before anybody sees it claimed. acquire: SYNC open, SYNC free.
            if (c.open.compare_exchange_strong(open, (open + count) | Open::by(id), std::memory_order_seq_cst, std::memory_order_acquire)) {
                held(r, step);
                uint64_t mine = (open + count) | Open::by(id);
                c.open.compare_exchange_strong(mine, mine & ~Open::kPending, std::memory_order_seq_cst, std::memory_order_relaxed);
                *out = {Open::buffer(open), next, count, 0};
                return ECHO_OK;
            }
        } else {
            const bool tried = open_next(id, open);
            const uint64_t now = c.open.load(std::memory_order_acquire);
            if (!tried && now == open) {
                r.word.store(step + Record::kDone, std::memory_order_release);
                if (c.closed.load(std::memory_order_relaxed)) return ECHO_CLOSED;
                c.push_blocked.fetch_add(1, std::memory_order_relaxed);
                return ECHO_FULL;
            }
            open = now;
        }
    }
}

inline bool Remote::pop_returned(uint32_t id, uint64_t step, echo_run *out) {
    std::atomic<uint64_t> &returned = control_->returned;
    uint64_t head = returned.load(std::memory_order_acquire);  // SYNC returned
    while (uint32_t(head) != 0) {
        if (head & Returned::kPending) {
            head = settle_returned(head);
            continue;
        }
        const uint32_t slot = uint32_t(head) - 1;
        if (slot >= batch_ * total_) return false;
        intend(record_[id], uint32_t(slot / batch_), uint32_t(slot % batch_), 1);
        uint64_t mine = Returned::next(head, returned_next_[slot].load(std::memory_order_relaxed)) | Returned::by(id);
        if (returned.compare_exchange_strong(head, mine, std::memory_order_seq_cst, std::memory_order_acquire)) {
            held(record_[id], step);
            returned.compare_exchange_strong(mine, mine & ~Returned::kPending, std::memory_order_seq_cst, std::memory_order_relaxed);
            *out = {uint32_t(slot / batch_), uint32_t(slot % batch_), 1, 0};
            return true;
        }
    }
    return false;
}

// Like Ring::open_next. The buffer is OPENING, with our number, until it is published. Only then it becomes OPEN, and any thread may do this.
inline bool Remote::open_next(uint32_t id, uint64_t full) {
    const uint64_t start = Open::buffer(full) + 1;
    for (uint64_t i = 0; i < total_; ++i) {
        const uint64_t b = (start + i) % total_;
        Buffer &buffer = buffer_[b];
        uint64_t free = buffer.progress.load(std::memory_order_relaxed);
        const uint64_t opening = Progress::next_lap(free) | Progress::kOpening | Progress::by(id);
        if (Progress::state(free) != Progress::kFree ||
            !buffer.progress.compare_exchange_strong(free, opening, std::memory_order_acquire, std::memory_order_relaxed))  // SYNC free
            continue;
        buffer.order.store(control_->next_order.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
        buffer.ready_at.store(0, std::memory_order_relaxed);
        buffer.overtaken.store(false, std::memory_order_relaxed);
        uint64_t seen = full;
        const uint64_t fresh = Open::pack(Open::epoch(full) + 1, b, 0) | Open::by(id);
        if (control_->open.compare_exchange_strong(seen, fresh, std::memory_order_seq_cst))  // SYNC open
            settle_open(fresh);
        else
            buffer.progress.store(Progress::lap(opening) | Progress::kFree, std::memory_order_seq_cst);  // another writer was quicker
        control_->space.notify(INT_MAX);
        return true;
    }
    return false;
}

inline int Remote::commit(uint32_t id, const echo_run &run) {
    Buffer &buffer = buffer_[run.buffer];
    Record &r = record_[id];
    uint64_t progress = buffer.progress.load(std::memory_order_relaxed), mine;
    for (;;) {
        if (Progress::state(progress) != Progress::kOpen) {
            yield(id);
            return kRevoked;
        }
        if (progress & Progress::kPending) {
            progress = settle_progress(buffer, progress);
            continue;
        }
        mine = (progress + run.count) | Progress::by(id);
        // release: the samples' bytes come before the count that shows them to the learner. seq_cst: SYNC wakeup.
        if (buffer.progress.compare_exchange_weak(progress, mine, std::memory_order_seq_cst, std::memory_order_relaxed)) break;  // SYNC batch
    }
    r.word.store((r.word.load(std::memory_order_relaxed) & ~uint64_t(3)) + Record::kDone, std::memory_order_seq_cst);
    r.samples.store(r.samples.load(std::memory_order_relaxed) + run.count, std::memory_order_relaxed);
    // It has waited in vain, and then there was space without waiting.
    if (r.waits_since.load(std::memory_order_relaxed) != 0) r.waits_since.store(0, std::memory_order_relaxed);
    const bool whole = Progress::count(mine) == batch_;
    if (whole) buffer.ready_at.store(now_ns(), std::memory_order_relaxed);
    // The learner's own writers may add to the count in between.
    uint64_t now = mine;
    while (Progress::pending(now) == id && Progress::lap(now) == Progress::lap(mine) &&
           !buffer.progress.compare_exchange_weak(now, now & ~Progress::kPending, std::memory_order_seq_cst)) {}
    if (whole && control_->ready.notify(1)) control_->notified.fetch_add(1, std::memory_order_relaxed);
    return ECHO_OK;
}

inline int Remote::wait_space(uint32_t id, int64_t timeout_ns) {
    Record &r = record_[id];
    if (r.waits_since.load(std::memory_order_relaxed) == 0) r.waits_since.store(now_ns(), std::memory_order_relaxed);
    const bool space = control_->space.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns, &r.waiting);
    if (space) r.waits_since.store(0, std::memory_order_relaxed);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

}  // namespace echo_shm
