// A table of records: samples of varying length. The items of a replay table (table.hpp) say where the bytes of their records are.
//
// * Transports put chunks into a landing area. Chunks become records outside the table, in a buffer of their client (assembly.hpp), so a record enters
//   the table whole or not at all, and a client that sends slowly holds up nobody.
// * A record's bytes are in pages (pages.hpp), which are free at once when its item is removed, no matter who removes it.
// * A complete record that finds no room waits, and new chunks with it. A queue evicts nothing, and other tables evict by their remover. Its client
//   has been told that it is stored, so checkpoints contain it.
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
#include "store/door/door.hpp"
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
    // Takes in chunks that lie side by side in the caller's memory, without a claim. ECHO_OK: the first *taken of them, at least one. A record whose
    // end is not among them is left to the next call if others could be taken.
    int put(const char *chunks, uint32_t n, uint32_t *taken);
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

    // The clients from which chunks have come, until they are forgotten.
    std::vector<uint64_t> clients() {
        std::lock_guard<std::mutex> lock(mutex_);
        return assembly_.clients();
    }
    // The half-sent records of all clients together take no more bytes: further ones are refused.
    void limit_half_sent(uint64_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        assembly_.limit = bytes;
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
    // The records that wait for room, one after another: each one's header and bytes.
    std::vector<char> waiting_records();
    // Adds one that waits. It enters the table at the next settle() that finds room.
    void add_waiting(const RecordHeader &header, const char *from);

    // ---- the table tells: its mutex is held --------------------------------------------------------------------------------------
    void gone(uint32_t row) override;
    void forgotten(const uint32_t *rows, size_t n) override {
        for (size_t i = 0; i < n; ++i) count_rows(*row(rows[i]), -1);
    }

    // ---- the table tells: its mutex is not held ----------------------------------------------------------------------------------
    // Otherwise a record that came during the pause would wait until another one comes, and learners with it.
    void resumed() override {
        if (waiting_.load(std::memory_order_relaxed)) settle();
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
    // A record on its way into the table: reserve() gives it a row and pages, its bytes are copied, and finish() makes it an item.
    struct Arriving {
        RecordHeader header;
        uint64_t size, client;
        const char *chunks;
        uint32_t count;
        echo_run run;
        RecordRow row;
    };
    static constexpr size_t kTogether = 64;  // records that enter the table under one lock

    // Reserves for the first of n records, in order, as long as there is room. Returns how many; *status says why it was not more.
    size_t reserve(Arriving *records, size_t n, int *status);
    int reserve_locked(Arriving *record);
    bool has_room(uint32_t wanted);
    bool make_room(uint32_t wanted);
    void finish(const Arriving *records, size_t n, uint64_t *key);
    void settle_locked();
    bool insert_whole(const WholeRecord &record);
    // Takes in chunks side by side. `all`: otherwise it ends before a record whose end is missing, unless that is the first one. Returns how many.
    uint32_t take_in(const char *chunks, uint32_t n, bool all);
    // Takes in whole records, from the first chunk on, copied from their chunks to their pages. Returns the number of their chunks.
    uint32_t take_whole(const char *chunks, uint32_t n);
    uint32_t take_parts(const char *chunks, uint32_t n);
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
    take_in(landing_.at(run.slot), run.count, true);
    bool starved;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        landing_.give(run.slot, run.count);
        starved = std::exchange(starved_, false);
    }
    // Sleepers look for a free row under the mutex, after they have announced themselves. So either they see these rows, or we see them.
    if (starved) items_->space_.notify(INT_MAX), items_->eventfds_.signal();
}

inline int Records::put(const char *chunks, uint32_t n, uint32_t *taken) {
    if (closed()) return ECHO_CLOSED;
    if (waiting_.load(std::memory_order_relaxed)) {
        settle();
        if (waiting_.load(std::memory_order_relaxed)) {
            std::lock_guard<std::mutex> items(items_->mutex_);
            ++items_->push_blocked_;
            return ECHO_FULL;
        }
    }
    *taken = take_in(chunks, n, false);
    return ECHO_OK;
}

inline uint32_t Records::take_in(const char *chunks, uint32_t n, bool all) {
    for (uint32_t at = 0; at < n;) {
        const uint32_t whole = take_whole(chunks + at * CHUNK_BYTES, n - at);
        if (whole == 0 && at != 0 && !all) return at;
        at += whole ? whole : take_parts(chunks + at * CHUNK_BYTES, n - at);
    }
    return n;
}

