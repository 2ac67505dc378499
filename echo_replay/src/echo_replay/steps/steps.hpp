// The steps under a table of items: every worker sends each step once, and the items of the table (table.hpp) refer to spans of them.
//
// * Steps are in one circle, and the oldest is removed first. Their numbers only grow: a step is there as long as its number is not below
//   `head_`. Steps of different workers alternate. The steps of one episode form a chain: each step knows the row of the next one.
// * The first leaf of a step is its mark (echo_core/steps/steps.py): its stream, its number there, and whether the episode ends.
//   Once the step is committed, the mark's memory holds its link in the chain, so that chains and the way back to the items cost no memory.
// * An item is found through its anchor. Before a step is overwritten, the items that contain it are removed, which advances their generations.
//   A batch that is being gathered finds this out as it does for rows, and draws again.
//
// Locks: the mutex of Steps is taken first, then that of the table. The gather takes none (window_gather.hpp).
#pragma once

#include <atomic>
#include <deque>
#include <limits>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "item_cutter.hpp"
#include "slices.hpp"
#include "../tables/table.hpp"
#include "window_gather.hpp"

namespace echo::replay {

struct StepCounters {
    uint64_t steps, held, streams, episodes, truncated, backlog;
};

// Everything that Steps knows of its steps, except their bytes; for checkpoints.
struct StepsImage {
    uint64_t head, tail, steps, episodes, truncated;
    std::vector<uint8_t> states;    // for the steps from head to tail
    std::vector<Link> links;
    std::vector<uint64_t> streams;  // one after another: id, next word, run, steps, next anchor, count of the numbers that follow, those numbers
    std::vector<Made> backlog;
    std::vector<uint64_t> runs;  // for slices, one after another: id, number of steps that are gone, and whether it is closed (1) and retired (2)
};

class Steps final : public Follower {
public:
    // initial: see Rows. leaf_bytes: those of a step, with its mark first. items: the table of items, whose batches have the leaves that `view` fills.
    Steps(const std::vector<uint64_t> &leaf_bytes, uint64_t capacity, const Cut &cut, const View &view, Table *items, int fd,
          uint64_t initial = UINT64_MAX)
        : capacity_(uint32_t(capacity)), cut_(cut), rows_(leaf_bytes, capacity, fd, false, initial), items_(items),
          windows_(rows_, capacity_, cut, view), slices_(cut.lookback, cut.forward, cut.pad, cut.by_steps ? items->capacity() : 0) {
        for (uint64_t bytes : leaf_bytes) sample_bytes_ += bytes;
        state_ = std::make_unique<std::atomic<uint8_t>[]>(capacity);
        for (uint64_t row = 0; row < capacity; ++row) state_[row].store(kFree, std::memory_order_relaxed);
        windows_.states = state_.get();
        items_->retain();
        items_->follow(this);
    }
    ~Steps() override { items_->release(); }
    Steps(const Steps &) = delete;
    Steps &operator=(const Steps &) = delete;

    void retain() { references_.fetch_add(1, std::memory_order_relaxed); }
    void release() {
        if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
    }

    // ---- writers: as Table's -------------------------------------------------------------------------------------------------
    int claim(uint32_t wanted, echo_run *out);
    uint64_t rows_ready() const { return rows_.ready(); }
    char *leaf(const echo_run &run, uint32_t leaf) const { return rows_.at(leaf, run.slot); }
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

    // Call this when a worker is gone: its streams are those whose numbers, divided by 2^16, are `client`. Their open episodes end as
    // truncated. Returns how many there were.
    size_t end_streams(uint64_t client);

    // ---- learners ------------------------------------------------------------------------------------------------------------
    void gather(Batch *batch) const override { windows_.gather(batch); }
    void choose(Batch *batch, uint32_t i, bitgen_t *random) override;
    double mass(double mass) const override { return cut_.slices && cut_.by_steps ? double(slices_.weights().total()) : mass; }
    bool whole(const Batch *batch, uint32_t i) const override {
        // An episode's item outlives the episode's oldest steps, so the slice itself has to be checked.
        return !cut_.slices || windows_.span(batch, i).first >= oldest_.load(std::memory_order_relaxed);  // SYNC generation
    }

    // ---- checkpoints: see steps_image.hpp --------------------------------------------------------------------------------------
    // Call this while the table of items is paused.
    void save(StepsImage *image);
    // Restores a new table whose items are restored already. Steps below `first` are not restored; the bytes of the others are in place.
    void restore(const StepsImage &image, uint64_t first);
    // Copies steps number..number+n of one leaf. Writers may be overwriting them: the steps that are not below head() afterwards are good.
    void copy_steps(uint32_t leaf, uint64_t number, uint64_t n, char *to) const;
    void place_steps(uint32_t leaf, uint64_t number, uint64_t n, const char *from);
    uint64_t head() {
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC generation
        std::lock_guard<std::mutex> lock(mutex_);
        return head_;
    }
    // Turns the steps that waited for the end of a pause into items.
    void flush() {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            insert_items();
        }
        items_->after_insert();
    }

