// A replay table: rows that stay, and come out as often as they are drawn.
//
// * Writers claim rows, fill them in place and commit them, through the same door as the ring of a stream (echo_capi.h).
// * Every row has a generation: odd while nobody may read it, one more at each change. A row's key is its generation and its number, so that
//   keys are never used again and finding a row by its key is one look.
// * A learner draws rows under the mutex, gathers them without it, and looks at the generations again: a row that was overwritten on the way
//   is drawn anew. So no batch ever has a torn row, and no writer waits for a gather.
// * Which rows exist, the sampler, the remover and the limiter are guarded by one mutex, held for a run of rows or a batch at a time.
//
// The sampler is native (echo_sampler.h), or Python's. A Python one is told what happened only when its thread comes to draw: the table keeps
// a log for it. Writers then never need the GIL.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <vector>

#include "../bells.hpp"
#include "../eventcount.hpp"
#include "../histogram.hpp"
#include "../include/echo_capi.h"
#include "../include/echo_sampler.h"
#include "arrivals.hpp"
#include "batches.hpp"
#include "follower.hpp"
#include "limiter.hpp"
#include "rows.hpp"

// The test-suite builds once without the second look at the generations, to prove that its stress program would see torn rows.
#ifndef ECHO_VERIFY_GENERATIONS
#define ECHO_VERIFY_GENERATIONS 1
#endif

namespace echo::replay {

enum Answer { kDrawn = 0, kWait = 1, kClosed = 2, kNothing = 3 };  // kNothing: the sampler has nothing that it could draw

struct Change {  // an entry of the log for a Python sampler
    uint32_t row;
    uint32_t inserted;  // 1, or 0: removed
    double priority;    // NaN: the sampler chooses
};

struct Counters {
    uint64_t size, used, inserts, samples, pending, deleted, evicted, push_blocked, aborted, leased, redrawn, updated, gone, drawn_batches;
    uint64_t connections, queued, queue_depth_max, overhead_bytes;
};

class Table {
public:
    static constexpr uint64_t kMaxCapacity = (1u << 31) - 1;

    // sampler: NULL for one of Python's. remover: NULL evicts the oldest, the sampler itself evicts its victims(). They, and `random`, must outlive the table. fd: see Rows.
    // more: bytes of further leaves of an item in a batch, which a follower fills.
    Table(const std::vector<uint64_t> &leaf_bytes, uint64_t capacity, uint64_t batch_size, const Limits &limits, uint32_t max_times_sampled,
          const echo_sampler *sampler, bool replacement, const echo_sampler *remover, bitgen_t *random, int fd,
          const std::vector<uint64_t> &more = {})
        : capacity_(uint32_t(capacity)), batch_size_(batch_size), max_times_(max_times_sampled), replacement_(replacement), sampler_(sampler),
          remover_(remover == sampler ? nullptr : remover), victims_(remover && remover == sampler), random_(random), rows_(leaf_bytes, capacity, fd), batches_(joined(leaf_bytes, more)), arrivals_(uint32_t(capacity)),
          limiter_(limits), row_bits_(capacity <= kWide ? 16 : 32) {
        for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
        generation_ = std::make_unique<std::atomic<uint32_t>[]>(capacity);
        for (uint64_t row = 0; row < capacity; ++row) generation_[row].store(1, std::memory_order_relaxed);
        if (capacity <= kWide) high_ = std::make_unique<uint32_t[]>(capacity);
        if (rows_.packed()) {
            desks_ = std::make_unique<Desk[]>(kDesks);
            uint64_t end = 0;
            for (uint64_t bytes : leaf_bytes) desk_offset_.push_back(end), end += (bytes * kDeskRows + 63) & ~uint64_t(63);
            desk_bytes_ = end;
            for (uint32_t i = kDesks; i-- > 0;) free_desks_.push_back(i);
        }
        if (max_times_) times_ = std::make_unique<uint32_t[]>(capacity);
        if (!sampler_) known_ = std::make_unique<uint32_t[]>(capacity);
    }
    Table(const Table &) = delete;
    Table &operator=(const Table &) = delete;

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- writers: as Ring's --------------------------------------------------------------------------------------------------
    int claim(uint32_t wanted, echo_run *out) {
        std::lock_guard<std::mutex> lock(mutex_);
        return claim_locked(wanted, out);
    }
    char *leaf(const echo_run &run, uint32_t leaf) const { return desks_ ? desk(run, leaf) : rows_.at(leaf, run.slot); }
    void commit(const echo_run &run) { commit(run, nullptr, nullptr); }
    // priorities: one for each row, or NULL; keys: room for one for each row, or NULL.
    void commit(const echo_run &run, const double *priorities, uint64_t *keys);
    void abort(const echo_run &run);
    int wait_space(int64_t timeout_ns);
    int arm_space(int eventfd);
    void disarm_space(int eventfd);

