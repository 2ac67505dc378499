// A replay table: its rows stay, and are drawn as often as the sampler decides.
//
// * Writers claim rows, fill them in place and commit them, through the same native interface as the ring of a stream (echo_capi.h).
// * Every row has a generation, which grows by one with each change, so that every item has a key of its own (generations.hpp).
// * A learner draws rows under the mutex, gathers them without it, and then checks the generations again. If a row was overwritten meanwhile,
//   another is drawn instead. So no batch ever contains a torn row, and no writer waits for a gather.
// * One mutex guards the set of rows, the sampler, the remover and the limiter. It is held for one run of rows or one batch at a time.
//
// The sampler is native (echo_sampler.h) or written in Python. A Python sampler is told of changes only when a thread draws; until then the
// table keeps a change log for it. Writers therefore never need the GIL.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cmath>
#include <condition_variable>
#include <cstddef>
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
#include "echo_capi.h"
#include "echo_sampler.h"
#include "spec/sample_labels.hpp"
#include "rows/arrival_order.hpp"
#include "rows/batch_buffers.hpp"
#include "change_log.hpp"
#include "importance_weights.hpp"
#include "rows/staging_rows.hpp"
#include "rows/follower.hpp"
#include "rows/generations.hpp"
#include "labelled/label_leaf.hpp"
#include "rate_limiter.hpp"
#include "unacknowledged.hpp"
#include "policy_versions.hpp"
#include "rows/checkpoint_copies.hpp"
#include "rows/rows.hpp"

// The test-suite builds once without the second look at the generations, to prove that its stress program would find torn rows.
#ifndef ECHO_VERIFY_GENERATIONS
#define ECHO_VERIFY_GENERATIONS 1
#endif

namespace echo::replay {

enum Answer { kDrawn = 0, kWait = 1, kClosed = 2, kNothing = 3 };  // kNothing: the sampler has nothing that it could draw

struct Counters {
    uint64_t size, used, inserts, samples, pending, deleted, evicted, push_blocked, aborted, leased, redrawn, updated, gone, drawn_batches;
    uint64_t connections, queued, queue_depth_max, overhead_bytes, refused, stale, on_loan, acknowledged, redelivered, policy_version;
    uint64_t refused_sample;  // the last refused sample: how many were inserted before it, and its priority
    double refused_priority;
};

class Table {
public:
    static constexpr uint64_t kMaxCapacity = (1u << 31) - 1;

