// A replay table: rows that stay, and come out as often as they are drawn.
//
// * Writers claim rows, fill them in place and commit them, through the same door as the ring of a stream (echo_capi.h).
// * Every row has a generation, one more at each change, and so every item a key of its own (generations.hpp).
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

#include "store/wait/space_eventfds.hpp"
#include "store/wait/event_count.hpp"
#include "store/histogram.hpp"
#include "include/echo_capi.h"
#include "include/echo_sampler.h"
#include "spec/sample_labels.hpp"
#include "store/replay/rows/arrival_order.hpp"
#include "store/replay/rows/batch_buffers.hpp"
#include "store/replay/change_log.hpp"
#include "store/replay/importance_weights.hpp"
#include "store/replay/rows/staging_rows.hpp"
#include "store/replay/rows/follower.hpp"
#include "store/replay/rows/generations.hpp"
#include "store/replay/labelled/label_leaf.hpp"
#include "store/replay/rate_limiter.hpp"
#include "store/replay/queue_loans.hpp"
#include "store/replay/policy_versions.hpp"
#include "store/replay/rows/checkpoint_copies.hpp"
#include "store/replay/rows/rows.hpp"

// The test-suite builds once without the second look at the generations, to prove that its stress program would see torn rows.
#ifndef ECHO_VERIFY_GENERATIONS
#define ECHO_VERIFY_GENERATIONS 1
#endif

namespace echo::replay {

enum Answer { kDrawn = 0, kWait = 1, kClosed = 2, kNothing = 3 };  // kNothing: the sampler has nothing that it could draw

struct Counters {
    uint64_t size, used, inserts, samples, pending, deleted, evicted, push_blocked, aborted, leased, redrawn, updated, gone, drawn_batches;
    uint64_t connections, queued, queue_depth_max, overhead_bytes, refused, stale, on_loan, acknowledged, redelivered, policy_version;
    uint64_t refused_sample;  // the last one refused: how many were inserted before it, and its priority
    double refused_priority;
};

class Table {
public:
    static constexpr uint64_t kMaxCapacity = (1u << 31) - 1;

    // sampler: NULL for one of Python's. remover: NULL evicts the oldest, the sampler itself evicts its victims(). They, and `random`, must
    // outlive the table. fd: see Rows. lease_ns: how long a learner has to acknowledge what it was given for the last time; 0: it need not. more: bytes
    // of further leaves of an item in a batch, which a follower fills.
    Table(const std::vector<uint64_t> &leaf_bytes, uint64_t capacity, uint64_t batch_size, const Limits &limits, uint32_t max_times_sampled,
          const echo_sampler *sampler, bool replacement, const echo_sampler *remover, bitgen_t *random, int fd,
          const LagLimits &lags = {}, int64_t lease_ns = 0, const std::vector<uint64_t> &more = {})
        : capacity_(uint32_t(capacity)), batch_size_(batch_size), max_times_(max_times_sampled), replacement_(replacement), sampler_(sampler),
          remover_(remover == sampler ? nullptr : remover), victims_(remover && remover == sampler),
          queue_(max_times_sampled == 1 && limits.samples_per_insert == 1 && limits.min_diff == 0 && limits.max_diff <= double(capacity)),
          random_(random),
          rows_(leaf_bytes, capacity, fd), batches_(joined(leaf_bytes, more)), generations_(capacity_), desks_(rows_),
          versions_(capacity_, lags), arrivals_(capacity_), limiter_(limits), log_(sampler ? 0 : capacity_), loans_(capacity_, lease_ns),
          preserved_(rows_, capacity_) {
        for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
        if (max_times_) times_ = std::make_unique<uint32_t[]>(capacity);
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
    char *leaf(const echo_run &run, uint32_t leaf) const { return desks_.any() ? desks_.at(run, leaf) : rows_.at(leaf, run.slot); }
    void commit(const echo_run &run) { commit(run, Labels{}); }
    void commit(const echo_run &run, const Labels &labels);
    // The same for rows whose labels a worker in another process wrote to incoming(); those of a bad priority are refused.
    void commit_labelled(const echo_run &run);
    Incoming *incoming(uint32_t row) { return &incoming_[row]; }
    void expect_labels() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!incoming_) incoming_ = std::make_unique<Incoming[]>(capacity_);
    }
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
    // The same for those alone that were, drawn anew meanwhile: what was whole stays, whoever overwrites its row later.
    uint32_t mend(Batch *batch);
    // Samplers that give every item once per batch draw all of it again, unless that would cost the items that are still whole one of the
    // uses that they have: where those are counted, what was overwritten is drawn again alone.
    bool redraws_all() const { return !max_times_ && !replacement_; }
    bool overwritten(const Batch *batch, uint32_t i) const { return !whole(batch, i); }
    // draw() and gather() until every row is whole. Native samplers only.
    Answer sample(Batch *batch);
    // A batch that was counted came to nothing: what was drawn is gone (deleted, or sampled as often as it may be), and nothing is left to
    // draw instead. It counts no more.
    void uncount(const Batch *batch);
    // Ends items that were drawn for the last time; after the last gather() of a batch.
    void finish(Batch *batch, bool delivered = true);
    // What a borrower had and did not acknowledge is given out again now; how much that was.
    uint64_t take_back(uint64_t borrower);
    bool wait_ready(uint32_t n, int64_t timeout_ns);
    void weigh(Batch *batch, double beta) const;
    Batch *take_batch(uint64_t n) { return batches_.take(n); }
    void give_back(Batch *batch) { batches_.give_back(batch); }
    void lock_pages(const PageLock &lock) { batches_.lock_pages(lock); }
    bool can_sample(uint32_t n) {
        std::lock_guard<std::mutex> lock(mutex_);
        expire_loans();
        return can_sample_locked(n);
    }