    // ---- learners ------------------------------------------------------------------------------------------------------------
    // Draw n rows into `batch`; then gather() them. kWait: the limiter says not yet.
    Answer draw(Batch *batch);
    // The same for rows that a Python sampler drew (batch->rows and ->probabilities are filled in).
    // `counted`: the limiter was asked for this batch already.
    Answer admit(Batch *batch, uint32_t first, uint32_t n, bool counted);
    // Copy the drawn rows into the batch; how many of them were overwritten meanwhile. Without the GIL.
    uint32_t gather(Batch *batch);
    bool overwritten(const Batch *batch, uint32_t i) const { return !whole(batch, i); }
    // draw() and gather() until every row is whole. Native samplers only.
    Answer sample(Batch *batch);
    // Ends items that were drawn for the last time; after the last gather() of a batch.
    void finish(Batch *batch);
    bool wait_ready(uint32_t n, int64_t timeout_ns);
    void weigh(Batch *batch, double beta) const;
    Batch *take_batch(uint64_t n) { return batches_.take(n); }
    void give_back(Batch *batch) { batches_.give_back(batch); }
    bool can_sample(uint32_t n) {
        std::lock_guard<std::mutex> lock(mutex_);
        return can_sample_locked(n);
    }

    // ---- by key --------------------------------------------------------------------------------------------------------------
    uint32_t row_of(uint64_t key) const { return uint32_t(key & ((uint64_t(1) << row_bits_) - 1)); }
    uint64_t update(const uint64_t *keys, const double *priorities, size_t n);  // returns how many were gone
    uint64_t erase(const uint64_t *keys, size_t n);                             // returns how many were there
    // Fills batch->rows and ->generations from keys; here[i] is 0 where the item is gone. Then gather_known().
    void find(const uint64_t *keys, size_t n, Batch *batch, uint8_t *here);
    void gather_known(Batch *batch, uint8_t *here);
    // Overwrites some leaves of items, which keep their keys: from[leaf] is NULL or has n rows. here[i] is 0 where the item is gone.
    void overwrite(const uint64_t *keys, size_t n, const char *const *from, uint8_t *here);
    // Keys and priorities of every item, oldest first; priorities may be NULL (and are ignored for Python's samplers).
    size_t items(uint64_t *keys, double *priorities, uint32_t *rows, size_t most);

    // ---- for a Python sampler: what happened since the last call, in order -------------------------------------------------------
    void take_log(std::vector<Change> *log);
    // keys -> rows of those still there whose insertion the sampler was told of.
    size_t known_rows(const uint64_t *keys, size_t n, uint32_t *rows, uint32_t *index);

    void close() {
        closed_.store(true, std::memory_order_seq_cst);
        { std::lock_guard<std::mutex> lock(mutex_); }
        ready_.notify(INT_MAX);
        space_.notify(INT_MAX);
        bells_.ring();
    }
    // Closed, and from now on the sampler, the remover and the generator of random numbers may go.
    void detach() {
        close();
        std::lock_guard<std::mutex> lock(mutex_);
        detached_ = true;
    }
    bool closed() const { return closed_.load(std::memory_order_seq_cst); }

    // ---- figures -------------------------------------------------------------------------------------------------------------
    Counters counters();
    const Limits &limits() const { return limiter_.limits(); }
    uint64_t capacity() const { return capacity_; }
    uint64_t batch_size() const { return batch_size_; }
    uint32_t leaf_count() const { return rows_.leaves(); }
    uint64_t leaf_bytes(uint32_t leaf) const { return rows_.leaf_bytes(leaf); }
    uint64_t sample_bytes() const { return sample_bytes_; }
    bool replacement() const { return replacement_; }
    // Which of the two conditions of can_insert keeps writers out; for messages.
    bool limited(bool inserting, uint32_t n) {
        std::lock_guard<std::mutex> lock(mutex_);
        return inserting ? limiter_.room(1, size_) == 0 : !limiter_.can_sample(n, size_);
    }

