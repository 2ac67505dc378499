// The lock-free store of a stream: many writers fill batch buffers slot by slot, and learners take batches as a whole.
//
//   FREE --open--> OPEN (writers claim, copy, commit) --all committed, take--> LEASED --last array is freed--> FREE
//
// * `open` holds the buffer that is being filled and its next slot in one word: a claim is one compare-and-swap.
// * A buffer's `progress` counts its committed slots: a commit is one add. The writer whose commit makes it batch_size wakes the learner.
// * Nothing else says that a batch is complete, so a writer that dies cannot leave a queue half updated: learners look at
//   `progress` itself. Batches leave in the order in which their buffers were opened. If a batch waits for a stalled writer, later batches
//   overtake it after kPatienceNs, so that the writer delays only the batch that contains its slot.
// * Aborted slots go on a stack, and writers empty this stack first.
//
// The memory-ordering argument, pair by pair (SYNC names are repeated at both ends), is in docs/design/store.md.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include "../../base/memory/fork_count.hpp"
#include "../wait/space_eventfds.hpp"
#include "area.hpp"
#include "gil_handoff.hpp"
#include "../histogram.hpp"

// The test-suite builds once with a relaxed order here, to prove that ThreadSanitizer would report the mistake.
#ifndef ECHO_COMMIT_ORDER
#define ECHO_COMMIT_ORDER std::memory_order_seq_cst
#endif

namespace echo {

class Ring : public Area {
public:
    static constexpr int64_t kPatienceNs = 50'000'000;  // longer than the usual delay of a preempted writer or a stalled sender

    // leaf_bytes: for each leaf, its size in one sample. fd: a memfd of bytes() length for a store that other processes write to as well
    // (remote_writer.hpp), or -1 for private memory. Throws std::bad_alloc if the memory cannot be allocated.
    Ring(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, uint64_t buffers, uint64_t spares = 0, int fd = -1)
        : Area(leaf_bytes, batch_size, buffers, spares, fd), shared_(fd >= 0), born_(fork_count()) {}

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- writers -------------------------------------------------------------------------------------------------------
    int claim(uint32_t wanted, echo_run *out);
    void commit(const echo_run &run);
    void abort(const echo_run &run);
    int wait_space(int64_t timeout_ns);
    int arm_space(int eventfd);
    void disarm_space(int eventfd);

    // ---- learners ------------------------------------------------------------------------------------------------------
    // Returns the buffer of the oldest complete batch, or -1. The caller owns the buffer until give_back().
    int take();
    void give_back(int buffer);
    // Waits until a batch is ready (returns true), or until the deadline has passed or a signal came (false). Also returns true once the store is closed.
    bool wait_ready(int64_t timeout_ns);
    void close();

    // ---- figures -------------------------------------------------------------------------------------------------------
    struct Counters {
        uint64_t inserted, stored, batches_taken, batches_out_of_order, push_blocked, notified, aborted, leased, connections, queued, queue_depth_max;
    };
    Counters counters() const;
    uint64_t leased() const { return control_->leased.load(std::memory_order_relaxed); }
    uint32_t writers_waiting() const { return control_->space.waiters(); }
    bool shared() const { return shared_; }

    Side writer, learner;  // for Python threads of this process, see gil_handoff.hpp
    void spin_for_space() { writer.spin(learner, [this] { return can_claim(); }); }
    void spin_for_batch() {
        const auto ready = [this] { return next_batch(nullptr) >= 0; };
        shared_ ? learner.watch(ready) : learner.spin(writer, ready);
    }

    std::atomic<int64_t> connections{0};          // number of workers, as the server counts them
    std::atomic<int64_t> gauges[1] = {};          // indexed by echo_gauge
    std::atomic<uint64_t> queue_depth_max{0};
    Histogram copy, ingest_round, queue_dwell;

private:
    friend class Reaper;
    friend struct Tap;

    bool open_next(uint64_t full);
    bool pop_returned(echo_run *out);
    // Returns the batch that leaves next, or -1: the earliest complete batch, unless an earlier batch is still worth waiting for.
    // `earlier`: whether an incomplete batch is older, stalled or not.
    int next_batch(uint64_t *order, bool *earlier = nullptr) const;
    bool any_complete() const;
    void space_appeared();

    // A fork does not copy shared memory: an object that is freed in the child must not change the parent's store.
    bool forked() const { return shared_ && fork_count() != born_; }

