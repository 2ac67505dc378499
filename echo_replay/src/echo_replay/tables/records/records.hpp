// A table of records: samples of varying length. The items of a replay table (table.hpp) say where the bytes of their records are.
//
// * Transports put chunks into a landing area. Chunks become records outside the table, in a buffer of their client (assembly.hpp), so a record enters
//   the table whole or not at all, and a client that sends slowly holds up nobody.
// * A record's bytes are in pages (pages.hpp), which are free at once when its item is removed, whoever removes it.
// * A complete record that finds no room waits, and new chunks with it. A queue evicts nothing, and other tables evict by their remover.
// * Items are drawn as those of any table. Their bytes are copied without a lock, and the items' generations tell whether they were overwritten
//   meanwhile (SYNC generation). So pages may be overwritten only after the generation of their item has advanced.
//
// Locks: the mutex of Records is taken first, then that of the table. The gather takes none (packed_draw.hpp).
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "../table.hpp"
#include "assembly.hpp"
#include "landing.hpp"
#include "packed_batches.hpp"
#include "pages.hpp"
#include "record_layout.hpp"

namespace echo::replay {

struct RecordCounters {
    uint64_t pages, pages_free, incomplete, refused, half_sent, half_sent_bytes, waiting;
    int64_t rows[MOST_AXES];  // along each axis, of all items that can be drawn
    uint64_t rows_in[MOST_AXES], rows_out[MOST_AXES];
};

// Why nothing can go on: writers wait for bytes, and a draw for items.
struct Stuck {
    uint64_t size, bytes_wanted, bytes_free;
};

class Records final : public Follower {
public:
    static constexpr uint32_t kLandingRows = 8192;

    // bytes: of all pages. items: the table of items, whose rows are RecordRows, and whose batches have one leaf more, with such rows again.
    Records(const RecordLayout &layout, uint64_t bytes, Table *items, int fd)
        : layout_(layout), pages_(Pages::of(bytes), fd), packed_(layout), items_(items), landing_(CHUNK_BYTES, kLandingRows),
          assembly_(layout) {
        items_->retain();
        items_->follow(this);
    }
    ~Records() override { items_->release(); }
    Records(const Records &) = delete;
    Records &operator=(const Records &) = delete;

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- writers of chunks: as Table's -----------------------------------------------------------------------------------------
    int claim(uint32_t wanted, echo_run *out);
    char *leaf(const echo_run &run, uint32_t) const { return landing_.at(run.slot); }
    void commit(const echo_run &run);
    void abort(const echo_run &run);
    int wait_space(int64_t timeout_ns) {
        const bool space = items_->space_.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
        return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
    }
    int arm_space(int eventfd) {
        items_->eventfds_.arm(eventfd);
        if (!can_claim()) return ECHO_OK;
        disarm_space(eventfd);
        return ECHO_READY;
    }
    void disarm_space(int eventfd) { items_->eventfds_.disarm(eventfd); }
    // The client is given up: the record that it was sending never comes. Returns whether there was one.
    bool forget_client(uint64_t client) {
        std::lock_guard<std::mutex> lock(mutex_);
        return assembly_.forget(client);
    }

    // ---- a writer of this process ----------------------------------------------------------------------------------------------
    // Inserts one record whose leaves are at `from`. ECHO_FULL: there is no room for it now.
    int insert(const RecordHeader &header, const char *const *from, uint64_t *key);
    // Sleeps until there may be room for a record with these lengths.
    int wait_room(const uint32_t *lengths, int64_t timeout_ns);
    // Inserts records that waited. Call it after items were removed, as transports may not call for a while.
    void settle() {
        std::lock_guard<std::mutex> lock(mutex_);
        settle_locked();
    }

    // ---- learners: see packed_draw.hpp -----------------------------------------------------------------------------------------
    PackedBatch *take_packed(uint64_t items, const uint64_t *room) { return packed_.take(items, room); }
    void give_back(PackedBatch *batch) { packed_.give_back(batch); }
    void lock_pages(const PageLock &lock) { packed_.lock_pages(lock); }
    void choose(Batch *batch, uint32_t i, bitgen_t *) override;
    void gather(Batch *batch) const override;
    // A learner gets this batch.
    void count_drawn(const PackedBatch *packed) {
        for (size_t axis = 0; axis < layout_.most.size(); ++axis) rows_out_[axis].fetch_add(packed->totals[axis], std::memory_order_relaxed);
    }
    // As Table::sample, for as many items as have `units` rows along an axis together. batch->n is the most items before, and theirs afterwards.
    Answer sample_units(Batch *batch, uint32_t axis, uint64_t units);
    // Whether writers wait for bytes while the table has fewer than n items, and nothing is under way: then both would wait for ever.
    bool stuck(uint64_t n, Stuck *out);