    // ---- checkpoints ---------------------------------------------------------------------------------------------------------
    // Between the two nothing is inserted, drawn or removed, and the sampler is the caller's. Writers find the table full meanwhile, commits
    // are kept for resume(), and update() and its like wait, so that they must be called without the GIL.
    void pause();
    void resume();
    // While held, writers find the table full: for a Python sampler's batch whose rows were overwritten again and again.
    void hold(bool on) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            held_ = on;
        }
        if (!on) after_space();
    }
    const Rows &rows() const { return rows_; }
    // The items' bytes are in their rows already; the sampler and the remover are restored apart. order: rows, oldest item first.
    void restore(const uint32_t *order, uint32_t n, const uint32_t *generations, const uint32_t *high, const uint32_t *times,
                 uint64_t inserts, uint64_t samples);
    void columns(uint32_t *generations, uint32_t *high, uint32_t *times) const {
        for (uint32_t row = 0; row < capacity_; ++row) {
            generations[row] = generation_[row].load(std::memory_order_relaxed);
            high[row] = high_ ? high_[row] : 0;
            times[row] = times_ ? times_[row] : 0;
        }
    }

    std::atomic<int64_t> connections{0};
    std::atomic<int64_t> gauges[1] = {};
    std::atomic<uint64_t> queue_depth_max{0};
    Histogram copy, ingest_round, queue_dwell;

    // Before the first insert; it must outlive the last batch that is drawn.
    void follow(Follower *follower) { follower_ = follower; }

private:
    friend class Steps;  // the table of steps under this table of items: one lock of its own, then this one's
    static constexpr uint64_t kWide = 1u << 16;  // up to here generations have 32 bits more, so that tiny tables do not run out of keys
    static constexpr int kPolite = 8;            // gathers that may find overwritten rows before writers are made to wait for one

    // Where rows are records, writers fill arrays of their own, one for each leaf as the door promises, and commit() puts the rows together.
    struct Desk {
        std::unique_ptr<char[]> memory;
        uint32_t first = 0, left = 0;  // the row it begins with; rows not committed or aborted yet
    };
    static constexpr uint32_t kDesks = 1024;
    static constexpr uint32_t kDeskRows = 1024;
    char *desk(const echo_run &run, uint32_t leaf) const {
        const Desk &d = desks_[run.buffer];
        return d.memory.get() + desk_offset_[leaf] + (run.slot - d.first) * rows_.leaf_bytes(leaf);
    }
    void leave_desk(const echo_run &run) {
        if (desks_ && (desks_[run.buffer].left -= run.count) == 0) free_desks_.push_back(run.buffer);
    }

    bool live(uint32_t row) const { return (generation_[row].load(std::memory_order_relaxed) & 1) == 0; }
    bool leaving(uint32_t row) const { return max_times_ && times_[row] >= max_times_; }
    uint64_t key_of(uint32_t row) const {
        const uint64_t generation = generation_[row].load(std::memory_order_relaxed) >> 1;
        return ((high_ ? uint64_t(high_[row]) << 31 : 0) | generation) << row_bits_ | row;
    }
    bool holds(uint64_t key, uint32_t *row) const {
        *row = row_of(key);
        return *row < capacity_ && live(*row) && !leaving(*row) && key_of(*row) == key;
    }
    void advance(uint32_t row, std::memory_order order) {
        uint32_t next = generation_[row].load(std::memory_order_relaxed) + 1;
        if (next < floor_) next = floor_ | (next & 1);
        if (next == 0 && high_) ++high_[row];
        generation_[row].store(next, order);
    }
    bool can_sample_locked(uint32_t n) const {
        if (paused_ || !limiter_.can_sample(n, size_) || size_ == 0) return false;
        if (!replacement_ && size_ < n) return false;
        return !max_times_ || uses_left_ >= n;
    }
    int claim_locked(uint32_t wanted, echo_run *out);
    void commit_locked(const echo_run &run, const double *priorities);
    uint64_t next_key_of(uint32_t row) {  // once it is committed
        advance(row, std::memory_order_relaxed);
        const uint64_t key = key_of(row);
        generation_[row].fetch_sub(1, std::memory_order_relaxed);
        return key;
    }
    bool victim(uint32_t *row);
    void evict(const uint32_t *rows, uint32_t n);
    // Takes rows out of sampler, remover and count; their generations and places stay.
    void forget(const uint32_t *rows, size_t n);
    bool can_claim();
    uint64_t update_some(const uint64_t *keys, const double *priorities, size_t n);
    void note(uint32_t row, bool inserted, double priority);
    void compact_log();
    Answer draw_locked(Batch *batch, uint32_t first, uint32_t n);
    bool use(Batch *batch, uint32_t row);
    void label(Batch *batch, uint32_t i) {
        if (follower_) follower_->choose(batch, i, random_);
        batch->keys[i] = key_of(batch->rows[i]);
        batch->generations[i] = generation_[batch->rows[i]].load(std::memory_order_relaxed);
    }
    void copy_rows(Batch *batch) const {
        rows_.gather(batch->rows, batch->n, batch->leaf.data());
        if (follower_) follower_->gather(batch);
    }
    static std::vector<uint64_t> joined(std::vector<uint64_t> bytes, const std::vector<uint64_t> &more) {
        bytes.insert(bytes.end(), more.begin(), more.end());
        return bytes;
    }
    // copy_rows(), and again if items were changed in place meanwhile: those keep their generations.
    void copy_steady(Batch *batch);
    bool whole(const Batch *batch, uint32_t i) const {
        return !ECHO_VERIFY_GENERATIONS || (generation_[batch->rows[i]].load(std::memory_order_relaxed) == batch->generations[i] &&
                                            (!follower_ || follower_->whole(batch, i)));
    }
    void after_insert();
    void after_space();

    const uint32_t capacity_;
    const uint64_t batch_size_;
    const uint32_t max_times_;
    const bool replacement_;
    const echo_sampler *const sampler_, *const remover_;
    const bool victims_;  // the sampler says what goes
    bitgen_t *const random_;
    Follower *follower_ = nullptr;
    Rows rows_;
    Batches batches_;
    std::unique_ptr<std::atomic<uint32_t>[]> generation_;
    std::unique_ptr<Desk[]> desks_;
    std::vector<uint64_t> desk_offset_;
    std::vector<uint32_t> free_desks_;   // under the mutex
    std::atomic<uint64_t> rewrites_{0};  // odd while an item is changed in place
    uint64_t sample_bytes_ = 0, desk_bytes_ = 0;
    std::atomic<bool> closed_{false};
    std::atomic<uint32_t> references_{1};

    alignas(64) std::mutex mutex_;  // of all below
    Arrivals arrivals_;
    Limiter limiter_;
    const uint32_t row_bits_;
    uint32_t floor_ = 0;  // even; generations below it may have been given out before a restart
    std::unique_ptr<uint32_t[]> high_, times_, known_;
    int64_t size_ = 0;
    uint64_t uses_left_ = 0, deleted_ = 0, evicted_ = 0, push_blocked_ = 0, aborted_ = 0, redrawn_ = 0, updated_ = 0, gone_ = 0, batches_drawn_ = 0;
    std::vector<uint32_t> scratch_;
    std::vector<double> scratch_priorities_;
    std::vector<Change> log_;
    bool paused_ = false, held_ = false, detached_ = false;
    struct Deferred {
        echo_run run;
        std::vector<double> priorities;
    };
    std::vector<Deferred> deferred_;  // committed while paused
    std::condition_variable resumed_;
    std::vector<uint32_t> waiting_;  // how many rows each sleeping learner wants

    EventCount ready_, space_;
    Bells bells_;  // of those who wait for space in epoll
};