    bool closed() const { return items_->closed(); }
    StepCounters counters() {
        std::lock_guard<std::mutex> lock(mutex_);
        return {steps_, tail_ - head_, open_.size(), episodes_, truncated_, backlog_.size() + waiting_.size()};
    }
    uint64_t capacity() const { return capacity_; }
    uint64_t batch_size() const { return items_->batch_size(); }
    uint32_t leaf_count() const { return rows_.leaves(); }
    uint64_t leaf_bytes(uint32_t leaf) const { return rows_.leaf_bytes(leaf); }
    uint64_t sample_bytes() const { return sample_bytes_; }

private:
    static constexpr uint32_t kNone = Link::kNone;
    static constexpr uint32_t kMost = 1024;  // the most steps of one claim, so that several writers can share a small table
    // Flags of a mark, as in echo_core/steps/steps.py.
    static constexpr uint64_t kNote = 4;       // the row is no step, only the end of the episode before it
    static constexpr uint64_t kContinues = 8;  // the stream's previous step is of the same episode

    struct Stream {
        uint64_t id = 0, next_word = 0;
        uint32_t run = 0;  // for slices
        Episode episode;
    };

    Link *link(uint64_t number) const { return windows_.link(uint32_t(number % capacity_)); }
    uint8_t state(uint64_t number) const { return state_[number % capacity_].load(std::memory_order_relaxed); }
    void set_state(uint64_t number, uint8_t value) { state_[number % capacity_].store(value, std::memory_order_relaxed); }
    uint64_t number_of(uint32_t row) const {
        const uint32_t head = uint32_t(head_ % capacity_);
        return head_ + (row >= head ? row - head : row + capacity_ - head);
    }
    int claim_locked(uint32_t wanted, echo_run *out);
    bool can_claim();
    uint32_t free_rows(uint32_t wanted);
    bool evict(uint64_t number);
    void remove_gone();
    void restore_runs(const StepsImage &image);
    bool erode(uint64_t number, uint8_t was);
    void commit_locked(const echo_run &run);
    void accept(uint64_t number);
    void end(uint32_t slot, Ends how);
    void insert_items();
    void insert_runs();
    bool idle() const { return backlog_.empty() && waiting_.empty(); }
    bool holds(uint64_t key) const {
        const uint32_t row = items_->row_of(key);
        return row < items_->capacity_ && items_->generations_.live(row) && items_->generations_.key_of(row) == key;
    }
    // The last step of an open episode is removed. The episode cannot go on without it, so the next step of its worker begins another one.
    void lose_stream(uint32_t slot) {
        ++episodes_, ++truncated_;
        forget_stream(slot);
    }
    void forget_stream(uint32_t slot) {
        open_.erase(streams_[slot].id);
        if (cut_.slices) slices_.close(streams_[slot].run);
        streams_[slot] = Stream{};
        free_streams_.push_back(slot);
    }

    const uint32_t capacity_;
    const Cut cut_;
    Rows rows_;
    Table *const items_;

public:
    std::atomic<int64_t> *const gauges = items_->gauges;  // shared by both tables
    std::atomic<uint64_t> &queue_depth_max = items_->queue_depth_max;
    Histogram &copy = items_->copy, &ingest_round = items_->ingest_round;

private:
    Windows windows_;
    std::unique_ptr<std::atomic<uint8_t>[]> state_;
    uint64_t sample_bytes_ = 0;
    std::atomic<uint32_t> references_{1};

    alignas(64) std::mutex mutex_;  // guards everything below
    uint64_t head_ = 0, tail_ = 0;  // numbers of the oldest step, and of the next one to be claimed
    uint64_t writing_ = 0;          // number of claimed rows that are not complete yet
    std::vector<Stream> streams_;   // streams with an open episode; a step knows its stream's index here
    std::vector<uint32_t> free_streams_;
    std::unordered_map<uint64_t, uint32_t> open_;  // from a stream's id to its index
    std::vector<Made> made_;
    std::vector<uint64_t> anchors_;
    std::vector<uint32_t> gone_;
    Slices slices_;                    // guarded by the table's mutex, not by this one
    std::vector<uint32_t> waiting_;    // runs that are to become items
    std::atomic<uint64_t> oldest_{0};  // the same as head_, for readers that hold no lock
    std::deque<Made> backlog_;  // items for which the table has no row yet
    uint64_t steps_ = 0, episodes_ = 0, truncated_ = 0;
};

// ---- writers -----------------------------------------------------------------------------------------------------------------

