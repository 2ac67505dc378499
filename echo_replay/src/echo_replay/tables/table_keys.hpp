// Table, access by key: a caller that has the keys of items can read, change and remove them, unless they are gone.
#pragma once

namespace echo::replay {

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
        if (const uint32_t row = row_of(keys[i]); row < capacity_) generations_.prefetch(row);
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
            if (!holds(keys[i], &row)) {
                erased += unacknowledged_.any() && generations_.holds(keys[i], &row) && end_unacknowledged(row);
                continue;
            }
            forget(&row, 1);
            vacate(row);
            arrivals_.erase(row);
            ++erased;
        }
        deleted_ += erased;
    }
    after_space();
    return erased;
}

// Removes an unacknowledged item, so that nobody is given it again. Returns false if the item is not unacknowledged, or is still being gathered.
inline bool Table::end_unacknowledged(uint32_t row) {
    const Unacknowledged::Ended how = unacknowledged_.end(row);
    if (how == Unacknowledged::kNeither) return false;
    if (how == Unacknowledged::kCameBack) {  // it waited, and is not given out again after all
        --size_, --uses_left_, ++limiter_.samples;
        if (redelivered_ > 0) --redelivered_;
    }
    vacate(row);
    arrivals_.erase(row);
    return true;
}

inline uint64_t Table::acknowledge(const uint64_t *keys, size_t n) {
    uint64_t ended = 0;
    if (unacknowledged_.any()) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        for (size_t i = 0; i < n; ++i) {
            uint32_t row;
            if (generations_.holds(keys[i], &row) && end_unacknowledged(row)) ++ended;
        }
        acknowledged_ += ended, deleted_ += ended;
    }
    after_space();
    return ended;
}

inline void Table::find(const uint64_t *keys, size_t n, Batch *batch, uint8_t *here) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (size_t i = 0; i < n; ++i) {
        uint32_t row;
        here[i] = holds(keys[i], &row);
        batch->rows[i] = here[i] ? row : 0;
        if (follower_ && here[i]) follower_->choose(batch, uint32_t(i), nullptr);
        batch->keys[i] = keys[i];
        batch->generations[i] = generations_.of(batch->rows[i]);
    }
}

inline void Table::gather_known(Batch *batch, uint8_t *here) {
    copy_steady([&] { copy_rows(batch); });
    for (uint32_t i = 0; i < batch->n; ++i) here[i] = here[i] && whole(batch, i);
}

inline void Table::overwrite(const uint64_t *keys, size_t n, const char *const *from, uint8_t *here) {
    for (size_t i = 0; i < n; ++i) {
        // Change one item at a time, so that writers wait for one item at most.
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });  // otherwise a checkpoint would contain the later state of some of its rows
        uint32_t row;
        here[i] = holds(keys[i], &row);
        if (!here[i]) continue;
        if (preserved_.on()) preserved_.keep(row);
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
        if (!generations_.live(row) || leaving(row)) continue;
        keys[n] = generations_.key_of(row);
        rows[n++] = row;
    }
    if (priorities && sampler_ && n) sampler_->priorities(sampler_->state, rows, priorities, n);
    return n;
}

inline size_t Table::newest(uint64_t *keys, size_t most) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t n = 0;
    for (uint32_t row = arrivals_.youngest(); row != Arrivals::kNone && n < most; row = arrivals_.before(row))
        if (generations_.live(row) && !leaving(row)) keys[n++] = generations_.key_of(row);
    return n;
}

inline size_t Table::known_rows(const uint64_t *keys, size_t n, uint32_t *rows, uint32_t *index) {
    std::lock_guard<std::mutex> lock(mutex_);
    size_t kept = 0;
    for (size_t i = 0; i < n; ++i) {
        uint32_t row;
        if (!holds(keys[i], &row) || log_.known(row) != generations_.of(row)) continue;
        rows[kept] = row, index[kept++] = uint32_t(i);
    }
    updated_ += kept, gone_ += n - kept;
    return kept;
}

}  // namespace echo::replay