// ---- writers -----------------------------------------------------------------------------------------------------------------

inline bool Table::victim(uint32_t *row) {
    if (victims_) {
        if (sampler_->victims(sampler_->state, 1, row) == 0) return false;
    } else if (!remover_) {
        *row = arrivals_.oldest();
    } else {
        double probability;
        if (remover_->sample(remover_->state, random_, 1, row, &probability) == 0) return false;
    }
    // The oldest may be just being written, or being gathered for the last time.
    return live(*row) && !leaving(*row);
}

inline void Table::evict(const uint32_t *rows, uint32_t n) {
    forget(rows, n);
    evicted_ += n;
    for (uint32_t i = 0; i < n; ++i) advance(rows[i], std::memory_order_relaxed);
}

inline int Table::claim_locked(uint32_t wanted, echo_run *out) {
    if (closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (paused_ || (held_ && !follower_)) return ++push_blocked_, ECHO_FULL;
    const uint32_t most = std::min<uint32_t>(wanted, desks_ ? std::min<uint32_t>(capacity_, kDeskRows) : capacity_);
    if (desks_ && free_desks_.empty()) return ++push_blocked_, ECHO_FULL;
    const uint32_t allowed = follower_ ? most : uint32_t(limiter_.room(most, size_));  // steps were let in already: see steps.hpp
    uint32_t first = 0, n = allowed ? arrivals_.take(allowed, &first) : 0;
    if (n == 0 && allowed) {
        uint32_t row;
        if (!remover_ && !victims_) {
            // The oldest, as far as they lie side by side: the sampler is told of them all at once.
            while (n < allowed && victim(&row) && (n == 0 || row == first + n)) {
                if (n == 0) first = row;
                if (scratch_.size() <= n) scratch_.resize(2 * n + 64);
                scratch_[n++] = row;
                arrivals_.renew(row);
            }
            if (n) evict(scratch_.data(), n);
        } else if (victim(&row)) {
            evict(&row, 1);
            arrivals_.renew(row);
            first = row, n = 1;
        }
        // Rows are marked as not to be read before they are written: what a reader copies after the first write, it then throws away.
        std::atomic_thread_fence(std::memory_order_release);  // SYNC generation
    }
    if (n == 0) {
        ++push_blocked_;
        return ECHO_FULL;
    }
    limiter_.pending += n;
    *out = {0, first, n, 0};
    if (desks_) {
        out->buffer = free_desks_.back();
        Desk &d = desks_[out->buffer];
        if (!d.memory) d.memory.reset(new char[desk_bytes_]);
        free_desks_.pop_back();
        d.first = first, d.left = n;
    }
    return ECHO_OK;
}

inline void Table::commit(const echo_run &run, const double *priorities, uint64_t *keys) {
    if (desks_) {
        const char *from[kRecordLeaves];
        for (uint32_t leaf = 0; leaf < rows_.leaves(); ++leaf) from[leaf] = desk(run, leaf);
        rows_.scatter(run.slot, run.count, from);
    }
    {
        std::lock_guard<std::mutex> lock(mutex_);
        leave_desk(run);
        if (detached_) return;
        if (paused_) deferred_.push_back({run, priorities ? std::vector<double>(priorities, priorities + run.count) : std::vector<double>()});
        else commit_locked(run, priorities);
        for (uint32_t i = 0; keys && i < run.count; ++i) keys[i] = paused_ ? next_key_of(run.slot + i) : key_of(run.slot + i);
    }
    after_insert();
}

inline void Table::commit_locked(const echo_run &run, const double *priorities) {
    if (scratch_.size() < run.count) scratch_.resize(run.count);
    for (uint32_t i = 0; i < run.count; ++i) {
        scratch_[i] = run.slot + i;
        advance(run.slot + i, std::memory_order_release);  // SYNC row: the bytes come before the generation that shows them
    }
    if (max_times_) {
        for (uint32_t i = 0; i < run.count; ++i) times_[run.slot + i] = 0;
        uses_left_ += uint64_t(max_times_) * run.count;
    }
    if (sampler_) {
        sampler_->insert(sampler_->state, scratch_.data(), priorities, run.count);
    } else {
        for (uint32_t i = 0; i < run.count; ++i)
            note(run.slot + i, true, priorities ? priorities[i] : std::numeric_limits<double>::quiet_NaN());
    }
    if (remover_) remover_->insert(remover_->state, scratch_.data(), priorities, run.count);
    size_ += run.count;
    limiter_.pending -= run.count;
    limiter_.inserts += run.count;
}

inline void Table::pause() {
    std::unique_lock<std::mutex> lock(mutex_);
    resumed_.wait(lock, [this] { return !paused_; });
    paused_ = true;
}

inline void Table::resume() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        paused_ = false;
        for (const Deferred &late : deferred_) commit_locked(late.run, late.priorities.empty() ? nullptr : late.priorities.data());
        deferred_.clear();
    }
    resumed_.notify_all();
    after_insert();
}