inline int Steps::claim(uint32_t wanted, echo_run *out) {
    int status;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        status = claim_locked(wanted, out);
    }
    if (status == ECHO_OK) rows_.reach(uint64_t(out->slot) + out->count);
    return status;
}

inline int Steps::claim_locked(uint32_t wanted, echo_run *out) {
    if (closed()) return ECHO_CLOSED;
    insert_items();
    const uint32_t n = idle() ? free_rows(std::min(wanted, kMost)) : 0;
    if (n == 0) {
        std::lock_guard<std::mutex> items(items_->mutex_);
        ++items_->push_blocked_;
        return ECHO_FULL;
    }
    *out = {0, uint32_t(tail_ % capacity_), n, 0};
    for (uint32_t i = 0; i < n; ++i) set_state(tail_ + i, kWriting);
    tail_ += n, writing_ += n;
    std::atomic_thread_fence(std::memory_order_release);  // SYNC generation: if a reader copies bytes after the first write, it drops them
    return ECHO_OK;
}

// Returns how many rows side by side may be written now, 1..wanted; 0: none. Removes the oldest steps to make room.
inline uint32_t Steps::free_rows(uint32_t wanted) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    if (items_->paused_ || items_->held_) return 0;
    // A step makes at most one item, except at the end of an episode. So the items of episodes that end within one run may exceed the limiter's bound.
    const int64_t room = items_->limiter_.room(wanted, items_->size_);
    if (room == 0) return 0;
    // Claimed rows take the place of the oldest steps. Their writers need the last steps of their own episodes, which would be among these if
    // the claims were large. So the steps that the open episodes may need, and at least half of the table, are never under one claim or several.
    const uint64_t needed = std::clamp<uint64_t>((open_.size() + 1) * cut_.width(), capacity_ / 2, capacity_ - 1);
    if (writing_ >= capacity_ - needed) return 0;
    uint32_t n = uint32_t(std::min<int64_t>({int64_t(wanted), room, int64_t(capacity_ - tail_ % capacity_), int64_t(capacity_ - needed - writing_)}));
    while (capacity_ - (tail_ - head_) < n && evict(head_)) ++head_;
    oldest_.store(head_, std::memory_order_relaxed);  // SYNC generation
    remove_gone();
    return uint32_t(std::min<uint64_t>(n, capacity_ - (tail_ - head_)));
}

// Removes the items in the rows `gone_`. The caller holds the table's mutex.
inline void Steps::remove_gone() {
    if (gone_.empty()) return;
    items_->forget(gone_.data(), gone_.size());
    for (uint32_t row : gone_) {
        items_->generations_.advance(row, std::memory_order_relaxed);
        items_->arrivals_.erase(row);
    }
    items_->evicted_ += gone_.size();
    gone_.clear();
}

// Removes the step, and adds every item that contains it to `gone_`. Returns false if this is not possible yet, because the step is being
// written, or an item is being gathered for the last time. The caller holds the table's mutex.
inline bool Steps::evict(uint64_t number) {
    const uint8_t was = state(number);
    if (was == kWriting) return false;
    if (was == kHole) return true;
    if (cut_.slices) return erode(number, was);
    uint64_t at = number;
    for (uint32_t i = 0; i <= cut_.lookback; ++i) {
        Link *const step = link(at);
        uint32_t row = 0;
        if (step->key != Link::kNoKey) {
            row = items_->row_of(step->key);
            if (items_->generations_.live(row) && items_->generations_.key_of(row) == step->key) {
                if (items_->leaving(row)) return false;
                gone_.push_back(row);
            }
            step->key = Link::kNoKey;
        }
        if (step->next == kNone) break;
        at = number_of(step->next);
    }
    const Link *const step = link(number);
    if (step->next == kNone && ends_of(was) == kGoesOn) lose_stream(step->stream);
    set_state(number, kFree);
    return true;
}

inline bool Steps::can_claim() {
    if (closed()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    insert_items();
    return idle() && free_rows(1) > 0;
}

inline void Steps::commit(const echo_run &run) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        commit_locked(run);
    }
    items_->after_insert();
}

inline void Steps::commit_locked(const echo_run &run) {
    const uint64_t first = number_of(run.slot);
    writing_ -= run.count;
    {
        std::unique_lock<std::mutex> items(items_->mutex_, std::defer_lock);
        if (cut_.slices) items.lock();
        for (uint32_t i = 0; i < run.count; ++i) accept(first + i);
    }
    insert_items();
}

inline void Steps::abort(const echo_run &run) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        const uint64_t first = number_of(run.slot);
        for (uint32_t i = 0; i < run.count; ++i) set_state(first + i, kHole);
        writing_ -= run.count;
        std::lock_guard<std::mutex> items(items_->mutex_);
        items_->aborted_ += run.count;
    }
    items_->after_space();
}