    const bool shared_;
    const uint32_t born_;
    std::atomic<uint32_t> references_{1};
    SpaceEventfds eventfds_;  // for threads that wait for space in epoll
};

inline int Ring::claim(uint32_t wanted, echo_run *out) {
    if (control_->closed.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (uint32_t(control_->returned.load(std::memory_order_relaxed)) != 0 && pop_returned(out)) return ECHO_OK;
    uint64_t open = control_->open.load(std::memory_order_acquire);  // SYNC open
    for (;;) {
        if (open & Open::kPending) [[unlikely]] {
            open = settle_open(open);
            continue;
        }
        const uint32_t next = Open::next(open);
        // Another process may have written nonsense here. This check keeps our own writes within the store.
        if (next < batch_ && Open::buffer(open) < total_) {
            const uint32_t count = wanted < batch_ - next ? wanted : uint32_t(batch_ - next);
            // acquire: we must see the buffer that `open` names as its opener left it, after its last readers are done (SYNC free).
            if (control_->open.compare_exchange_weak(open, open + count, std::memory_order_acq_rel, std::memory_order_acquire)) {
                *out = {Open::buffer(open), next, count, 0};
                return ECHO_OK;
            }
        } else {
            if (!open_next(open)) {
                const uint64_t now = control_->open.load(std::memory_order_acquire);
                if (now == open) {
                    if (control_->closed.load(std::memory_order_relaxed)) return ECHO_CLOSED;
                    control_->push_blocked.fetch_add(1, std::memory_order_relaxed);
                    return ECHO_FULL;
                }
                open = now;
                continue;
            }
            open = control_->open.load(std::memory_order_acquire);
        }
    }
}

// `full` is the value of `open` whose buffer has no slot left. Returns false if no buffer was free. Any writer may do this, so that a
// writer that is killed on the way leaves nothing undone.
inline bool Ring::open_next(uint64_t full) {
    const uint64_t start = Open::buffer(full) + 1;
    for (uint64_t i = 0; i < total_; ++i) {
        const uint64_t b = start + i < total_ ? start + i : start + i - total_;
        if (b >= total_) continue;
        Buffer &buffer = buffer_[b];
        uint64_t free = buffer.progress.load(std::memory_order_relaxed);
        const uint64_t lap = Progress::next_lap(free);
        if (Progress::state(free) != Progress::kFree ||
            !buffer.progress.compare_exchange_strong(free, lap | Progress::kOpening, std::memory_order_acquire, std::memory_order_relaxed))  // SYNC free
            continue;
        buffer.order.store(control_->next_order.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
        buffer.ready_at.store(0, std::memory_order_relaxed);
        buffer.overtaken.store(false, std::memory_order_relaxed);
        buffer.progress.store(lap | Progress::kOpen, std::memory_order_release);  // SYNC order
        uint64_t seen = full;
        // release: a writer that claims in this buffer sees its new order and a progress of zero, not the values of the last lap. seq_cst: SYNC wakeup.
        const bool mine = control_->open.compare_exchange_strong(seen, Open::pack(Open::epoch(full) + 1, b, 0), std::memory_order_seq_cst);  // SYNC open
        if (!mine) buffer.progress.store(lap | Progress::kFree, std::memory_order_seq_cst);  // another writer was quicker
        // Writers that looked while this buffer was neither free nor open found no space and went to sleep: wake them.
        space_appeared();
        return true;
    }
    return false;
}

inline void Ring::commit(const echo_run &run) {
    Buffer &buffer = buffer_[run.buffer];
    // release: the samples' bytes come before the count that shows them to the learner. seq_cst: SYNC wakeup.
    const uint64_t before = buffer.progress.fetch_add(run.count, ECHO_COMMIT_ORDER);  // SYNC batch
    if (uint32_t(before) + run.count == batch_) {
        buffer.ready_at.store(now_ns(), std::memory_order_relaxed);
        if (control_->ready.notify(1)) control_->notified.fetch_add(1, std::memory_order_relaxed);
    }
}

inline void Ring::abort(const echo_run &run) {
    for (uint32_t i = run.count; i-- > 0;) {  // in this order they leave the stack in ascending order
        const uint32_t id = run.buffer * uint32_t(batch_) + run.slot + i;
        uint64_t head = control_->returned.load(std::memory_order_relaxed), fresh;
        do {
            while (head & Returned::kPending) head = settle_returned(head);
            returned_next_[id].store(uint32_t(head), std::memory_order_relaxed);
            fresh = Returned::next(head, id + 1);
            // release: what was written into the slot comes before the next writer's claim of the slot. seq_cst: SYNC wakeup.
        } while (!control_->returned.compare_exchange_weak(head, fresh, std::memory_order_seq_cst, std::memory_order_relaxed));  // SYNC returned
    }
    control_->aborted.fetch_add(run.count, std::memory_order_relaxed);
    space_appeared();
}

inline bool Ring::pop_returned(echo_run *out) {
    uint64_t head = control_->returned.load(std::memory_order_acquire);  // SYNC returned
    while (uint32_t(head) != 0) {
        if (head & Returned::kPending) [[unlikely]] {
            head = settle_returned(head);
            continue;
        }
        const uint32_t id = uint32_t(head) - 1;
        if (id >= batch_ * total_) return false;
        // The link may belong to a later use of this slot; the tag in `head` then makes the exchange fail.
        const uint64_t fresh = Returned::next(head, returned_next_[id].load(std::memory_order_relaxed));
        if (control_->returned.compare_exchange_weak(head, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) {
            *out = {uint32_t(id / batch_), uint32_t(id % batch_), 1, 0};
            return true;
        }
    }
    return false;
}

inline int Ring::wait_space(int64_t timeout_ns) {
    const bool space = control_->space.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

inline int Ring::arm_space(int eventfd) {
    eventfds_.arm(eventfd);
    if (!can_claim()) return ECHO_OK;
    disarm_space(eventfd);
    return ECHO_READY;
}

inline void Ring::disarm_space(int eventfd) { eventfds_.disarm(eventfd); }

inline void Ring::space_appeared() {
    control_->space.notify(INT_MAX);
    eventfds_.signal();
}

inline int Ring::next_batch(uint64_t *order_of, bool *earlier) const {
    int best = -1;
    uint64_t best_order = UINT64_MAX, oldest_awaited = UINT64_MAX, oldest_incomplete = UINT64_MAX;
    for (uint64_t b = 0; b < total_; ++b) {
        const Buffer &buffer = buffer_[b];
        const uint64_t progress = buffer.progress.load(std::memory_order_seq_cst);  // SYNC batch, order
        if (Progress::state(progress) != Progress::kOpen) continue;
        // The order is read after the progress, so it is that of this lap or of a later one, which is higher.
        const uint64_t order = buffer.order.load(std::memory_order_relaxed);
        if (complete(progress)) {
            if (order < best_order) best_order = order, best = int(b);
        } else {
            oldest_incomplete = std::min(oldest_incomplete, order);
            if (!buffer.overtaken.load(std::memory_order_relaxed)) oldest_awaited = std::min(oldest_awaited, order);
        }
    }
    if (order_of) *order_of = best_order;
    if (earlier) *earlier = oldest_incomplete < best_order;
    if (best < 0 || oldest_awaited > best_order || closed()) return best;
    // An earlier batch misses a sample that a writer is about to commit.
    const int64_t now = now_ns();
    int64_t ready = buffer_[best].ready_at.load(std::memory_order_relaxed);
    // The writer that completed the batch may have died, or been stopped, before it recorded the time. The wait then begins when a learner
    // first finds the batch complete. If the buffer is already in its next lap, its completion overwrites this value.
    if (ready <= 0) buffer_[best].ready_at.compare_exchange_strong(ready, now, std::memory_order_relaxed);
    return ready > 0 && now - ready >= kPatienceNs ? best : -1;
}

inline int Ring::take() {
    uint64_t order, confirmed = UINT64_MAX;
    bool overtakes = false;
    for (;;) {
        const int b = next_batch(&order, &overtakes);
        if (b < 0) return -1;
        // One look is no snapshot. While the loop runs, a buffer that it has already passed may be opened and completed, and then the
        // buffer that it finds may be completed before the loop reaches it. A second look, which begins now, sees everything that was
        // complete before the buffer found. Without it, batches of a single writer would leave out of order now and then.
        if (order != confirmed) {
            confirmed = order;
            continue;
        }
        uint64_t progress = buffer_[b].progress.load(std::memory_order_relaxed);
        if (progress & Progress::kPending) [[unlikely]] progress = settle_progress(buffer_[b], progress);
        // acquire: the bytes of every committed sample are visible (the changes by all writers form one release sequence).
        if (!complete(progress) || progress & Progress::kPending ||
            !buffer_[b].progress.compare_exchange_strong(progress, Progress::lap(progress) | Progress::kLeased, std::memory_order_acquire,
                                                         std::memory_order_relaxed))  // SYNC batch
            continue;  // another learner was quicker
        control_->taken.fetch_add(1, std::memory_order_release);  // SYNC totals
        if (overtakes) {
            control_->out_of_order.fetch_add(1, std::memory_order_relaxed);
            for (uint64_t i = 0; i < total_; ++i) {
                // In the same sequence as in next_batch, so that no batch of a later lap is taken for one that was overtaken.
                const bool open = Progress::state(buffer_[i].progress.load(std::memory_order_acquire)) == Progress::kOpen;  // SYNC order
                if (open && buffer_[i].order.load(std::memory_order_relaxed) < order) buffer_[i].overtaken.store(true, std::memory_order_relaxed);
            }
        }
        control_->leased.fetch_add(1, std::memory_order_relaxed);
        const int64_t ready = buffer_[b].ready_at.load(std::memory_order_relaxed), now = now_ns();
        queue_dwell.record(ready > 0 && now > ready ? uint64_t(now - ready) : 0);
        return b;
    }
}

inline void Ring::give_back(int buffer) {
    if (forked()) return;
    control_->leased.fetch_sub(1, std::memory_order_relaxed);
    // release: the learner's last reads of the batch come before the first write of the next samples. seq_cst: SYNC wakeup.
    const uint64_t lap = Progress::lap(buffer_[buffer].progress.load(std::memory_order_relaxed));
    buffer_[buffer].progress.store(lap | Progress::kFree, std::memory_order_seq_cst);  // SYNC free
    space_appeared();
}

inline bool Ring::any_complete() const {
    for (uint64_t b = 0; b < total_; ++b)
        if (complete(buffer_[b].progress.load(std::memory_order_seq_cst))) return true;
    return false;
}

inline bool Ring::wait_ready(int64_t timeout_ns) {
    const int64_t deadline = timeout_ns < 0 ? INT64_MAX : now_ns() + timeout_ns;
    for (;;) {
        if (closed() || next_batch(nullptr) >= 0) return true;
        // If a complete batch is held back for an earlier one, no second notification comes when the wait for the earlier one ends. So look again by then.
        const bool held_back = any_complete();
        const int64_t look = now_ns() + kPatienceNs, until = held_back && look < deadline ? look : deadline;
        const bool woken = control_->ready.wait(
            [&] { return closed() || (held_back ? next_batch(nullptr) >= 0 : any_complete()); }, until == INT64_MAX ? -1 : until);
        if (!woken && (until == deadline || now_ns() < until)) return closed() || next_batch(nullptr) >= 0;  // the deadline has passed, or a signal came
    }
}

inline void Ring::close() {
    if (forked()) return;
    control_->closed.store(true, std::memory_order_seq_cst);
    control_->ready.notify(INT_MAX);
    space_appeared();
}

inline Ring::Counters Ring::counters() const {
    const auto relaxed = std::memory_order_relaxed;
    // acquire, before the look at the buffers: a batch that counts as taken is then not seen as still open, which would count it twice.
    const uint64_t taken = control_->taken.load(std::memory_order_acquire);  // SYNC totals
    uint64_t stored = 0;
    for (uint64_t b = 0; b < total_; ++b) {
        const uint64_t progress = buffer_[b].progress.load(relaxed);
        if (Progress::state(progress) == Progress::kOpen) stored += Progress::count(progress);
    }
    // A batch that is being taken at this moment may be missing from both numbers.
    uint64_t inserted = taken * batch_ + stored, seen = control_->inserted.load(relaxed);
    while (inserted > seen && !control_->inserted.compare_exchange_weak(seen, inserted, relaxed)) {}
    if (inserted < seen) inserted = seen;
    return {inserted, stored, taken, control_->out_of_order.load(relaxed), control_->push_blocked.load(relaxed), control_->notified.load(relaxed),
            control_->aborted.load(relaxed), control_->leased.load(relaxed), uint64_t(connections.load(relaxed)),
            uint64_t(gauges[ECHO_GAUGE_QUEUED].load(relaxed)), queue_depth_max.load(relaxed)};
}

}  // namespace echo