inline void Table::abort(const echo_run &run) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        leave_desk(run);
        for (uint32_t i = run.count; i-- > 0;) arrivals_.erase(run.slot + i);
        limiter_.pending -= run.count;
        aborted_ += run.count;
    }
    after_space();
}

inline void Table::forget(const uint32_t *rows, size_t n) {
    if (sampler_) sampler_->remove(sampler_->state, rows, n);
    else
        for (size_t i = 0; i < n; ++i) note(rows[i], false, 0);
    if (remover_) remover_->remove(remover_->state, rows, n);
    if (max_times_)
        for (size_t i = 0; i < n; ++i)
            if (times_[rows[i]] < max_times_) uses_left_ -= max_times_ - times_[rows[i]];
    size_ -= int64_t(n);
}

inline bool Table::can_claim() {
    if (closed()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (paused_ || held_ || limiter_.room(1, size_) == 0 || (desks_ && free_desks_.empty())) return false;
    if (arrivals_.used() < capacity_) return true;
    if (detached_) return true;
    if (victims_) return sampler_->count(sampler_->state) > 0;
    if (remover_) return remover_->count(remover_->state) > 0;
    const uint32_t oldest = arrivals_.oldest();
    return live(oldest) && !leaving(oldest);
}

inline int Table::wait_space(int64_t timeout_ns) {
    const bool space = space_.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

inline int Table::arm_space(int eventfd) {
    bells_.arm(eventfd);
    if (!can_claim()) return ECHO_OK;
    disarm_space(eventfd);
    return ECHO_READY;
}

inline void Table::disarm_space(int eventfd) { bells_.disarm(eventfd); }

// The change that made space was made under the mutex, under which sleepers look: they see it, or are seen here.
inline void Table::after_space() {
    if (space_.waiters() == 0 && !bells_.any()) return;
    if (!can_claim()) return;
    space_.notify(INT_MAX);
    bells_.ring();
}

inline void Table::after_insert() {
    if (ready_.waiters() != 0) {
        bool wake = false;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (uint32_t n : waiting_) wake = wake || can_sample_locked(n);
        }
        if (wake) ready_.notify(INT_MAX);
    }
    after_space();  // a writer may have found the oldest row being written
}

// ---- learners ----------------------------------------------------------------------------------------------------------------

// Counts one more use of a row against max_times_sampled. False when it has none left: an earlier turn of this batch took the last.
inline bool Table::use(Batch *batch, uint32_t row) {
    if (times_[row] >= max_times_) return false;
    --uses_left_;
    if (++times_[row] == max_times_) {
        forget(&row, 1);
        batch->ending.push_back(row);
    }
    return true;
}

inline Answer Table::draw_locked(Batch *batch, uint32_t first, uint32_t n) {
    uint32_t *const rows = batch->rows + first;
    double *const probabilities = batch->probabilities + first;
    uint32_t got = 0;
    while (got < n) {
        const size_t drawn = sampler_->sample(sampler_->state, random_, n - got, rows + got, probabilities + got);
        if (drawn == 0) return kNothing;
        if (!max_times_) return kDrawn;
        uint32_t kept = got;
        for (uint32_t i = got; i < got + drawn; ++i) {
            if (!use(batch, rows[i])) continue;  // drawn anew, now that the sampler no longer has it
            rows[kept] = rows[i], probabilities[kept] = probabilities[i];
            ++kept;
        }
        got = kept;
    }
    return kDrawn;
}

inline Answer Table::draw(Batch *batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return kClosed;
    if (!can_sample_locked(uint32_t(batch->n))) return kWait;
    limiter_.samples += int64_t(batch->n);
    ++batches_drawn_;
    const Answer answer = draw_locked(batch, 0, uint32_t(batch->n));
    if (answer != kDrawn) return answer;
    for (uint32_t i = 0; i < batch->n; ++i) __builtin_prefetch(&generation_[batch->rows[i]]);
    for (uint32_t i = 0; i < batch->n; ++i) label(batch, i);
    return kDrawn;
}

inline Answer Table::admit(Batch *batch, uint32_t first, uint32_t n, bool counted) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return kClosed;
    if (!counted) {
        if (!can_sample_locked(uint32_t(batch->n))) return kWait;
        limiter_.samples += int64_t(batch->n);
        ++batches_drawn_;
    }
    for (uint32_t i = first; i < first + n; ++i) {
        const uint32_t row = batch->rows[i];
        label(batch, i);
        // The sampler drew from what it was told of: another item in the row by now is not the one it drew. 1: drawn in vain.
        batch->generations[i] = known_[row];
        if (max_times_ && (!whole(batch, i) || !use(batch, row))) batch->generations[i] = 1;
    }
    return kDrawn;
}

