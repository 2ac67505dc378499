// Table, the learners' side: rows are drawn under the mutex and gathered without it. If a writer overwrites a row meanwhile, another is drawn instead.
#pragma once

namespace echo::replay {

// Counts one more use of a row against max_times_sampled. Returns false if the row has no use left, because an earlier draw of this batch took the last.
inline bool Table::use(Batch *batch, uint32_t row) {
    if (times_[row] >= max_times_) return false;
    --uses_left_;
    if (++times_[row] == max_times_) {
        forget(&row, 1);
        leave(batch, row);
    }
    return true;
}

// The row is drawn for the last time, and is removed when the batch is gathered. In a queue with lease_timeout it is unacknowledged from
// now on, so that a checkpoint that is taken meanwhile contains it as well.
inline void Table::leave(Batch *batch, uint32_t row) {
    batch->ending.push_back(row);
    if (unacknowledged_.any()) unacknowledged_.give_out(row, now_ns(), batch->borrower);
}

inline Answer Table::draw_locked(Batch *batch, uint32_t first, uint32_t n) {
    uint32_t *const rows = batch->rows + first;
    double *const probabilities = batch->probabilities + first;
    uint32_t got = 0;
    batch->mass = mass_locked();
    for (; unacknowledged_.any() && got < n && unacknowledged_.take(&rows[got]); ++got) {
        probabilities[got] = 1;
        --size_, --uses_left_;
        leave(batch, rows[got]);
    }
    while (got < n) {
        const size_t drawn = sampler_->sample(sampler_->state, random_, n - got, rows + got, probabilities + got);
        if (drawn == 0) return kNothing;
        if (!max_times_) return kDrawn;
        uint32_t kept = got;
        for (uint32_t i = got; i < got + drawn; ++i) {
            if (!use(batch, rows[i])) continue;  // draw another, now that the sampler no longer has this row
            rows[kept] = rows[i], probabilities[kept] = probabilities[i];
            ++kept;
        }
        got = kept;
    }
    return kDrawn;
}

// Draws another item for batch->torn[torn]. This is for items with several uses and a sampler that gives every item once per batch, so it
// must be an item that the batch does not have. It draws as many different items as a batch has; at least one of them is new.
inline Answer Table::draw_another(Batch *batch, size_t torn) {
    const uint32_t at = batch->torn[torn];
    std::vector<uint32_t> had(batch->rows, batch->rows + batch->n);
    for (size_t i = batch->torn.size(); i-- > torn;) had.erase(had.begin() + batch->torn[i]);  // without the places that are still to be drawn again
    std::sort(had.begin(), had.end());
    const size_t wanted = std::min<size_t>(batch->n, sampler_->count(sampler_->state));
    std::vector<uint32_t> rows(wanted);
    std::vector<double> probabilities(wanted);
    if (wanted == 0 || sampler_->sample(sampler_->state, random_, wanted, rows.data(), probabilities.data()) == 0) return kNothing;
    for (size_t i = 0; i < wanted; ++i) {
        if (std::binary_search(had.begin(), had.end(), rows[i]) || !use(batch, rows[i])) continue;
        batch->rows[at] = rows[i], batch->probabilities[at] = probabilities[i];
        return kDrawn;
    }
    return kNothing;
}

inline Answer Table::draw(Batch *batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.load(std::memory_order_relaxed)) return kClosed;
    expire_unacknowledged();
    if (!can_sample_locked(uint32_t(batch->n))) return kWait;
    limiter_.samples += int64_t(batch->n);
    ++batches_drawn_;
    if (draw_locked(batch, 0, uint32_t(batch->n)) != kDrawn) return uncount_locked(batch);
    // label() waits for generations to arrive from memory. Meanwhile the rows of a batch of usual size are prefetched for the gather.
    constexpr uint32_t kAhead = 16, kBatch = 512;
    const uint32_t n = uint32_t(batch->n), near = n <= kBatch ? n : 0;
    for (uint32_t i = 0; i < kAhead && i < n; ++i) generations_.prefetch(batch->rows[i]);
    for (uint32_t i = 0; i < n; ++i) {
        if (i + kAhead < n) generations_.prefetch(batch->rows[i + kAhead]);
        if (i < near) rows_.prefetch(batch->rows[i]);
        label(batch, i);
    }
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
        // The sampler drew from what it knew. If that item has left its row by now, the draw is void (1), and label() must not look at the row.
        if (log_.known(row) == generations_.of(row) && (!max_times_ || use(batch, row))) label(batch, i);
        else batch->generations[i] = 1;
    }
    return kDrawn;
}

template <class Copy>
inline void Table::copy_steady(Copy copy) {
    for (int turn = 0; turn < kPolite; ++turn) {
        const uint64_t before = rewrites_.load(std::memory_order_acquire);  // SYNC rewrite
        copy();
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC generation, SYNC rewrite
        if ((before & 1) == 0 && rewrites_.load(std::memory_order_relaxed) == before) return;
    }
    std::lock_guard<std::mutex> lock(mutex_);
    copy();
}

// Fills batch->torn with the places whose rows were overwritten since they were drawn.
inline void Table::find_torn(Batch *batch) {
    batch->torn.clear();
    for (uint32_t i = 0; i < batch->n; ++i)
        if (!whole(batch, i)) batch->torn.push_back(i);
}

inline uint32_t Table::gather(Batch *batch) {
    copy_steady([&] { copy_rows(batch); });
    find_torn(batch);
    count_redrawn(batch->torn.size());
    return uint32_t(batch->torn.size());
}

