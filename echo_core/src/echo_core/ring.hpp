// The lock-free store of a stream: many writers fill batch buffers slot by slot, learners take whole batches.
//
//   FREE --open--> OPEN (writers claim, copy, commit) --all committed, take--> LEASED --last array dies--> FREE
//
// * `open_` names the buffer being filled and its next slot in one word: claiming is one compare-and-swap.
// * A buffer's `progress` counts its committed slots: committing is one add. Whoever makes it batch_size wakes the learner.
// * Nothing else says that a batch is complete, so a writer that dies cannot leave a queue half updated: learners look at
//   `progress` itself. Batches leave in the order in which their buffers were opened. A batch that waits for a stalled writer is
//   overtaken after kPatienceNs: the writer then delays the batch it is in and no other.
// * Aborted slots go on a stack that the next writers empty first.
//
// The memory-ordering argument, pair by pair (SYNC names are repeated at both ends), is in docs/design/store.md.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <vector>

#include "eventcount.hpp"
#include "handoff.hpp"
#include "histogram.hpp"
#include "include/echo_capi.h"

// The test-suite builds once with a relaxed order here, to prove that ThreadSanitizer would see the mistake.
#ifndef ECHO_COMMIT_ORDER
#define ECHO_COMMIT_ORDER std::memory_order_seq_cst
#endif

namespace echo {

class Ring {
public:
    static constexpr uint64_t kMaxBatch = (1u << 24) - 1;   // what fits open_'s fields
    static constexpr uint64_t kMaxBuffers = (1u << 12) - 1;
    static constexpr int64_t kPatienceNs = 50'000'000;  // longer than a preempted writer or a stalled sender usually takes

    // leaf_bytes: size of one sample's leaf, each. Throws std::bad_alloc when the memory is not to be had.
    Ring(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, uint64_t buffers);
    ~Ring();
    Ring(const Ring &) = delete;
    Ring &operator=(const Ring &) = delete;

    // Bytes that the storage will take, for a check before it is allocated; UINT64_MAX on overflow.
    static uint64_t storage_bytes(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, uint64_t buffers);

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- writers -------------------------------------------------------------------------------------------------------
    int claim(uint32_t wanted, echo_run *out);
    char *leaf(const echo_run &run, uint32_t leaf) const {
        const Layout &l = layout_[leaf];
        return storage_ + run.buffer * stride_ + l.offset + run.slot * l.bytes;
    }
    void commit(const echo_run &run);
    void abort(const echo_run &run);
    int wait_space(int64_t timeout_ns);
    int arm_space(int eventfd);
    void disarm_space(int eventfd);

    // ---- learners ------------------------------------------------------------------------------------------------------
    // The oldest complete batch, or -1. The caller owns its buffer until give_back().
    int take();
    void give_back(int buffer);
    // Whether a batch is ready (true) or the deadline passed or a signal came (false). Also true once closed.
    bool wait_ready(int64_t timeout_ns);
    char *batch_leaf(int buffer, uint32_t leaf) const { return storage_ + uint64_t(buffer) * stride_ + layout_[leaf].offset; }

    void close();
    bool closed() const { return closed_.load(std::memory_order_seq_cst); }

    // ---- figures -------------------------------------------------------------------------------------------------------
    struct Counters {
        uint64_t inserted, stored, batches_taken, push_blocked, notified, aborted, leased, connections, queued, queue_depth_max;
    };
    Counters counters() const;
    uint64_t batch_size() const { return batch_; }
    uint64_t buffers() const { return buffer_count_; }
    uint64_t leased() const { return leased_.load(std::memory_order_relaxed); }
    uint32_t leaf_count() const { return uint32_t(layout_.size()); }
    uint64_t leaf_bytes(uint32_t leaf) const { return layout_[leaf].bytes; }
    uint64_t sample_bytes() const { return sample_bytes_; }
    uint32_t writers_waiting() const { return space_.waiters(); }

    Side writer, learner;  // Python threads of this process, see handoff.hpp
    void spin_for_space() { writer.spin(learner, [this] { return can_claim(); }); }
    void spin_for_batch() { learner.spin(writer, [this] { return next_batch(nullptr) >= 0; }); }