inline void Table::copy_steady(Batch *batch) {
    for (int turn = 0; turn < kPolite; ++turn) {
        const uint64_t before = rewrites_.load(std::memory_order_acquire);  // SYNC rewrite
        copy_rows(batch);
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC generation, SYNC rewrite
        if ((before & 1) == 0 && rewrites_.load(std::memory_order_relaxed) == before) return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    copy_rows(batch);
}

inline uint32_t Table::gather(Batch *batch) {
    copy_steady(batch);
    uint32_t torn = 0;
    for (uint32_t i = 0; i < batch->n; ++i) torn += !whole(batch, i);
    if (torn) {
        std::lock_guard<std::mutex> lock(mutex_);
        redrawn_ += torn;
    }
    return torn;
}

inline Answer Table::sample(Batch *batch) {
    Answer answer = draw(batch);
    for (int turn = 0; answer == kDrawn && gather(batch) != 0; ++turn) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        // Samplers that give every item once per batch draw all of it again. Items in their last use cannot be overwritten, so that none
        // is lost by that.
        const bool all = !max_times_ && (!replacement_ || turn >= kPolite);
        if (all) answer = draw_locked(batch, 0, uint32_t(batch->n));
        for (uint32_t i = 0; answer == kDrawn && i < batch->n; ++i) {
            if (!all && whole(batch, i)) continue;
            if (!all) answer = draw_locked(batch, i, 1);
            label(batch, i);
        }
        if (turn < kPolite || answer != kDrawn) continue;
        copy_rows(batch);  // writers wait: none can claim, and what was drawn is committed
        break;
    }
    if (answer == kNothing) {
        // What was drawn is gone (deleted, or sampled as often as it may be) and nothing is left to draw instead: the batch was none.
        std::lock_guard<std::mutex> lock(mutex_);
        limiter_.samples -= int64_t(batch->n);
        --batches_drawn_;
        if (!can_sample_locked(uint32_t(batch->n))) answer = kWait;
    }
    finish(batch);
    return answer;
}