    // ---- checkpoints: while the table is paused, or new ---------------------------------------------------------------------------
    // Copies a row and the bytes of its record, of which there are `row.bytes`.
    RecordRow row_of(uint32_t of) const { return *row(of); }
    void copy_record(uint32_t of, char *to) const { Pages::Cursor(pages_, row(of)->first).read(to, row(of)->bytes); }
    // The restored item in this row has these lengths and bytes. There are pages enough. drawable: it is not given out to a learner.
    void place_record(uint32_t of, const uint32_t *lengths, const char *from, bool drawable);

    // ---- the table tells: its mutex is held --------------------------------------------------------------------------------------
    void gone(uint32_t row) override;
    void forgotten(const uint32_t *rows, size_t n) override {
        for (size_t i = 0; i < n; ++i) count_rows(*row(rows[i]), -1);
    }

    bool closed() const { return items_->closed(); }
    RecordCounters counters();
    uint64_t batch_size() const { return 4 * 1024; }  // transports claim up to a quarter of it at once
    uint32_t leaf_count() const { return 1; }
    uint64_t leaf_bytes(uint32_t) const { return CHUNK_BYTES; }
    uint64_t sample_bytes() const { return CHUNK_BYTES; }
    const RecordLayout &layout() const { return layout_; }
    uint64_t page_bytes() const { return uint64_t(pages_.count()) * Pages::kBytes; }

private:
    RecordRow *row(uint32_t row) const { return reinterpret_cast<RecordRow *>(items_->rows_.at(0, row)); }
    int claim_locked(uint32_t wanted, echo_run *out);
    bool can_claim();
    // Takes a row and pages for a record of so many bytes, and fills in where they are.
    int reserve(uint64_t bytes, echo_run *run, RecordRow *out);
    bool has_room(uint32_t wanted);
    bool make_room(uint32_t wanted);
    // The bytes are in their pages: the record becomes an item.
    void finish(const echo_run &run, const RecordHeader &header, RecordRow made, uint64_t *key);
    void settle_locked();
    bool insert_whole(const WholeRecord &record);
    bool insert_chunks(const char *const *chunks, uint32_t n, const RecordHeader &header, uint64_t size);
    void count_rows(const RecordRow &row, int64_t sign) {
        for (size_t axis = 0; axis < layout_.most.size(); ++axis)
            rows_[axis].fetch_add(sign * int64_t(row.lengths[axis]), std::memory_order_relaxed);
    }
    bool grows(uint32_t axis, uint64_t units) const;
    bool fits(const RecordRow &row, const uint64_t *totals, uint32_t axis, uint64_t units) const;
    Answer draw_units(Batch *batch, uint32_t axis, uint64_t units);

    const RecordLayout layout_;
    Pages pages_;
    PackedBatches packed_;
    Table *const items_;

public:
    std::atomic<int64_t> *const gauges = items_->gauges;  // shared with the table of items
    std::atomic<uint64_t> &queue_depth_max = items_->queue_depth_max;
    Histogram &copy = items_->copy, &ingest_round = items_->ingest_round;

private:
    std::atomic<uint32_t> references_{1};
    std::atomic<int64_t> rows_[MOST_AXES] = {};  // of the items that can be drawn
    std::atomic<uint64_t> rows_in_[MOST_AXES] = {}, rows_out_[MOST_AXES] = {};
    std::atomic<uint64_t> wanted_{0};  // pages that the first record needs that waits, or a writer of this process
    std::atomic<size_t> waiting_{0};   // the same as waiting_records_.size(), for writers that hold no lock

    // The item that did not fit into the last draw by units: the next one begins with it, if it is still there. Guarded by the table's mutex.
    uint64_t kept_ = kNoKey;
    double kept_probability_ = 0;
    static constexpr uint64_t kNoKey = UINT64_MAX;