    std::atomic<int64_t> connections{0};          // workers, as the server counts them
    std::atomic<int64_t> gauges[1] = {};          // indexed by echo_gauge
    std::atomic<uint64_t> queue_depth_max{0};
    Histogram copy, ingest_round, queue_dwell;

private:
    struct Layout {
        uint64_t bytes;   // of one sample
        uint64_t offset;  // of the leaf's array inside a batch buffer
    };

    // progress: state in the upper half, committed slots in the lower.
    enum State : uint64_t { kFree = 0, kOpening = 1ull << 32, kOpen = 2ull << 32, kLeased = 3ull << 32 };
    struct alignas(64) Buffer {
        std::atomic<uint64_t> progress{kFree};
        std::atomic<uint64_t> order{0};     // of opening; written before the buffer is published in open_
        std::atomic<int64_t> ready_at{0};   // now_ns when complete, 0 until then
        std::atomic<bool> overtaken{false}; // later batches have left before this one: nobody waits for it any more
    };

    // open_: epoch (28 bits) | buffer (12) | next free slot (24). next == batch size: a new buffer must be opened.
    static uint64_t pack(uint64_t epoch, uint64_t buffer, uint64_t next) { return epoch << 36 | buffer << 24 | next; }
    static uint32_t next_of(uint64_t open) { return uint32_t(open & 0xffffff); }
    static uint32_t buffer_of(uint64_t open) { return uint32_t(open >> 24 & 0xfff); }
    static uint64_t epoch_of(uint64_t open) { return open >> 36; }

    static uint64_t plan(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, std::vector<Layout> *layout);
    bool open_next(uint64_t full);
    bool pop_returned(echo_run *out);
    bool can_claim() const;
    // The batch that leaves next, or -1: the earliest complete one, unless an earlier one is still worth waiting for.
    int next_batch(uint64_t *order) const;
    bool any_complete() const;
    void space_appeared();

    const uint64_t batch_, buffer_count_;
    std::vector<Layout> layout_;
    uint64_t stride_ = 0, sample_bytes_ = 0, mapped_ = 0;
    char *storage_ = nullptr;
    std::unique_ptr<Buffer[]> buffer_;
    std::unique_ptr<std::atomic<uint32_t>[]> returned_next_;  // per slot: the one below it on the stack of returned slots

