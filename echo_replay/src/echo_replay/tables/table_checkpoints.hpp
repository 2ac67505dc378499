// Table, for checkpoints: it is paused while its state is copied, and a new table starts from that state.
#pragma once

namespace echo::replay {

inline void Table::pause() {
    std::unique_lock<std::mutex> lock(mutex_);
    resumed_.wait(lock, [this] { return !paused_; });
    paused_ = true;
}

inline void Table::resume() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        paused_ = false;
        for (const Deferred &late : deferred_)
            commit_locked(late.run, late.known.priorities.empty() ? nullptr : late.known.priorities.data(), late.known);
        deferred_.clear();
    }
    resumed_.notify_all();
    if (follower_) follower_->resumed();
    after_insert();
}

inline void Table::restore(const uint32_t *order, uint32_t n, const uint32_t *generations, const uint32_t *high, const uint32_t *times,
                           const uint64_t *versions, uint64_t policy_version, const uint32_t *unacknowledged, uint32_t unacknowledged_n, uint64_t inserts,
                           uint64_t samples) {
    std::lock_guard<std::mutex> lock(mutex_);
    generations_.begin_restore();
    uses_left_ = 0;
    versions_.clear();
    versions_.publish(policy_version);
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t row = order[i];
        generations_.restore(row, generations[row], high[row]);
        log_.set_known(row, generations[row]);
        if (versions_.kept()) versions_.insert(row, versions[row]);
        if (!max_times_) continue;
        times_[row] = times ? times[row] : 0;
        uses_left_ += max_times_ - times_[row];
    }
    arrivals_.restore(order, n);
    size_ = n;
    limiter_.inserts = int64_t(inserts), limiter_.samples = int64_t(samples), limiter_.pending = 0;
    // Unacknowledged items are given out first. Neither the sampler nor the versions contain them; uses_left_ counts each as an item that can be drawn.
    for (uint32_t i = 0; i < unacknowledged_n; ++i) {
        unacknowledged_.give_out_again(unacknowledged[i]);
        if (versions_.kept()) versions_.remove(unacknowledged[i]);
        times_[unacknowledged[i]] = max_times_;
        ++uses_left_, ++redelivered_;
    }
    // The rest of the difference belongs to items that had been removed before.
    if (queue_) limiter_.spared = std::max<int64_t>(0, limiter_.inserts - limiter_.samples - int64_t(uses_left_));
    log_.clear();
}

inline size_t Table::copy_some(const uint32_t *rows, size_t n, Batch *batch) {
    size_t wanted = 0, kept = 0;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        for (size_t i = 0; i < n; ++i)
            if (preserved_.left(rows[i])) batch->rows[wanted++] = rows[i];
    }
    rows_.gather(batch->rows, wanted, batch->leaf.data());
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < wanted; ++i) {
        // If a writer was about to change the row, it has put the row aside, and this copy is dropped.
        if (!preserved_.settle(batch->rows[i])) continue;
        for (uint32_t leaf = 0; kept < i && leaf < rows_.leaves(); ++leaf) {
            const size_t bytes = rows_.leaf_bytes(leaf);
            std::memcpy(batch->leaf[leaf] + kept * bytes, batch->leaf[leaf] + i * bytes, bytes);
        }
        batch->rows[kept++] = batch->rows[i];
    }
    return kept;
}

inline bool Table::take_preserved(std::vector<uint32_t> *rows, std::unique_ptr<char[]> *bytes) {
    bool some;
    {
        std::lock_guard<std::mutex> lock(mutex_);
        some = preserved_.take(rows, bytes);
    }
    if (some) after_pause();
    return some;
}

inline void Table::end_copy() {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        preserved_.end();
    }
    after_pause();
}

}  // namespace echo::replay