    alignas(64) std::mutex mutex_;  // guards everything below
    Landing landing_;
    Assembly assembly_;
    std::deque<WholeRecord> waiting_records_;
    std::vector<const char *> chunks_;
    bool starved_ = false;  // a claim found no free row in the landing area
};

// ---- writers -----------------------------------------------------------------------------------------------------------------

inline int Records::claim(uint32_t wanted, echo_run *out) {
    std::lock_guard<std::mutex> lock(mutex_);
    return claim_locked(wanted, out);
}

inline int Records::claim_locked(uint32_t wanted, echo_run *out) {
    if (closed()) return ECHO_CLOSED;
    if (!waiting_records_.empty()) settle_locked();
    uint32_t first = 0;
    const uint32_t n = waiting_records_.empty() ? landing_.take(wanted, &first) : 0;
    if (n == 0) {
        starved_ = starved_ || waiting_records_.empty();
        std::lock_guard<std::mutex> items(items_->mutex_);
        ++items_->push_blocked_;
        return ECHO_FULL;
    }
    *out = {0, first, n, 0};
    return ECHO_OK;
}

inline bool Records::can_claim() {
    if (closed()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (!waiting_records_.empty()) settle_locked();
    if (!waiting_records_.empty()) return false;
    if (!landing_.full()) return true;
    starved_ = true;
    return false;
}

inline void Records::commit(const echo_run &run) {
    bool starved;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        chunks_.clear();
        for (uint32_t i = 0; i < run.count; ++i) chunks_.push_back(landing_.at(run.slot + i));
        for (uint32_t i = 0; i < run.count;) {
            RecordHeader header;
            uint64_t size;
            // A record that came as a whole is copied from its chunks into its pages, without a buffer in between.
            const uint32_t n = waiting_records_.empty() ? assembly_.whole_within(&chunks_[i], run.count - i, &header, &size) : 0;
            if (n && insert_chunks(&chunks_[i], n, header, size)) {
                i += n;
                continue;
            }
            WholeRecord record;
            if (assembly_.add(chunks_[i++], &record)) {
                waiting_records_.push_back(std::move(record));
                waiting_.store(waiting_records_.size(), std::memory_order_relaxed);
                settle_locked();
            }
        }
        landing_.give(run.slot, run.count);
        starved = std::exchange(starved_, false);
    }
    // Sleepers look for a free row under the mutex, after they have announced themselves. So either they see these rows, or we see them.
    if (starved) items_->space_.notify(INT_MAX), items_->eventfds_.signal();
}

inline void Records::abort(const echo_run &run) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        landing_.give(run.slot, run.count);
        starved_ = false;
    }
    items_->space_.notify(INT_MAX), items_->eventfds_.signal();  // a client's abort of no rows asks for this, too
}

inline void Records::settle_locked() {
    while (!waiting_records_.empty() && insert_whole(waiting_records_.front())) waiting_records_.pop_front();
    waiting_.store(waiting_records_.size(), std::memory_order_relaxed);
    if (waiting_records_.empty()) wanted_.store(0, std::memory_order_relaxed);
}

inline bool Records::insert_whole(const WholeRecord &record) {
    echo_run run;
    RecordRow made;
    const int status = reserve(record.size, &run, &made);
    if (status == ECHO_CLOSED) return true;  // nobody will draw it any more
    if (status != ECHO_OK) {
        wanted_.store(Pages::of(record.size), std::memory_order_relaxed);
        return false;
    }
    Pages::Cursor(pages_, made.first).write(record.bytes.get(), record.size);
    finish(run, record.header, made, nullptr);
    return true;
}

inline bool Records::insert_chunks(const char *const *chunks, uint32_t n, const RecordHeader &header, uint64_t size) {
    echo_run run;
    RecordRow made;
    if (reserve(size, &run, &made) != ECHO_OK) return false;
    Pages::Cursor to(pages_, made.first);
    for (uint32_t i = 0; i < n; ++i) {
        uint32_t used;
        std::memcpy(&used, chunks[i], sizeof used);
        const uint32_t from = i == 0 ? sizeof(RecordHeader) : 0;
        to.write(chunks[i] + sizeof(ChunkHead) + from, used - from);
    }
    finish(run, header, made, nullptr);
    return true;
}

inline int Records::insert(const RecordHeader &header, const char *const *from, uint64_t *key) {
    const uint64_t size = layout_.bytes_of(header.lengths);
    echo_run run;
    RecordRow made;
    if (waiting_.load(std::memory_order_relaxed)) {  // records that came first enter first
        settle();
        if (waiting_.load(std::memory_order_relaxed)) return closed() ? ECHO_CLOSED : ECHO_FULL;
    }
    const int status = reserve(size, &run, &made);
    if (status != ECHO_OK) return status;
    Pages::Cursor to(pages_, made.first);
    for (size_t leaf = 0; leaf < layout_.leaves.size(); ++leaf) to.write(from[leaf], layout_.leaves[leaf].bytes_of(header.lengths));
    finish(run, header, made, key);
    return ECHO_OK;
}