inline uint32_t Table::mend(Batch *batch) {
    copy_steady([&] { copy_torn(batch); });
    size_t kept = 0;
    for (uint32_t i : batch->torn)
        if (!whole(batch, i)) batch->torn[kept++] = i;
    batch->torn.resize(kept);
    count_redrawn(kept);
    return uint32_t(kept);
}

inline Answer Table::sample(Batch *batch) {
    bool all = redraws_all();
    Answer answer = draw(batch);
    uint32_t torn = answer == kDrawn ? gather(batch) : 0;
    for (int turn = 0; answer == kDrawn && torn != 0; ++turn) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        // A follower gathers a whole batch or nothing, so the complete rows are checked again each time, and the last time all rows are drawn again.
        all = all || (follower_ && !max_times_ && turn >= kPolite);
        // If uses are counted, the complete rows stay and are copied once more below. Rows that were overwritten since are drawn again as well.
        if (follower_ && !all && turn >= kPolite) find_torn(batch);
        if (all) {
            answer = draw_locked(batch, 0, uint32_t(batch->n));
            for (uint32_t i = 0; answer == kDrawn && i < batch->n; ++i) label(batch, i);
        }
        for (size_t k = 0; !all && answer == kDrawn && k < batch->torn.size(); ++k) {
            answer = replacement_ || max_times_ == 1 ? draw_locked(batch, batch->torn[k], 1) : draw_another(batch, k);
            if (answer == kDrawn) label(batch, batch->torn[k]);  // otherwise the place still has the row of an item that is gone
        }
        if (answer == kNothing) answer = uncount_locked(batch);
        if (answer != kDrawn) break;
        const bool whole_batch = all || follower_;
        if (turn >= kPolite) {  // writers wait: none can claim, and every row that can be drawn is committed
            if (whole_batch) copy_rows(batch);
            else copy_torn(batch);
            break;
        }
        lock.unlock();
        torn = whole_batch ? gather(batch) : mend(batch);
    }
    finish(batch, answer == kDrawn);
    return answer;
}

inline void Table::uncount(const Batch *batch) {
    std::lock_guard<std::mutex> lock(mutex_);
    uncount_locked(batch);
}

// The caller still holds the lock under which nothing was drawn. So an item that arrives a moment later cannot be mistaken for one that the
// sampler had and did not draw.
inline Answer Table::uncount_locked(const Batch *batch) {
    limiter_.samples -= int64_t(batch->n);
    --batches_drawn_;
    return can_sample_locked(uint32_t(batch->n)) ? kNothing : kWait;
}

inline void Table::finish(Batch *batch, bool delivered) {
    if (!batch->ending.empty()) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        for (uint32_t row : batch->ending) {
            if (!unacknowledged_.any()) {
                vacate(row);
                arrivals_.erase(row);
            } else if (delivered) {
                unacknowledged_.hand_over(row);
            } else if (unacknowledged_.revoke(row)) {
                ++size_, ++uses_left_;
            } else {
                ++limiter_.samples;  // the item was taken back meanwhile, so it was uncounted twice
            }
        }
        if (!unacknowledged_.any()) deleted_ += batch->ending.size();
        batch->ending.clear();
    }
    if (delivered) after_space();
    else after_insert();  // what was counted, or came back, may be enough for a smaller batch
}

inline bool Table::wait_ready(uint32_t n, int64_t timeout_ns) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        waiting_.push_back(n);
    }
    const int64_t left = first_return();  // an item may come back before anything is inserted
    if (left >= 0 && (timeout_ns < 0 || left < timeout_ns)) timeout_ns = left;
    const bool ready = ready_.wait([&] { return closed() || can_sample(n); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), n));
    return ready;
}

// Learners look for items under the mutex, under which items arrive, after they have announced themselves. So either they see the items, or
// after_insert() sees them.
inline bool Table::arm_ready(int eventfd, uint32_t n) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        waiting_.push_back(n);
    }
    ready_eventfds_.arm(eventfd);
    if (!closed() && !can_sample(n)) return false;
    disarm_ready(eventfd, n);
    return true;
}

inline void Table::disarm_ready(int eventfd, uint32_t n) {
    ready_eventfds_.disarm(eventfd);
    std::lock_guard<std::mutex> lock(mutex_);
    waiting_.erase(std::find(waiting_.begin(), waiting_.end(), n));
}

inline int64_t Table::first_return() {
    if (!unacknowledged_.any()) return -1;
    std::lock_guard<std::mutex> lock(mutex_);
    const int64_t end = unacknowledged_.first_end();
    return end == INT64_MAX ? -1 : std::max<int64_t>(0, end - now_ns());
}

inline void Table::expire_unacknowledged() {
    if (!unacknowledged_.any() || paused_) return;
    const uint64_t expired = unacknowledged_.expire(now_ns());
    size_ += int64_t(expired), uses_left_ += expired, redelivered_ += expired;
    limiter_.samples -= int64_t(expired);
}

inline uint64_t Table::take_back(uint64_t borrower) {
    if (!unacknowledged_.any()) return 0;
    uint64_t taken;
    {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        taken = unacknowledged_.take_back(borrower);
        size_ += int64_t(taken), uses_left_ += taken, redelivered_ += taken;
        limiter_.samples -= int64_t(taken);
    }
    if (taken) after_insert();  // learners may wait for the items that came back
    return taken;
}

inline void Table::weigh(Batch *batch, double beta) const {
    const uint64_t n = batch->n;
    importance_weights(batch->probabilities, n, beta, batch->weights);
    if (versions_.kept() && versions_.limits().weight != 1)
        for (uint64_t i = 0; i < n; ++i) batch->weights[i] *= float(versions_.weight(batch->versions[i]));
}

}  // namespace echo::replay