inline void Table::finish(Batch *batch) {
    if (!batch->ending.empty()) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        for (uint32_t row : batch->ending) {
            advance(row, std::memory_order_relaxed);
            arrivals_.erase(row);
        }
        deleted_ += batch->ending.size();
        batch->ending.clear();
    }
    after_space();
}

inline bool Table::wait_ready(uint32_t n, int64_t timeout_ns) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        waiting_.push_back(n);
    }
    const bool ready = ready_.wait([&] { return closed() || can_sample(n); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), n));
    return ready;
}

// (1 / (N p))^beta over the largest of the batch (Schaul et al. 2016, section 3.4).
inline void Table::weigh(Batch *batch, double beta) const {
    const uint64_t n = batch->n;
    double least = batch->probabilities[0], most = least;
    for (uint64_t i = 1; i < n; ++i) {
        least = std::min(least, batch->probabilities[i]);
        most = std::max(most, batch->probabilities[i]);
    }
    if (least == most || beta == 0) {
        std::fill_n(batch->weights, n, 1.0f);
    } else {
        // The largest weight is that of the least probability, and N cancels out.
        for (uint64_t i = 0; i < n; ++i) {
            const float ratio = float(least / batch->probabilities[i]);
            batch->weights[i] = beta == 1 ? ratio : powf(ratio, float(beta));
        }
    }
}

// ---- by key ------------------------------------------------------------------------------------------------------------------

inline uint64_t Table::update(const uint64_t *keys, const double *priorities, size_t n) {
    constexpr size_t kChunk = 4096;  // writers and learners get their turn in between
    uint64_t gone = 0;
    for (size_t first = 0; first < n; first += kChunk) gone += update_some(keys + first, priorities + first, std::min(kChunk, n - first));
    return gone;
}

inline uint64_t Table::update_some(const uint64_t *keys, const double *priorities, size_t n) {
    std::unique_lock<std::mutex> lock(mutex_);
    resumed_.wait(lock, [this] { return !paused_; });
    if (scratch_.size() < n) scratch_.resize(n);
    if (scratch_priorities_.size() < n) scratch_priorities_.resize(n);
    for (size_t i = 0; i < n; ++i)
        if (const uint32_t row = row_of(keys[i]); row < capacity_) __builtin_prefetch(&generation_[row]);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t row;
        if (!holds(keys[i], &row)) continue;
        scratch_[kept] = row;
        scratch_priorities_[kept++] = priorities[i];
    }
    if (kept) {
        if (sampler_) sampler_->update(sampler_->state, scratch_.data(), scratch_priorities_.data(), kept);
        if (remover_) remover_->update(remover_->state, scratch_.data(), scratch_priorities_.data(), kept);
    }
    updated_ += kept, gone_ += n - kept;
    return n - kept;
}

inline uint64_t Table::erase(const uint64_t *keys, size_t n) {
    uint64_t erased = 0;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        for (size_t i = 0; i < n; ++i) {
            uint32_t row;
            if (!holds(keys[i], &row)) continue;
            forget(&row, 1);
            advance(row, std::memory_order_relaxed);
            arrivals_.erase(row);
            ++erased;
        }
        deleted_ += erased;
    }
    after_space();
    return erased;
}

inline void Table::find(const uint64_t *keys, size_t n, Batch *batch, uint8_t *here) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < n; ++i) {
        uint32_t row;
        here[i] = holds(keys[i], &row);
        batch->rows[i] = here[i] ? row : 0;
        if (follower_ && here[i]) follower_->choose(batch, uint32_t(i), nullptr);
        batch->keys[i] = keys[i];
        batch->generations[i] = generation_[batch->rows[i]].load(std::memory_order_relaxed);
    }
}

inline void Table::gather_known(Batch *batch, uint8_t *here) {
    copy_steady(batch);
    for (uint32_t i = 0; i < batch->n; ++i) here[i] = here[i] && whole(batch, i);
}