    // ---- by key --------------------------------------------------------------------------------------------------------------
    uint32_t row_of(uint64_t key) const { return generations_.row_of(key); }
    uint64_t update(const uint64_t *keys, const double *priorities, size_t n);  // returns how many were gone
    uint64_t erase(const uint64_t *keys, size_t n);                             // returns how many were there
    uint64_t acknowledge(const uint64_t *keys, size_t n);                       // returns how many were on loan, or had been
    // Fills batch->rows and ->generations from keys; here[i] is 0 where the item is gone. Then gather_known().
    void find(const uint64_t *keys, size_t n, Batch *batch, uint8_t *here);
    void gather_known(Batch *batch, uint8_t *here);
    // Overwrites some leaves of items, which keep their keys: from[leaf] is NULL or has n rows. here[i] is 0 where the item is gone.
    void overwrite(const uint64_t *keys, size_t n, const char *const *from, uint8_t *here);
    // Keys and priorities of every item, oldest first; priorities may be NULL (and are ignored for Python's samplers).
    size_t items(uint64_t *keys, double *priorities, uint32_t *rows, size_t most);
    // Keys of the items that came last, the youngest first.
    size_t newest(uint64_t *keys, size_t most);

    // ---- for a Python sampler: what happened since the last call, in order -------------------------------------------------------
    void take_log(std::vector<Change> *log) {
        std::lock_guard<std::mutex> lock(mutex_);
        log_.take(log, generations_);
    }
    // Whether it was told that there is such an item.
    bool told(uint32_t row) const { return (log_.known(row) & 1) == 0; }
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
    Counters counters() {
        std::lock_guard<std::mutex> lock(mutex_);
        expire_loans();
        const auto relaxed = std::memory_order_relaxed;
        const uint64_t column = generations_.bytes_per_row() + (times_ ? 4 : 0) + log_.bytes_per_row() + versions_.bytes_per_row() +
                                (incoming_ ? sizeof(Incoming) : 0) + (loans_.any() ? 8 : 0);
        return {uint64_t(size_), arrivals_.used(), uint64_t(limiter_.inserts), uint64_t(limiter_.samples), uint64_t(limiter_.pending), deleted_,
                evicted_, push_blocked_, aborted_, batches_.leased.load(relaxed), redrawn_, updated_, gone_, batches_drawn_,
                uint64_t(connections.load(relaxed)), uint64_t(gauges[ECHO_GAUGE_QUEUED].load(relaxed)), queue_depth_max.load(relaxed),
                column * capacity_ + arrivals_.bytes(), refused_, stale_, loans_.out(), acknowledged_, redelivered_, versions_.newest(),
                refused_sample_, refused_priority_};
    }
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