inline uint32_t Records::take_whole(const char *chunks, uint32_t n) {
    Arriving records[kTogether];
    size_t found = 0;
    uint32_t at = 0;
    for (; found < kTogether && at < n; at += records[found++].count) {
        Arriving &one = records[found];
        one.chunks = chunks + at * CHUNK_BYTES;
        one.count = assembly_.whole_within(one.chunks, n - at, &one.header, &one.size, &one.client);
        if (one.count == 0) break;
    }
    if (found == 0) return 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (!waiting_records_.empty()) return 0;  // records that came first enter first
        for (size_t i = 0; i < found; ++i)
            if (i == 0 || records[i].client != records[i - 1].client) assembly_.came_whole(records[i].client);
    }
    int status;
    const size_t n_reserved = reserve(records, found, &status);
    uint32_t taken = 0;
    for (size_t i = 0; i < n_reserved; ++i) {
        const Arriving &one = records[i];
        Pages::Cursor to(pages_, one.row.first);
        constexpr uint64_t kHeads = sizeof(ChunkHead) + sizeof(RecordHeader);
        uint64_t some = std::min<uint64_t>(one.size, CHUNK_BYTES - kHeads);
        to.write(one.chunks + kHeads, some);
        const char *from = one.chunks + CHUNK_BYTES + sizeof(ChunkHead);
        for (uint64_t left = one.size - some; left != 0; left -= some, from += CHUNK_BYTES)
            to.write(from, some = std::min<uint64_t>(left, CHUNK_PAYLOAD));
        taken += one.count;
    }
    if (n_reserved) finish(records, n_reserved, nullptr);
    return taken;
}

// Takes in chunks by way of their client's buffer, up to where the next record begins.
inline uint32_t Records::take_parts(const char *chunks, uint32_t n) {
    std::lock_guard<std::mutex> lock(mutex_);
    uint32_t at = 0;
    do {
        WholeRecord record;
        if (assembly_.add(chunks + at * CHUNK_BYTES, &record)) {
            waiting_records_.push_back(std::move(record));
            waiting_.store(waiting_records_.size(), std::memory_order_relaxed);
            settle_locked();
        }
    } while (++at < n && !Assembly::begins(chunks + at * CHUNK_BYTES));
    return at;
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
    Arriving one;
    one.header = record.header, one.size = record.size;
    int status;
    if (reserve(&one, 1, &status) == 0) {
        if (status == ECHO_CLOSED) return true;  // nobody will draw it any more
        wanted_.store(Pages::of(record.size), std::memory_order_relaxed);
        return false;
    }
    Pages::Cursor(pages_, one.row.first).write(record.bytes.get(), record.size);
    finish(&one, 1, nullptr);
    return true;
}

inline int Records::insert(const RecordHeader &header, const char *const *from, uint64_t *key) {
    if (waiting_.load(std::memory_order_relaxed)) {  // records that came first enter first
        settle();
        if (waiting_.load(std::memory_order_relaxed)) return closed() ? ECHO_CLOSED : ECHO_FULL;
    }
    Arriving one;
    one.header = header, one.size = layout_.bytes_of(header.lengths);
    int status;
    if (reserve(&one, 1, &status) == 0) return status;
    Pages::Cursor to(pages_, one.row.first);
    for (size_t leaf = 0; leaf < layout_.leaves.size(); ++leaf) to.write(from[leaf], layout_.leaves[leaf].bytes_of(header.lengths));
    finish(&one, 1, key);
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

inline size_t Records::reserve(Arriving *records, size_t n, int *status) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    size_t done = 0;
    while (done < n && (*status = reserve_locked(&records[done])) == ECHO_OK) ++done;
    std::atomic_thread_fence(std::memory_order_release);  // SYNC generation: if a reader copies bytes after the first write, it drops them
    return done;
}