    alignas(64) std::atomic<uint64_t> open_;
    // Read by every claim, written rarely: apart from open_, so that claims do not drag it from core to core.
    alignas(64) std::atomic<uint64_t> returned_{0};  // tag (32 bits, against ABA) | slot id + 1; 0 in the lower half: empty
    std::atomic<bool> closed_{false};
    alignas(64) std::atomic<uint64_t> next_order_{1};
    std::atomic<uint64_t> taken_{0}, leased_{0}, aborted_{0}, push_blocked_{0}, notified_{0};
    mutable std::atomic<uint64_t> inserted_{0};  // the most that counters() has reported; so that totals never run backwards
    std::atomic<uint32_t> references_{1};
    EventCount ready_, space_;
    std::atomic<uint32_t> armed_count_{0};
    std::mutex armed_lock_;  // held while an eventfd is written: a disarmed descriptor can be closed without being written after
    std::vector<int> armed_;
};

inline uint64_t Ring::plan(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, std::vector<Layout> *layout) {
    // Every leaf starts on a cache line of its own. Arrays that all began at the same offset of a 4 KiB page would compete for the
    // same cache sets and store-forwarding slots (1.5 to 2.3 times slower with 42 leaves), so that each is staggered by three lines.
    uint64_t end = 0, index = 0;
    for (uint64_t bytes : leaf_bytes) {
        const uint64_t wish = index++ * 192 % 4096;
        uint64_t offset = (end + 63) & ~uint64_t(63);
        if (bytes * batch_size >= 4096) offset += (wish + 4096 - offset % 4096) % 4096;
        uint64_t size;
        if (__builtin_mul_overflow(bytes, batch_size, &size) || __builtin_add_overflow(offset, size, &end) || end > UINT64_MAX / 2)
            return UINT64_MAX;
        if (layout) layout->push_back({bytes, offset});
    }
    return (end + 64 + 4095) & ~uint64_t(4095);  // never empty: leaves of size zero still have an address
}

inline uint64_t Ring::storage_bytes(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, uint64_t buffers) {
    const uint64_t stride = plan(leaf_bytes, batch_size, nullptr);
    uint64_t total;
    return stride == UINT64_MAX || __builtin_mul_overflow(stride, buffers, &total) ? UINT64_MAX : total;
}

inline Ring::Ring(const std::vector<uint64_t> &leaf_bytes, uint64_t batch_size, uint64_t buffers)
    : batch_(batch_size), buffer_count_(buffers), open_(pack(0, 0, batch_size)) {
    if (batch_size < 1 || batch_size > kMaxBatch || buffers < 1 || buffers > kMaxBuffers || batch_size * buffers >= UINT32_MAX)
        throw std::invalid_argument("batch_size or num_buffers out of range");
    stride_ = plan(leaf_bytes, batch_size, &layout_);
    for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
    mapped_ = storage_bytes(leaf_bytes, batch_size, buffers);
    if (mapped_ == UINT64_MAX) throw std::bad_alloc();
    buffer_ = std::make_unique<Buffer[]>(buffers);
    returned_next_ = std::make_unique<std::atomic<uint32_t>[]>(batch_size * buffers);
    void *memory = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    storage_ = static_cast<char *>(memory);
    madvise(storage_, mapped_, MADV_HUGEPAGE);
    // Pre-fault: the first lap through untouched pages would run at a fraction of the speed. Old kernels do not know the advice.
    if (madvise(storage_, mapped_, 23 /* MADV_POPULATE_WRITE */) != 0)
        for (uint64_t i = 0; i < mapped_; i += 4096) static_cast<volatile char *>(storage_)[i] = 0;
}

inline Ring::~Ring() { munmap(storage_, mapped_); }

inline int Ring::claim(uint32_t wanted, echo_run *out) {
    if (closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (uint32_t(returned_.load(std::memory_order_relaxed)) != 0 && pop_returned(out)) return ECHO_OK;
    uint64_t open = open_.load(std::memory_order_acquire);  // SYNC open
    for (;;) {
        const uint32_t next = next_of(open);
        if (next < batch_) {
            const uint32_t count = wanted < batch_ - next ? wanted : uint32_t(batch_ - next);
            // acquire: the buffer named by open_ must be seen as its opener left it, and its last readers be done (SYNC free).
            if (open_.compare_exchange_weak(open, open + count, std::memory_order_acq_rel, std::memory_order_acquire)) {
                *out = {buffer_of(open), next, count, 0};
                return ECHO_OK;
            }
        } else {
            if (!open_next(open)) {
                const uint64_t now = open_.load(std::memory_order_acquire);
                if (now == open) {
                    if (closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
                    push_blocked_.fetch_add(1, std::memory_order_relaxed);
                    return ECHO_FULL;
                }
                open = now;
                continue;
            }
            open = open_.load(std::memory_order_acquire);
        }
    }
}

// `full` is the value of open_ whose buffer has no slot left. False when no buffer was free; any writer may do this, so that one
// killed on the way leaves nothing undone.
inline bool Ring::open_next(uint64_t full) {
    const uint64_t start = buffer_of(full) + 1;
    for (uint64_t i = 0; i < buffer_count_; ++i) {
        const uint64_t b = start + i < buffer_count_ ? start + i : start + i - buffer_count_;
        if (b >= buffer_count_) continue;
        Buffer &buffer = buffer_[b];
        uint64_t expected = kFree;
        if (buffer.progress.load(std::memory_order_relaxed) != kFree ||
            !buffer.progress.compare_exchange_strong(expected, kOpening, std::memory_order_acquire, std::memory_order_relaxed))  // SYNC free
            continue;
        buffer.order.store(next_order_.fetch_add(1, std::memory_order_relaxed), std::memory_order_relaxed);
        buffer.ready_at.store(0, std::memory_order_relaxed);
        buffer.overtaken.store(false, std::memory_order_relaxed);
        buffer.progress.store(kOpen, std::memory_order_relaxed);
        uint64_t seen = full;
        // release: whoever claims in this buffer sees its order and its progress at zero, not what they were a lap ago. seq_cst: SYNC wakeup.
        const bool mine = open_.compare_exchange_strong(seen, pack((epoch_of(full) + 1) & 0xfffffff, b, 0), std::memory_order_seq_cst);  // SYNC open
        if (!mine) buffer.progress.store(kFree, std::memory_order_seq_cst);  // another writer was quicker
        // Writers that looked while this buffer was neither free nor open found no space and went to sleep.
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
        if (ready_.notify(1)) notified_.fetch_add(1, std::memory_order_relaxed);
    }
}

inline void Ring::abort(const echo_run &run) {
    for (uint32_t i = 0; i < run.count; ++i) {
        const uint32_t id = run.buffer * uint32_t(batch_) + run.slot + i;
        uint64_t head = returned_.load(std::memory_order_relaxed), fresh;
        do {
            returned_next_[id].store(uint32_t(head), std::memory_order_relaxed);
            fresh = ((head >> 32) + 1) << 32 | (id + 1);
            // release: what was written into the slot comes before the next writer's claim of it. seq_cst: SYNC wakeup.
        } while (!returned_.compare_exchange_weak(head, fresh, std::memory_order_seq_cst, std::memory_order_relaxed));  // SYNC returned
    }
    aborted_.fetch_add(run.count, std::memory_order_relaxed);
    space_appeared();
}

inline bool Ring::pop_returned(echo_run *out) {
    uint64_t head = returned_.load(std::memory_order_acquire);  // SYNC returned
    while (uint32_t(head) != 0) {
        const uint32_t id = uint32_t(head) - 1;
        // The link may belong to a later life of this slot; the tag in `head` then makes the exchange fail.
        const uint64_t fresh = ((head >> 32) + 1) << 32 | returned_next_[id].load(std::memory_order_relaxed);
        if (returned_.compare_exchange_weak(head, fresh, std::memory_order_acq_rel, std::memory_order_acquire)) {
            *out = {uint32_t(id / batch_), uint32_t(id % batch_), 1, 0};
            return true;
        }
    }
    return false;
}

inline bool Ring::can_claim() const {
    if (closed() || uint32_t(returned_.load(std::memory_order_seq_cst)) != 0) return true;
    if (next_of(open_.load(std::memory_order_seq_cst)) < batch_) return true;
    for (uint64_t b = 0; b < buffer_count_; ++b)
        if (buffer_[b].progress.load(std::memory_order_seq_cst) == kFree) return true;
    return false;
}

inline int Ring::wait_space(int64_t timeout_ns) {
    const bool space = space_.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

inline int Ring::arm_space(int eventfd) {
    {
        std::lock_guard<std::mutex> lock(armed_lock_);
        armed_.push_back(eventfd);
        armed_count_.store(uint32_t(armed_.size()), std::memory_order_seq_cst);  // SYNC wakeup
    }
    if (!can_claim()) return ECHO_OK;
    disarm_space(eventfd);
    return ECHO_READY;
}

inline void Ring::disarm_space(int eventfd) {
    std::lock_guard<std::mutex> lock(armed_lock_);
    for (size_t i = armed_.size(); i-- > 0;)
        if (armed_[i] == eventfd) armed_.erase(armed_.begin() + long(i));
    armed_count_.store(uint32_t(armed_.size()), std::memory_order_seq_cst);
}

inline void Ring::space_appeared() {
    space_.notify(INT_MAX);
    if (armed_count_.load(std::memory_order_seq_cst) == 0) return;  // SYNC wakeup
    std::lock_guard<std::mutex> lock(armed_lock_);
    for (int fd : armed_) {
        const uint64_t one = 1;
        [[maybe_unused]] const auto written = write(fd, &one, sizeof one);
    }
    armed_.clear();
    armed_count_.store(0, std::memory_order_seq_cst);
}

inline int Ring::next_batch(uint64_t *order_of) const {
    int best = -1;
    uint64_t best_order = UINT64_MAX, oldest_awaited = UINT64_MAX;
    for (uint64_t b = 0; b < buffer_count_; ++b) {
        const Buffer &buffer = buffer_[b];
        const uint64_t progress = buffer.progress.load(std::memory_order_seq_cst);  // SYNC batch
        if ((progress & ~uint64_t(UINT32_MAX)) != kOpen) continue;
        const uint64_t order = buffer.order.load(std::memory_order_relaxed);
        if (progress == (kOpen | batch_)) {
            if (order < best_order) best_order = order, best = int(b);
        } else if (order < oldest_awaited && !buffer.overtaken.load(std::memory_order_relaxed)) {
            oldest_awaited = order;
        }
    }
    if (order_of) *order_of = best_order;
    if (best < 0 || oldest_awaited > best_order || closed()) return best;
    // An earlier batch misses a sample that somebody is about to commit.
    const int64_t ready = buffer_[best].ready_at.load(std::memory_order_relaxed), now = now_ns();
    return ready > 0 && now - ready >= kPatienceNs ? best : -1;
}

inline int Ring::take() {
    uint64_t order, confirmed = UINT64_MAX;
    for (;;) {
        const int b = next_batch(&order);
        if (b < 0) return -1;
        // One look is no snapshot: a buffer looked at first may be opened and completed, and after it the one found, before the look
        // reaches that. What was complete before the one found is seen by a look that begins now; without it, batches of a single
        // writer would leave out of order now and then.
        if (order != confirmed) {
            confirmed = order;
            continue;
        }
        uint64_t expected = kOpen | batch_;
        // acquire: every committed sample's bytes are seen (the adds of all writers form one release sequence).
        if (!buffer_[b].progress.compare_exchange_strong(expected, kLeased, std::memory_order_acquire, std::memory_order_relaxed))  // SYNC batch
            continue;  // another learner was quicker
        taken_.fetch_add(1, std::memory_order_release);  // SYNC totals
        for (uint64_t i = 0; i < buffer_count_; ++i)
            if (buffer_[i].order.load(std::memory_order_relaxed) < order) buffer_[i].overtaken.store(true, std::memory_order_relaxed);
        leased_.fetch_add(1, std::memory_order_relaxed);
        const int64_t ready = buffer_[b].ready_at.load(std::memory_order_relaxed), now = now_ns();
        queue_dwell.record(ready > 0 && now > ready ? uint64_t(now - ready) : 0);
        return b;
    }
}

inline void Ring::give_back(int buffer) {
    leased_.fetch_sub(1, std::memory_order_relaxed);
    // release: the learner's last reads of the batch come before the first write of the next samples. seq_cst: SYNC wakeup.
    buffer_[buffer].progress.store(kFree, std::memory_order_seq_cst);  // SYNC free
    space_appeared();
}

inline bool Ring::any_complete() const {
    for (uint64_t b = 0; b < buffer_count_; ++b)
        if (buffer_[b].progress.load(std::memory_order_seq_cst) == (kOpen | batch_)) return true;
    return false;
}

inline bool Ring::wait_ready(int64_t timeout_ns) {
    const int64_t deadline = timeout_ns < 0 ? INT64_MAX : now_ns() + timeout_ns;
    for (;;) {
        if (closed() || next_batch(nullptr) >= 0) return true;
        // A complete batch that is held back for an earlier one sends no second notice when patience ends: look again by then.
        const bool held_back = any_complete();
        const int64_t look = now_ns() + kPatienceNs, until = held_back && look < deadline ? look : deadline;
        const bool woken = ready_.wait(
            [&] { return closed() || (held_back ? next_batch(nullptr) >= 0 : any_complete()); }, until == INT64_MAX ? -1 : until);
        if (!woken && (until == deadline || now_ns() < until)) return closed() || next_batch(nullptr) >= 0;  // too late, or a signal came
    }
}

inline void Ring::close() {
    closed_.store(true, std::memory_order_seq_cst);
    ready_.notify(INT_MAX);
    space_appeared();
}

inline Ring::Counters Ring::counters() const {
    const auto relaxed = std::memory_order_relaxed;
    // acquire, and before the look at the buffers: a batch that counts as taken is not seen as still open, and so counted twice.
    const uint64_t taken = taken_.load(std::memory_order_acquire);  // SYNC totals
    uint64_t stored = 0;
    for (uint64_t b = 0; b < buffer_count_; ++b) {
        const uint64_t progress = buffer_[b].progress.load(relaxed);
        if ((progress & ~uint64_t(UINT32_MAX)) == kOpen) stored += uint32_t(progress);
    }
    // A batch being taken at this moment may be missing from both.
    uint64_t inserted = taken * batch_ + stored, seen = inserted_.load(relaxed);
    while (inserted > seen && !inserted_.compare_exchange_weak(seen, inserted, relaxed)) {}
    if (inserted < seen) inserted = seen;
    return {inserted, stored, taken, push_blocked_.load(relaxed), notified_.load(relaxed), aborted_.load(relaxed), leased_.load(relaxed),
            uint64_t(connections.load(relaxed)), uint64_t(gauges[ECHO_GAUGE_QUEUED].load(relaxed)), queue_depth_max.load(relaxed)};
}

}  // namespace echo