inline void Table::overwrite(const uint64_t *keys, size_t n, const char *const *from, uint8_t *here) {
    for (size_t i = 0; i < n; ++i) {
        // One item at a time, so that writers wait for one item at most.
        std::lock_guard<std::mutex> lock(mutex_);
        uint32_t row;
        here[i] = holds(keys[i], &row);
        if (!here[i]) continue;
        rewrites_.fetch_add(1, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_release);  // SYNC rewrite
        for (uint32_t leaf = 0; leaf < rows_.leaves(); ++leaf)
            if (from[leaf]) copy_racing_out(rows_.at(leaf, row), from[leaf] + i * rows_.leaf_bytes(leaf), rows_.leaf_bytes(leaf));
        rewrites_.fetch_add(1, std::memory_order_release);  // SYNC rewrite
    }
}

inline size_t Table::items(uint64_t *keys, double *priorities, uint32_t *rows, size_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t n = 0;
    for (uint32_t row = arrivals_.oldest(); row != Arrivals::kNone && n < most; row = arrivals_.after(row)) {
        if (!live(row) || leaving(row)) continue;
        keys[n] = key_of(row);
        rows[n++] = row;
    }
    if (priorities && sampler_ && n) sampler_->priorities(sampler_->state, rows, priorities, n);
    return n;
}

// ---- the log -----------------------------------------------------------------------------------------------------------------

inline void Table::note(uint32_t row, bool inserted, double priority) {
    log_.push_back({row, inserted, priority});
    if (log_.size() > 4 * uint64_t(capacity_) + 4096) compact_log();
}

// What the sampler has to be told, at most two entries for each row: nobody may have drawn for long.
inline void Table::compact_log() {
    std::vector<uint32_t> last(capacity_, 0);  // its last entry's number + 1
    std::vector<Change> shorter;
    for (size_t i = 0; i < log_.size(); ++i) {
        if (last[log_[i].row] == 0 && !log_[i].inserted) shorter.push_back(log_[i]);  // the sampler has it: that comes first
        last[log_[i].row] = uint32_t(i + 1);
    }
    for (size_t i = 0; i < log_.size(); ++i)
        if (log_[i].inserted && last[log_[i].row] == i + 1) shorter.push_back(log_[i]);
    log_.swap(shorter);
}

inline void Table::take_log(std::vector<Change> *log) {
    log->clear();
    std::lock_guard<std::mutex> lock(mutex_);
    log->swap(log_);
    for (const Change &change : *log)
        known_[change.row] = live(change.row) ? generation_[change.row].load(std::memory_order_relaxed) : 1;
}

inline size_t Table::known_rows(const uint64_t *keys, size_t n, uint32_t *rows, uint32_t *index) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t row;
        if (!holds(keys[i], &row) || known_[row] != generation_[row].load(std::memory_order_relaxed)) continue;
        rows[kept] = row, index[kept++] = uint32_t(i);
    }
    updated_ += kept, gone_ += n - kept;
    return kept;
}

// ---- figures -----------------------------------------------------------------------------------------------------------------

inline Counters Table::counters() {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto relaxed = std::memory_order_relaxed;
    const uint64_t column = (high_ ? 4 : 0) + (times_ ? 4 : 0) + (known_ ? 4 : 0) + 4;
    return {uint64_t(size_), arrivals_.used(), uint64_t(limiter_.inserts), uint64_t(limiter_.samples), uint64_t(limiter_.pending), deleted_,
            evicted_, push_blocked_, aborted_, batches_.leased.load(relaxed), redrawn_, updated_, gone_, batches_drawn_,
            uint64_t(connections.load(relaxed)), uint64_t(gauges[ECHO_GAUGE_QUEUED].load(relaxed)), queue_depth_max.load(relaxed),
            column * capacity_ + arrivals_.bytes()};
}

inline void Table::restore(const uint32_t *order, uint32_t n, const uint32_t *generations, const uint32_t *high, const uint32_t *times,
                           uint64_t inserts, uint64_t samples) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t most = 0;
    for (uint32_t row = 0; row < capacity_; ++row) {
        generation_[row].store(generations[row] | 1, std::memory_order_relaxed);
        if (high_ && high) high_[row] = high[row];
        most = std::max(most, generations[row]);
    }
    // Keys given out after the checkpoint was taken must not name other items now.
    if (most < UINT32_MAX / 2) floor_ = (most + (1u << 24)) & ~1u;
    uses_left_ = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t row = order[i];
        generation_[row].store(generations[row], std::memory_order_relaxed);
        if (known_) known_[row] = generations[row];
        if (!max_times_) continue;
        times_[row] = times ? times[row] : 0;
        uses_left_ += max_times_ - times_[row];
    }
    arrivals_.restore(order, n);
    size_ = n;
    limiter_.inserts = int64_t(inserts), limiter_.samples = int64_t(samples), limiter_.pending = 0;
    log_.clear();
}

}  // namespace echo::replay