    // sampler: NULL if it is written in Python. remover: NULL evicts the oldest item; if it is the sampler itself, that sampler's victims()
    // decides. Both, and `random`, must outlive the table. fd: see Rows. lease_ns: how long a learner has to acknowledge an item that it
    // was given for the last time; 0: it need not. more: bytes of further leaves of an item in a batch, which a follower fills. initial: see
    // Rows.
    Table(const std::vector<uint64_t> &leaf_bytes, uint64_t capacity, uint64_t batch_size, const Limits &limits, uint32_t max_times_sampled,
          const echo_sampler *sampler, bool replacement, const echo_sampler *remover, bitgen_t *random, int fd,
          const LagLimits &lags = {}, int64_t lease_ns = 0, const std::vector<uint64_t> &more = {}, uint64_t initial = UINT64_MAX)
        : capacity_(uint32_t(capacity)), batch_size_(batch_size), max_times_(max_times_sampled), replacement_(replacement), sampler_(sampler),
          remover_(remover == sampler ? nullptr : remover), victims_(remover && remover == sampler),
          queue_(max_times_sampled == 1 && limits.samples_per_insert == 1 && limits.min_diff == 0 && limits.max_diff <= double(capacity)),
          random_(random),
          rows_(leaf_bytes, capacity, fd, true, initial), batches_(joined(leaf_bytes, more)), generations_(capacity_), staging_(rows_),
          versions_(capacity_, lags), arrivals_(capacity_), limiter_(limits), log_(sampler ? 0 : capacity_), unacknowledged_(capacity_, lease_ns),
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
        int status;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            status = claim_locked(wanted, out);
        }
        if (status == ECHO_OK) rows_.reach(uint64_t(out->slot) + out->count);
        return status;
    }
    char *leaf(const echo_run &run, uint32_t leaf) const { return staging_.any() ? staging_.at(run, leaf) : rows_.at(leaf, run.slot); }
    void commit(const echo_run &run) { commit(run, Labels{}); }
    void commit(const echo_run &run, const Labels &labels);
    // The same for rows whose labels a worker in another process wrote to incoming(). Rows with an invalid priority are refused.
    void commit_labelled(const echo_run &run);
    Incoming *incoming(uint32_t row) { return &incoming_[row]; }
    void expect_labels() {
        std::lock_guard<std::mutex> lock(mutex_);
        if (incoming_) return;
        // Zeroed memory of the kernel takes no room before it is written: a large table that is not full needs labels for its rows only.
        incoming_.reset(static_cast<Incoming *>(std::calloc(capacity_, sizeof(Incoming))));
        if (!incoming_) throw std::bad_alloc();
    }
    void abort(const echo_run &run);
    int wait_space(int64_t timeout_ns);
    int arm_space(int eventfd);
    void disarm_space(int eventfd);

    // ---- learners ------------------------------------------------------------------------------------------------------------
    // Draws n rows into `batch`; call gather() afterwards. kWait: the limiter does not allow it yet.
    Answer draw(Batch *batch);
    // The same for rows that a Python sampler drew (batch->rows and ->probabilities are filled in). `counted`: the limiter was asked for this batch already.
    Answer admit(Batch *batch, uint32_t first, uint32_t n, bool counted);
    // Copies the drawn rows into the batch, without the GIL. Returns how many of them were overwritten meanwhile.
    uint32_t gather(Batch *batch);
    // The same for only those rows that were overwritten and have been drawn again. A row that was complete stays as it is, even if it is overwritten later.
    uint32_t mend(Batch *batch);
    // If the sampler gives every item once per batch, all items of the batch are drawn again. If uses are counted (max_times_sampled), this
    // would cost the complete items one of their uses, so then only the overwritten items are drawn again.
    bool redraws_all() const { return !max_times_ && !replacement_; }
    bool overwritten(const Batch *batch, uint32_t i) const { return !whole(batch, i); }
    // Calls draw() and gather() until every row is complete. For native samplers only.
    Answer sample(Batch *batch);
    // A batch that was counted failed: its items are gone (deleted, or sampled as often as allowed), and there is nothing else to draw. The
    // batch then no longer counts.
    void uncount(const Batch *batch);
    // Removes items that were drawn for the last time; call it after the last gather() of a batch.
    void finish(Batch *batch, bool delivered = true);
    // The unacknowledged items of a borrower are given out again. Returns how many there are.
    uint64_t take_back(uint64_t borrower);
    bool wait_ready(uint32_t n, int64_t timeout_ns);
    // Has `eventfd` written once, when a batch of n can be drawn or the table is closed. Returns true if that is so now; then nothing is
    // armed. Otherwise the caller calls disarm_ready() with the same arguments, whether or not the eventfd was written.
    bool arm_ready(int eventfd, uint32_t n);
    void disarm_ready(int eventfd, uint32_t n);
    // Returns in how many nanoseconds the first unacknowledged item is given out again, which nobody signals; -1: no item is out.
    int64_t first_return();
    void weigh(Batch *batch, double beta) const;
    Batch *take_batch(uint64_t n) { return batches_.take(n); }
    void give_back(Batch *batch) { batches_.give_back(batch); }
    void lock_pages(const PageLock &lock) { batches_.lock_pages(lock); }
    bool can_sample(uint32_t n) {
        std::lock_guard<std::mutex> lock(mutex_);
        expire_unacknowledged();
        return can_sample_locked(n);
    }

    // ---- by key --------------------------------------------------------------------------------------------------------------
    uint32_t row_of(uint64_t key) const { return generations_.row_of(key); }
    uint64_t update(const uint64_t *keys, const double *priorities, size_t n);  // returns how many were gone
    uint64_t erase(const uint64_t *keys, size_t n);                             // returns how many were there
    uint64_t acknowledge(const uint64_t *keys, size_t n);                       // returns how many were unacknowledged
    // Fills batch->rows and ->generations from keys; here[i] is 0 if the item is gone. Call gather_known() afterwards.
    void find(const uint64_t *keys, size_t n, Batch *batch, uint8_t *here);
    void gather_known(Batch *batch, uint8_t *here);
    // Overwrites some leaves of items, which keep their keys. from[leaf] is NULL or has n rows; here[i] is 0 if the item is gone.
    void overwrite(const uint64_t *keys, size_t n, const char *const *from, uint8_t *here);
    // Fills in keys and priorities of every item, oldest first. priorities may be NULL (and are ignored for samplers written in Python).
    size_t items(uint64_t *keys, double *priorities, uint32_t *rows, size_t most);
    // Fills in keys of the items that came last, the youngest first.
    size_t newest(uint64_t *keys, size_t most);

    // ---- for a Python sampler: the changes since the last call, in order ---------------------------------------------------------
    void take_log(std::vector<Change> *log) {
        std::lock_guard<std::mutex> lock(mutex_);
        log_.take(log, generations_);
    }
    // Whether the sampler knows an item in this row.
    bool sampler_knows(uint32_t row) const { return (log_.known(row) & 1) == 0; }
    // Fills in the rows of those keys that are still there and whose insertion the sampler knows.
    size_t known_rows(const uint64_t *keys, size_t n, uint32_t *rows, uint32_t *index);

    void close() {
        closed_.store(true, std::memory_order_seq_cst);
        { std::lock_guard<std::mutex> lock(mutex_); }
        ready_.notify(INT_MAX);
        ready_eventfds_.signal();
        space_.notify(INT_MAX);
        eventfds_.signal();
    }
    // Closes the table. From now on the sampler, the remover and the generator of random numbers may be freed.
    void detach() {
        close();
        std::lock_guard<std::mutex> lock(mutex_);
        detached_ = true;
    }
    bool closed() const { return closed_.load(std::memory_order_seq_cst); }

    // ---- figures -------------------------------------------------------------------------------------------------------------
    Counters counters() {
        std::lock_guard<std::mutex> lock(mutex_);
        expire_unacknowledged();
        const auto relaxed = std::memory_order_relaxed;
        const uint64_t column = generations_.bytes_per_row() + (times_ ? 4 : 0) + log_.bytes_per_row() + versions_.bytes_per_row() +
                                (incoming_ ? sizeof(Incoming) : 0) + (unacknowledged_.any() ? 8 : 0);
        return {uint64_t(size_), arrivals_.used(), uint64_t(limiter_.inserts), uint64_t(limiter_.samples), uint64_t(limiter_.pending), deleted_,
                evicted_, push_blocked_, aborted_, batches_.leased.load(relaxed), redrawn_, updated_, gone_, batches_drawn_,
                uint64_t(connections.load(relaxed)), uint64_t(gauges[ECHO_GAUGE_QUEUED].load(relaxed)), queue_depth_max.load(relaxed),
                column * capacity_ + arrivals_.bytes(), refused_, stale_, unacknowledged_.out(), acknowledged_, redelivered_, versions_.newest(),
                refused_sample_, refused_priority_};
    }
    const Limits &limits() const { return limiter_.limits(); }
    uint64_t capacity() const { return capacity_; }
    uint64_t rows_ready() const { return rows_.ready(); }
    uint64_t batch_size() const { return batch_size_; }
    uint32_t leaf_count() const { return rows_.leaves(); }
    uint64_t leaf_bytes(uint32_t leaf) const { return rows_.leaf_bytes(leaf); }
    uint64_t sample_bytes() const { return sample_bytes_; }
    bool replacement() const { return replacement_; }
    // Which of the two conditions of can_insert blocks writers; for messages.
    bool limited(bool inserting, uint32_t n) {
        std::lock_guard<std::mutex> lock(mutex_);
        return inserting ? limiter_.room(1, size_) == 0 : !limiter_.can_sample(n, size_);
    }

    // The sum that the next draw divides by; NaN if the sampler has none, or is written in Python.
    double mass() {
        std::lock_guard<std::mutex> lock(mutex_);
        return detached_ ? std::numeric_limits<double>::quiet_NaN() : mass_locked();
    }

    // ---- versions of the policy ----------------------------------------------------------------------------------------------
    bool keeps_versions() const { return versions_.kept(); }
    uint64_t policy_version() const { return versions_.newest(); }
    // From now on lags are counted from this version. Rows that lag too far behind it are removed.
    void set_policy_version(uint64_t version);
    std::vector<std::pair<uint64_t, uint64_t>> version_counts() {
        std::lock_guard<std::mutex> lock(mutex_);
        return versions_.counts();
    }

    // ---- checkpoints ---------------------------------------------------------------------------------------------------------
    // Between pause() and resume() nothing is inserted, drawn or removed, and only the caller uses the sampler. Writers find the table
    // full, commits are kept for resume(), and update() and similar calls wait, so that they must be called without the GIL.
    void pause();
    void resume();
    // While the table is held, writers find it full. This is for a Python sampler's batch whose rows were overwritten again and again.
    void hold(bool on) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            held_ = on;
        }
        if (!on) after_pause();
    }
    const Rows &rows() const { return rows_; }
    // The items' bytes are in their rows already; the sampler and the remover are restored separately. order: the rows, oldest item first.
    void restore(const uint32_t *order, uint32_t n, const uint32_t *generations, const uint32_t *high, const uint32_t *times,
                 const uint64_t *versions, uint64_t policy_version, const uint32_t *unacknowledged, uint32_t unacknowledged_n, uint64_t inserts,
                 uint64_t samples);
    void columns(uint32_t *generations, uint32_t *high, uint32_t *times, uint64_t *versions) const {
        generations_.save(generations, high);
        for (uint32_t row = 0; row < capacity_; ++row) {
            times[row] = times_ ? times_[row] : 0;
            versions[row] = versions_.kept() ? versions_.of(row) : 0;
        }
    }
    // Returns the rows of unacknowledged items, including those that are being gathered; call it while paused. After a restart these items
    // have to be given out again.
    std::vector<uint32_t> unacknowledged() const { return unacknowledged_.any() ? unacknowledged_.rows() : std::vector<uint32_t>(); }
    // Call this while paused: from now until end_copy(), the bytes of these rows stay available as they are at this moment.
    void begin_copy(const uint32_t *rows, size_t n) { preserved_.begin(rows, n); }
    // Copies those of the rows that nobody has changed since into the batch, from its front. Returns how many; batch->rows says which.
    size_t copy_some(const uint32_t *rows, size_t n, Batch *batch);
    // Takes the bytes of some rows that were changed since, as Preserved::take.
    bool take_preserved(std::vector<uint32_t> *rows, std::unique_ptr<char[]> *bytes);
    void end_copy();

    std::atomic<int64_t> connections{0};
    std::atomic<int64_t> gauges[1] = {};
    std::atomic<uint64_t> queue_depth_max{0};
    Histogram copy, ingest_round, queue_dwell;

    // Call this before the first insert. The follower must outlive the last batch that is drawn.
    void follow(Follower *follower) { follower_ = follower; }
    // Call this before the first insert: labels with a priority of 0 are then refused.
    void refuse_zero() { refuses_zero_ = true; }

