// Table, for checkpoints: it stands still while its state is copied, and begins from what was.
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
        for (const Deferred &late : deferred_) commit_locked(late.run, late.priorities.empty() ? nullptr : late.priorities.data());
        deferred_.clear();
    }
    resumed_.notify_all();
    after_insert();
}

inline void Table::restore(const uint32_t *order, uint32_t n, const uint32_t *generations, const uint32_t *high, const uint32_t *times,
                           uint64_t inserts, uint64_t samples) {
    std::lock_guard<std::mutex> lock(mutex_);
    generations_.restore(generations, high);
    uses_left_ = 0;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t row = order[i];
        generations_.show(row, generations[row]);
        log_.knows(row, generations[row]);
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