    // ---- versions of the policy ----------------------------------------------------------------------------------------------
    bool keeps_versions() const { return versions_.kept(); }
    uint64_t policy_version() const { return versions_.newest(); }
    // From now on lags are counted from this version; rows that lag too far behind it go.
    void set_policy_version(uint64_t version);
    std::vector<std::pair<uint64_t, uint64_t>> version_counts() {
        std::lock_guard<std::mutex> lock(mutex_);
        return versions_.counts();
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
                 const uint64_t *versions, uint64_t policy_version, const uint32_t *loaned, uint32_t loaned_n, uint64_t inserts, uint64_t samples);
    void columns(uint32_t *generations, uint32_t *high, uint32_t *times, uint64_t *versions) const {
        generations_.save(generations, high);
        for (uint32_t row = 0; row < capacity_; ++row) {
            times[row] = times_ ? times_[row] : 0;
            versions[row] = versions_.kept() ? versions_.of(row) : 0;
        }
    }
    // Rows on loan, or being gathered for one; while paused. They are items that have to be given out again after a restart.
    std::vector<uint32_t> loaned() const { return loans_.any() ? loans_.rows() : std::vector<uint32_t>(); }
    // While paused: from now until end_copy() these rows' bytes stay to be had, as they are at this moment.
    void begin_copy(const uint32_t *rows, size_t n) { preserved_.begin(rows, n); }
    // Copies those of the rows that nobody has changed since into the batch, from its front; returns how many: batch->rows says which.
    size_t copy_some(const uint32_t *rows, size_t n, Batch *batch);
    // The bytes of some of those that were changed since, as Preserved::take.
    bool take_preserved(std::vector<uint32_t> *rows, std::unique_ptr<char[]> *bytes);
    void end_copy();

    std::atomic<int64_t> connections{0};
    std::atomic<int64_t> gauges[1] = {};
    std::atomic<uint64_t> queue_depth_max{0};
    Histogram copy, ingest_round, queue_dwell;

    // Before the first insert; it must outlive the last batch that is drawn.
    void follow(Follower *follower) { follower_ = follower; }
    // Before the first insert: a label with a priority of 0 is refused.
    void refuse_zero() { refuses_zero_ = true; }

private:
    friend class Steps;  // the table of steps under this table of items: one lock of its own, then this one's
    static constexpr int kPolite = 8;  // gathers that may find overwritten rows before writers are made to wait for one