private:
    friend class Steps;    // the steps under this table of items: it takes its own lock first, then the one of this table
    friend class Records;  // the same for records
    static constexpr int kPolite = 8;  // gathers that may find overwritten rows before writers have to wait

    bool leaving(uint32_t row) const { return max_times_ && times_[row] >= max_times_; }
    bool holds(uint64_t key, uint32_t *row) const { return generations_.holds(key, row) && !leaving(*row); }
    bool can_sample_locked(uint32_t n) const {
        if (paused_ || !limiter_.can_sample(n, size_) || size_ == 0) return false;
        if (!replacement_ && size_ < n) return false;
        return !max_times_ || uses_left_ >= n;
    }
    // A sampler that was built before a member was appended to its interface has a shorter one. Every appended member is a pointer.
    static bool has_member(const echo_sampler *sampler, size_t offset) { return sampler->size >= offset + sizeof(void *); }
    void report_published(uint64_t version) {
        for (const echo_sampler *one : {sampler_, remover_})
            if (one && !detached_ && has_member(one, offsetof(echo_sampler, published)) && one->published) one->published(one->state, version);
    }
    double mass_locked() const {
        const bool has = sampler_ && has_member(sampler_, offsetof(echo_sampler, mass)) && sampler_->mass;
        const double mass = has ? sampler_->mass(sampler_->state) : std::numeric_limits<double>::quiet_NaN();
        return follower_ ? follower_->mass(mass) : mass;
    }
    int claim_locked(uint32_t wanted, echo_run *out);
    // What is known of the rows of a run when they are committed. A priority is NaN if the sampler chooses it. `versions` has one entry for
    // each row, or is empty.
    struct Known {
        std::vector<double> priorities;
        std::vector<uint64_t> versions;
        uint64_t version = Labels::kNewest;
        std::vector<std::pair<uint32_t, double>> bad;  // rows that were refused for their priorities
    };
    void copy_from_staging(const echo_run &run);
    void finish_commit(const echo_run &run, const double *priorities, Known *known, uint64_t *keys);
    void finish_commit_locked(const echo_run &run, const double *priorities, Known *known, uint64_t *keys);
    void commit_locked(const echo_run &run, const double *priorities, const Known &known);
    // Tells the sampler or the remover of new rows; some priorities may be NaN.
    static void report_new(const echo_sampler *sampler, const uint32_t *rows, const double *priorities, size_t n);
    // Removes an item that is not being gathered for the last time.
    void drop(uint32_t row);
    uint64_t drop_stale(uint64_t newest, uint64_t most);
    void expire_unacknowledged();
    bool victim(uint32_t *row);
    void evict(const uint32_t *rows, uint32_t n);
    // Removes rows from sampler, remover and count; their generations and places stay.
    void forget(const uint32_t *rows, size_t n);
    bool end_unacknowledged(uint32_t row);
    bool can_claim();
    bool can_evict() const;
    // An item is removed: its row may be used for another one, once it has left the order of arrival.
    void vacate(uint32_t row) {
        generations_.advance(row, std::memory_order_relaxed);
        if (follower_) follower_->gone(row);
    }
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
    // Calls copy(), and again if items were changed in place meanwhile: such items keep their generations.
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
    // As after_space(), for room that was there all the time while nobody could take it.
    void after_pause() {
        if (follower_) follower_->resumed();
        after_space();
    }
    void after_space();

    const uint32_t capacity_;
    const uint64_t batch_size_;
    const uint32_t max_times_;
    const bool replacement_;
    bool refuses_zero_ = false;
    const echo_sampler *const sampler_, *const remover_;
    const bool victims_;  // the sampler decides what is evicted
    const bool queue_;    // every item is sampled once, and the limiter keeps the queue within the capacity, so that no item is evicted
    bitgen_t *const random_;
    Follower *follower_ = nullptr;
    Rows rows_;
    Batches batches_;
    Generations generations_;
    StagingRows staging_;
    PolicyVersions versions_;
    std::unique_ptr<Incoming[], FreeIncoming> incoming_;  // labels of rows that are being written with labels
    std::atomic<uint64_t> rewrites_{0};  // odd while an item is changed in place
    uint64_t sample_bytes_ = 0;
    std::atomic<bool> closed_{false};
    std::atomic<uint32_t> references_{1};

    alignas(64) std::mutex mutex_;  // guards everything below
    Arrivals arrivals_;
    Limiter limiter_;
    ChangeLog log_;  // for a Python sampler
    std::unique_ptr<uint32_t[]> times_;
    Unacknowledged unacknowledged_;
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
    std::vector<Deferred> deferred_;  // committed while the table was paused
    std::condition_variable resumed_;
    std::vector<uint32_t> waiting_;  // for each sleeping learner, and for each eventfd in its place, how many rows it wants

    EventCount ready_, space_;
    SpaceEventfds ready_eventfds_;  // for threads that wait in poll for a batch
    SpaceEventfds eventfds_;        // for threads that wait for space in epoll
};

}  // namespace echo::replay

#include "table_checkpoints.hpp"
#include "table_draws.hpp"
#include "table_keys.hpp"
#include "table_writers.hpp"