inline int Records::reserve_locked(Arriving *record) {
    const uint32_t wanted = Pages::of(record->size);
    Table &items = *items_;
    if (items.closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (items.paused_ || items.held_ || items.limiter_.room(1, items.size_) == 0 || (items.queue_ && pages_.free() < wanted)) {
        ++items.push_blocked_;
        return ECHO_FULL;
    }
    const int status = items.claim_locked(1, &record->run);
    if (status != ECHO_OK) return status;
    if (!make_room(wanted)) {
        items.arrivals_.erase(record->run.slot);
        --items.limiter_.pending;
        ++items.push_blocked_;
        return ECHO_FULL;
    }
    RecordRow &row = record->row;
    row.first = pages_.take(wanted);
    std::copy(record->header.lengths, record->header.lengths + MOST_AXES, row.lengths);
    row.bytes = record->size;
    return ECHO_OK;
}

// The bytes are in their pages: the records become items.
inline void Records::finish(const Arriving *records, size_t n, uint64_t *key) {
    uint64_t sums[MOST_AXES] = {};
    for (size_t i = 0; i < n; ++i) {
        copy_racing_out(items_->rows_.at(0, records[i].run.slot), reinterpret_cast<const char *>(&records[i].row), sizeof(RecordRow));
        for (size_t axis = 0; axis < layout_.most.size(); ++axis) sums[axis] += records[i].row.lengths[axis];
    }
    for (size_t axis = 0; axis < layout_.most.size(); ++axis) {
        rows_[axis].fetch_add(int64_t(sums[axis]), std::memory_order_relaxed);
        rows_in_[axis].fetch_add(sums[axis], std::memory_order_relaxed);
    }
    {
        std::lock_guard<std::mutex> lock(items_->mutex_);
        for (size_t i = 0; i < n; ++i) {
            const Incoming label{records[i].header.priority, records[i].header.version};
            const bool chosen = label.priority == Incoming::kNone;
            echo_run run = records[i].run;
            Table::Known known;
            known.version = label.version;
            double priority = label.value();
            if (!label.good(items_->refuses_zero_)) {
                known.bad.emplace_back(run.slot, priority);
                priority = 0;
            }
            // Records whose rows are side by side, and that say nothing different about themselves, are reported together.
            for (; chosen && i + 1 < n && records[i + 1].run.slot == run.slot + run.count && records[i + 1].header.priority == Incoming::kNone &&
                   records[i + 1].header.version == label.version;
                 ++i)
                ++run.count;
            items_->finish_commit_locked(run, chosen ? nullptr : &priority, &known, key);
        }
    }
    items_->after_insert();
}

inline void Records::gone(uint32_t of) {
    const RecordRow &was = *row(of);
    pages_.give(Pages::of(was.bytes), was.first);
}

inline void Records::place_record(uint32_t of, const uint32_t *lengths, const char *from, bool drawable) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    RecordRow &to = *row(of);
    std::copy(lengths, lengths + MOST_AXES, to.lengths);
    to.bytes = layout_.bytes_of(lengths);
    to.first = pages_.take(Pages::of(to.bytes));
    Pages::Cursor(pages_, to.first).write(from, to.bytes);
    if (drawable) count_rows(to, 1);
}

inline std::vector<char> Records::waiting_records() {
    std::lock_guard<std::mutex> lock(mutex_);
    uint64_t total = 0;
    for (const WholeRecord &record : waiting_records_) total += sizeof record.header + record.size;
    std::vector<char> out(total);
    char *to = out.data();
    for (const WholeRecord &record : waiting_records_) {
        std::memcpy(to, &record.header, sizeof record.header);
        std::memcpy(to + sizeof record.header, record.bytes.get(), record.size);
        to += sizeof record.header + record.size;
    }
    return out;
}

inline void Records::add_waiting(const RecordHeader &header, const char *from) {
    WholeRecord record;
    record.header = header, record.size = layout_.bytes_of(header.lengths);
    record.bytes.reset(new char[record.size ? record.size : 1]);
    std::memcpy(record.bytes.get(), from, record.size);
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_records_.push_back(std::move(record));
    waiting_.store(waiting_records_.size(), std::memory_order_relaxed);
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

// What transports hold of a table of records. It spares a copy where they have the chunks in memory of their own.
class RecordsDoor final : public DoorTo<Records> {
public:
    using DoorTo::DoorTo;

    int put(const void *const *leaves, uint32_t n, uint32_t *taken) override { return store_->put(static_cast<const char *>(leaves[0]), n, taken); }
};

// One reference belongs to the caller.
inline Door *open_records(Records *records) { return new RecordsDoor(records); }

}  // namespace echo::replay

#include "packed_draw.hpp"