    bool leaving(uint32_t row) const { return max_times_ && times_[row] >= max_times_; }
    bool holds(uint64_t key, uint32_t *row) const { return generations_.holds(key, row) && !leaving(*row); }
    bool can_sample_locked(uint32_t n) const {
        if (paused_ || !limiter_.can_sample(n, size_) || size_ == 0) return false;
        if (!replacement_ && size_ < n) return false;
        return !max_times_ || uses_left_ >= n;
    }
    int claim_locked(uint32_t wanted, echo_run *out);
    // What is known of the rows of a run when they are committed. priorities: NaN where the sampler chooses; versions: of each, or empty.
    struct Known {
        std::vector<double> priorities;
        std::vector<uint64_t> versions;
        uint64_t version = Labels::kNewest;
        std::vector<std::pair<uint32_t, double>> bad;  // rows refused for their priorities
    };
    void gather_desk(const echo_run &run);
    void finish_commit(const echo_run &run, const double *priorities, Known *known, uint64_t *keys);
    void commit_locked(const echo_run &run, const double *priorities, const Known &known);
    // Tells sampler or remover of new rows; priorities may be NaN here and there.
    static void tell(const echo_sampler *sampler, const uint32_t *rows, const double *priorities, size_t n);
    // An item goes that nobody gathers for the last time.
    void drop(uint32_t row);
    uint64_t drop_stale(uint64_t newest, uint64_t most);
    void expire_loans();
    bool victim(uint32_t *row);
    void evict(const uint32_t *rows, uint32_t n);
    // Takes rows out of sampler, remover and count; their generations and places stay.
    void forget(const uint32_t *rows, size_t n);
    bool end_loan(uint32_t row);
    bool can_claim();
    uint64_t update_some(const uint64_t *keys, const double *priorities, size_t n);
    Answer draw_locked(Batch *batch, uint32_t first, uint32_t n);
    Answer draw_another(Batch *batch, size_t torn);
    void find_torn(Batch *batch);
    bool use(Batch *batch, uint32_t row);
    void leave(Batch *batch, uint32_t row);
    Answer uncount_locked(const Batch *batch);
    void label(Batch *batch, uint32_t i) {
        if (follower_) follower_->choose(batch, i, random_);
        batch->keys[i] = generations_.key_of(batch->rows[i]);
        batch->generations[i] = generations_.of(batch->rows[i]);
    }
    void copy_rows(Batch *batch) const {
        rows_.gather(batch->rows, batch->n, batch->leaf.data());
        for (uint64_t i = 0; versions_.kept() && i < batch->n; ++i) batch->versions[i] = versions_.of(batch->rows[i]);
        if (follower_) follower_->gather(batch);
    }
    static std::vector<uint64_t> joined(std::vector<uint64_t> bytes, const std::vector<uint64_t> &more) {
        bytes.insert(bytes.end(), more.begin(), more.end());
        return bytes;
    }
    void copy_torn(Batch *batch) const {
        for (uint32_t i : batch->torn) {
            rows_.copy(batch->rows[i], i, batch->leaf.data());
            if (versions_.kept()) batch->versions[i] = versions_.of(batch->rows[i]);
        }
    }
    // Calls copy(), and again if items were changed in place meanwhile: those keep their generations.
    template <class Copy>
    void copy_steady(Copy copy);
    void count_redrawn(uint64_t torn) {
        if (torn == 0) return;
        std::lock_guard<std::mutex> lock(mutex_);
        redrawn_ += torn;
    }
    bool whole(const Batch *batch, uint32_t i) const {
        return !ECHO_VERIFY_GENERATIONS ||
               (generations_.of(batch->rows[i]) == batch->generations[i] && (!follower_ || follower_->whole(batch, i)));
    }
    void after_insert();
    void after_space();

    const uint32_t capacity_;
    const uint64_t batch_size_;
    const uint32_t max_times_;
    const bool replacement_;
    bool refuses_zero_ = false;
    const echo_sampler *const sampler_, *const remover_;
    const bool victims_;  // the sampler says what goes
    const bool queue_;    // every item is sampled once, and the limiter counts those that wait: there is room for them, and none is evicted
    bitgen_t *const random_;
    Follower *follower_ = nullptr;
    Rows rows_;
    Batches batches_;
    Generations generations_;
    Desks desks_;
    PolicyVersions versions_;
    std::unique_ptr<Incoming[]> incoming_;  // of rows being written by labelled connections
    std::atomic<uint64_t> rewrites_{0};  // odd while an item is changed in place
    uint64_t sample_bytes_ = 0;
    std::atomic<bool> closed_{false};
    std::atomic<uint32_t> references_{1};

    alignas(64) std::mutex mutex_;  // of all below
    Arrivals arrivals_;
    Limiter limiter_;
    ChangeLog log_;  // of a Python sampler
    std::unique_ptr<uint32_t[]> times_;
    Loans loans_;
    Preserved preserved_;
    int64_t size_ = 0;
    uint64_t uses_left_ = 0, deleted_ = 0, evicted_ = 0, push_blocked_ = 0, aborted_ = 0, redrawn_ = 0, updated_ = 0, gone_ = 0, batches_drawn_ = 0,
             refused_ = 0, stale_ = 0, acknowledged_ = 0, redelivered_ = 0, refused_sample_ = 0, version_turns_ = 0;
    double refused_priority_ = 0;
    std::vector<uint32_t> scratch_;
    std::vector<double> scratch_priorities_;
    bool paused_ = false, held_ = false, detached_ = false;
    struct Deferred {
        echo_run run;
        Known known;
    };
    std::vector<Deferred> deferred_;  // committed while paused
    std::condition_variable resumed_;
    std::vector<uint32_t> waiting_;  // how many rows each sleeping learner wants

    EventCount ready_, space_;
    Bells bells_;  // of those who wait for space in epoll
};

}  // namespace echo::replay

#include "store/replay/table_checkpoints.hpp"
#include "store/replay/table_draws.hpp"
#include "store/replay/table_keys.hpp"
#include "store/replay/table_writers.hpp"