// A step is complete: its mark becomes its link.
inline void Steps::accept(uint64_t number) {
    const Mark mark = *windows_.mark(uint32_t(number % capacity_));
    const auto found = open_.find(mark.stream);
    uint32_t slot = found == open_.end() ? kNone : found->second;
    // There is a gap: we have lost the steps in between (this server took over from another, or the worker seemed dead and its episode was ended).
    if (slot != kNone && mark.word >> 8 != streams_[slot].next_word) end(slot, kTruncated), slot = kNone;
    const Ends how = Ends(mark.word & 3);
    if (mark.word & kNote) {
        set_state(number, kHole);
        if (slot != kNone) end(slot, how == kGoesOn ? kTruncated : how);
        return;
    }
    if (slot == kNone) {
        if (free_streams_.empty()) free_streams_.push_back(uint32_t(streams_.size())), streams_.emplace_back();
        slot = free_streams_.back();
        free_streams_.pop_back();
        streams_[slot].id = mark.stream;
        const bool begins = !(mark.word & kContinues);  // otherwise we have lost the episode's earlier steps
        if (!begins) streams_[slot].episode.go_on(cut_);
        if (cut_.slices) streams_[slot].run = slices_.open(begins);
        open_.emplace(mark.stream, slot);
    } else {
        __atomic_store_n(&link(streams_[slot].episode.last())->next, uint32_t(number % capacity_), __ATOMIC_RELAXED);
    }
    Stream &stream = streams_[slot];
    link(number)->set(slot);
    set_state(number, live_state(kGoesOn));
    if (cut_.slices) {
        Slices::Run &run = slices_.run(stream.run);
        link(number)->key = stream.run;
        slices_.add(stream.run, number);
        if (run.key == Slices::kNoKey && !run.retired && !run.waiting && slices_.starts(run) > 0) {
            run.waiting = true;
            waiting_.push_back(stream.run);
        }
    }
    stream.next_word = (mark.word >> 8) + 1;
    stream.episode.add(cut_, number, &made_);
    ++steps_;
    if (how != kGoesOn) end(slot, how);
}

inline void Steps::end(uint32_t slot, Ends how) {
    Episode &episode = streams_[slot].episode;
    set_state(episode.last(), live_state(how));
    episode.end(cut_, how, &made_);
    ++episodes_;
    truncated_ += how != kTerminated;
    forget_stream(slot);
}

inline size_t Steps::end_streams(uint64_t client) {
    std::vector<std::pair<uint64_t, uint32_t>> gone;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (const auto &[id, slot] : open_)
            if (id >> 16 == client) gone.emplace_back(id, slot);
        std::sort(gone.begin(), gone.end());  // so that the order is always the same
        std::unique_lock<std::mutex> items(items_->mutex_, std::defer_lock);
        if (cut_.slices) items.lock();
        for (const auto &[id, slot] : gone) end(slot, kTruncated);
        if (items) items.unlock();
        insert_items();
    }
    if (!gone.empty()) items_->after_insert();
    return gone.size();
}

// Finished spans become items. The table may have no row at present (its oldest item is being gathered for the last time): then the spans
// wait, and writers wait with them.
inline void Steps::insert_items() {
    if (cut_.slices) return insert_runs();
    backlog_.insert(backlog_.end(), made_.begin(), made_.end());
    made_.clear();
    if (backlog_.empty()) return;
    std::lock_guard<std::mutex> lock(items_->mutex_);
    if (items_->detached_) return backlog_.clear();
    while (!backlog_.empty()) {
        while (!backlog_.empty() && backlog_.front().span.first < head_) backlog_.pop_front();  // its first step is gone
        echo_run run;
        if (backlog_.empty() || items_->claim_locked(uint32_t(backlog_.size()), &run) != ECHO_OK) return;
        uint32_t kept = 0;
        while (kept < run.count && !backlog_.empty()) {
            const Made made = backlog_.front();
            backlog_.pop_front();
            if (made.span.first < head_) continue;
            copy_racing_out(items_->rows_.at(0, run.slot + kept), reinterpret_cast<const char *>(&made.span), sizeof(Span));
            anchors_.push_back(made.anchor);
            ++kept;
        }
        if (kept) items_->commit_locked({run.buffer, run.slot, kept, 0}, nullptr, Table::Known{});
        for (uint32_t i = 0; i < kept; ++i) link(anchors_[i])->key = items_->generations_.key_of(run.slot + i);
        anchors_.clear();
        for (uint32_t i = run.count; i-- > kept;) items_->arrivals_.erase(run.slot + i);
        items_->limiter_.pending -= run.count - kept;
    }
}

}  // namespace echo::replay

#include "steps_image.hpp"
#include "steps_slices.hpp"