inline int Records::wait_room(const uint32_t *lengths, int64_t timeout_ns) {
    const uint32_t wanted = Pages::of(layout_.bytes_of(lengths));
    const auto ready = [this, wanted] {
        if (closed()) return true;
        settle();
        return waiting_.load(std::memory_order_relaxed) == 0 && has_room(wanted);
    };
    if (waiting_.load(std::memory_order_relaxed) == 0) wanted_.store(wanted, std::memory_order_relaxed);
    const bool space = items_->space_.wait(ready, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    if (waiting_.load(std::memory_order_relaxed) == 0) wanted_.store(0, std::memory_order_relaxed);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

// Whether a record of so many pages finds room now, or could by evictions.
inline bool Records::has_room(uint32_t wanted) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    Table &items = *items_;
    if (items.paused_ || items.held_ || items.preserved_.full() || items.limiter_.room(1, items.size_) == 0) return false;
    const bool fits = items.arrivals_.used() < items.capacity_ && pages_.free() >= wanted;
    return fits || items.detached_ || (!items.queue_ && items.can_evict());
}

// Removes items until so many pages are free. The caller holds the table's mutex.
inline bool Records::make_room(uint32_t wanted) {
    while (pages_.free() < wanted) {
        uint32_t row;
        if (items_->queue_ || !items_->victim(&row)) return false;
        items_->evict(&row, 1);
        items_->arrivals_.erase(row);
    }
    return true;
}

inline int Records::reserve(uint64_t bytes, echo_run *run, RecordRow *out) {
    const uint32_t wanted = Pages::of(bytes);
    std::lock_guard<std::mutex> lock(items_->mutex_);
    Table &items = *items_;
    if (items.closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (items.paused_ || items.held_ || items.limiter_.room(1, items.size_) == 0 || (items.queue_ && pages_.free() < wanted)) {
        ++items.push_blocked_;
        return ECHO_FULL;
    }
    const int status = items.claim_locked(1, run);
    if (status != ECHO_OK) return status;
    if (!make_room(wanted)) {
        items.arrivals_.erase(run->slot);
        --items.limiter_.pending;
        ++items.push_blocked_;
        return ECHO_FULL;
    }
    pages_.take(wanted, &out->first, &out->last);
    out->bytes = bytes;
    std::atomic_thread_fence(std::memory_order_release);  // SYNC generation: if a reader copies bytes after the first write, it drops them
    return ECHO_OK;
}

inline void Records::finish(const echo_run &run, const RecordHeader &header, RecordRow made, uint64_t *key) {
    std::copy(header.lengths, header.lengths + MOST_AXES, made.lengths);
    copy_racing_out(items_->rows_.at(0, run.slot), reinterpret_cast<const char *>(&made), sizeof made);
    count_rows(made, 1);
    for (size_t axis = 0; axis < layout_.most.size(); ++axis) rows_in_[axis].fetch_add(made.lengths[axis], std::memory_order_relaxed);
    const Incoming label{header.priority, header.version};
    double priority = label.value();
    Table::Known known;
    known.version = label.version;
    if (!label.good(items_->refuses_zero_)) {
        known.bad.emplace_back(run.slot, priority);
        priority = 0;
    }
    const bool chosen = label.priority == Incoming::kNone;
    items_->finish_commit(run, chosen ? nullptr : &priority, &known, key);
}

inline void Records::gone(uint32_t of) {
    const RecordRow &was = *row(of);
    pages_.give(Pages::of(was.bytes), was.first, was.last);
}

inline void Records::place_record(uint32_t of, const uint32_t *lengths, const char *from, bool drawable) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    RecordRow &to = *row(of);
    std::copy(lengths, lengths + MOST_AXES, to.lengths);
    to.bytes = layout_.bytes_of(lengths);
    pages_.take(Pages::of(to.bytes), &to.first, &to.last);
    Pages::Cursor(pages_, to.first).write(from, to.bytes);
    if (drawable) count_rows(to, 1);
}

inline RecordCounters Records::counters() {
    std::lock_guard<std::mutex> lock(mutex_);
    std::lock_guard<std::mutex> items(items_->mutex_);
    RecordCounters out = {pages_.count(), pages_.free(), assembly_.incomplete, assembly_.refused, assembly_.open(), assembly_.held(),
                          waiting_records_.size(), {}, {}, {}};
    for (size_t axis = 0; axis < MOST_AXES; ++axis) {
        out.rows[axis] = rows_[axis].load(std::memory_order_relaxed);
        out.rows_in[axis] = rows_in_[axis].load(std::memory_order_relaxed), out.rows_out[axis] = rows_out_[axis].load(std::memory_order_relaxed);
    }
    return out;
}

}  // namespace echo::replay

#include "packed_draw.hpp"
