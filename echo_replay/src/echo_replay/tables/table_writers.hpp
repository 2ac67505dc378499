// Table, the writers' side: rows are claimed, filled in place, and committed or aborted. A full table first evicts a row.
#pragma once

namespace echo::replay {

inline bool Table::victim(uint32_t *row) {
    if (victims_) {
        if (sampler_->victims(sampler_->state, 1, row) == 0) return false;
    } else if (!remover_) {
        if ((*row = arrivals_.oldest()) == Arrivals::kNone) return false;
    } else {
        double probability;
        if (remover_->sample(remover_->state, random_, 1, row, &probability) == 0) *row = arrivals_.oldest();  // every priority is 0
        if (*row == Arrivals::kNone) return false;
    }
    // The oldest row may be just being written, or being gathered for the last time.
    return generations_.live(*row) && !leaving(*row);
}

inline void Table::evict(const uint32_t *rows, uint32_t n) {
    forget(rows, n);
    evicted_ += n;
    for (uint32_t i = 0; i < n; ++i) vacate(rows[i]);
}

inline int Table::claim_locked(uint32_t wanted, echo_run *out) {
    if (closed_.load(std::memory_order_relaxed)) return ECHO_CLOSED;
    if (paused_ || (held_ && !follower_) || preserved_.full()) return ++push_blocked_, ECHO_FULL;
    uint32_t most = std::min<uint32_t>(wanted, staging_.any() ? std::min<uint32_t>(capacity_, StagingRows::kRows) : capacity_);
    if (preserved_.on()) most = uint32_t(std::min<uint64_t>(most, preserved_.step()));
    if (staging_.all_taken()) return ++push_blocked_, ECHO_FULL;
    const uint32_t allowed = follower_ ? most : uint32_t(limiter_.room(most, size_));  // the limiter has allowed the steps already: see steps.hpp
    uint32_t first = 0, n = allowed ? arrivals_.take(allowed, &first) : 0;
    // In a queue, rows are missing only while some are gathered for the last time.
    if (n == 0 && allowed && !queue_) {
        uint32_t row;
        if (!remover_ && !victims_) {
            // Evict the oldest rows as long as they are side by side: the sampler is told of all of them in one call.
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
    }
    if (n == 0) {
        ++push_blocked_;
        return ECHO_FULL;
    }
    // All rows are marked as unreadable before they are written, both those just evicted and those deleted before. If a reader copies bytes
    // after the first write, it drops them.
    std::atomic_thread_fence(std::memory_order_release);  // SYNC generation
    for (uint32_t i = 0; preserved_.on() && i < n; ++i) preserved_.keep(first + i);
    limiter_.pending += n;
    *out = {0, first, n, 0};
    if (staging_.any()) staging_.take(out);
    return ECHO_OK;
}

inline void Table::copy_from_staging(const echo_run &run) {
    if (!staging_.any()) return;
    const char *from[kRecordLeaves];
    for (uint32_t leaf = 0; leaf < rows_.leaves(); ++leaf) from[leaf] = staging_.at(run, leaf);
    rows_.scatter(run.slot, run.count, from);
}

inline void Table::commit(const echo_run &run, const Labels &labels) {
    copy_from_staging(run);
    Known known;
    known.version = labels.version;
    finish_commit(run, labels.priorities, &known, labels.keys);
}

inline void Table::commit_labelled(const echo_run &run) {
    copy_from_staging(run);
    Known known;
    known.priorities.resize(run.count), known.versions.resize(run.count);
    for (uint32_t i = 0; i < run.count; ++i) {
        const Incoming &label = incoming_[run.slot + i];
        known.versions[i] = label.version;
        const bool good = label.good(refuses_zero_);
        known.priorities[i] = good ? label.value() : 0;
        if (!good) known.bad.emplace_back(run.slot + i, label.value());
    }
    finish_commit(run, known.priorities.data(), &known, nullptr);
}

inline void Table::finish_commit(const echo_run &run, const double *priorities, Known *known, uint64_t *keys) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        finish_commit_locked(run, priorities, known, keys);
    }
    after_insert();
}

inline void Table::finish_commit_locked(const echo_run &run, const double *priorities, Known *known, uint64_t *keys) {
    if (staging_.any()) staging_.leave(run);
    if (detached_) return;
    for (uint32_t i = 0; keys && i < run.count; ++i) keys[i] = generations_.next_key_of(run.slot + i);
    if (paused_) {
        if (priorities && known->priorities.empty()) known->priorities.assign(priorities, priorities + run.count);
        deferred_.push_back({run, std::move(*known)});
    } else {
        commit_locked(run, priorities, *known);
    }
}

inline void Table::commit_locked(const echo_run &run, const double *priorities, const Known &known) {
    if (scratch_.size() < run.count) scratch_.resize(run.count);
    for (uint32_t i = 0; i < run.count; ++i) {
        scratch_[i] = run.slot + i;
        generations_.advance(run.slot + i, std::memory_order_release);  // SYNC row: the bytes come before the generation that shows them
    }
    if (max_times_) {
        for (uint32_t i = 0; i < run.count; ++i) times_[run.slot + i] = 0;
        uses_left_ += uint64_t(max_times_) * run.count;
    }
    if (sampler_) {
        report_new(sampler_, scratch_.data(), priorities, run.count);
    } else {
        for (uint32_t i = 0; i < run.count; ++i)
            log_.note(run.slot + i, true, priorities ? priorities[i] : std::numeric_limits<double>::quiet_NaN());
    }
    if (remover_) report_new(remover_, scratch_.data(), priorities, run.count);
    size_ += run.count;
    limiter_.pending -= run.count;
    limiter_.inserts += run.count;
    for (uint32_t i = 0; versions_.kept() && i < run.count; ++i) {
        const uint64_t version = known.versions.empty() ? known.version : known.versions[i];
        versions_.insert(run.slot + i, version == Labels::kNewest ? versions_.newest() : version);
    }
    // A refused item counts as one that was inserted and removed, so that counts of samples and acknowledgements still agree.
    for (const auto &[row, priority] : known.bad) {
        refused_sample_ = uint64_t(limiter_.inserts) - run.count + (row - run.slot);
        refused_priority_ = priority;
        drop(row), ++refused_;
    }
    if (versions_.kept()) drop_stale(versions_.newest(), UINT64_MAX);
}

inline void Table::report_new(const echo_sampler *sampler, const uint32_t *rows, const double *priorities, size_t n) {
    if (!priorities) return sampler->insert(sampler->state, rows, nullptr, n);
    for (size_t i = 0, end; i < n; i = end) {
        const bool chosen = std::isnan(priorities[i]);
        for (end = i + 1; end < n && std::isnan(priorities[end]) == chosen; ++end) {}
        sampler->insert(sampler->state, rows + i, chosen ? nullptr : priorities + i, end - i);
    }
}

inline void Table::drop(uint32_t row) {
    forget(&row, 1);
    vacate(row);
    arrivals_.erase(row);
}

inline uint64_t Table::drop_stale(uint64_t newest, uint64_t most) {
    uint64_t dropped = 0;
    for (uint32_t row; dropped < most && (row = versions_.stalest(newest)) != PolicyVersions::kNone; ++dropped) drop(row);
    stale_ += dropped;
    return dropped;
}

inline void Table::set_policy_version(uint64_t version) {
    constexpr uint64_t kChunk = 4096;  // writers and learners get their turn in between
    uint64_t turn = 0;
    for (bool more = true; more;) {
        std::unique_lock<std::mutex> lock(mutex_);
        resumed_.wait(lock, [this] { return !paused_; });
        if (turn == 0) turn = ++version_turns_;
        if (turn != version_turns_) break;  // another call came meanwhile: the last one wins, however long the others take
        more = versions_.kept() && drop_stale(version, kChunk) == kChunk;
        // The version is published only once no row lags too far behind it, so that a caller that reads it and then draws is given no such row.
        if (!more) versions_.publish(version), report_published(version);
    }
    after_space();
}

inline void Table::abort(const echo_run &run) {
    {
        std::lock_guard<std::mutex> lock(mutex_);
        if (staging_.any()) staging_.leave(run);
        for (uint32_t i = run.count; i-- > 0;) arrivals_.erase(run.slot + i);
        limiter_.pending -= run.count;
        aborted_ += run.count;
    }
    after_space();
}

inline void Table::forget(const uint32_t *rows, size_t n) {
    if (sampler_) sampler_->remove(sampler_->state, rows, n);
    else
        for (size_t i = 0; i < n; ++i) log_.note(rows[i], false, 0);
    if (remover_) remover_->remove(remover_->state, rows, n);
    for (size_t i = 0; versions_.kept() && i < n; ++i) versions_.remove(rows[i]);
    if (follower_) follower_->forgotten(rows, n);
    if (max_times_)
        for (size_t i = 0; i < n; ++i)
            if (times_[rows[i]] < max_times_) {
                uses_left_ -= max_times_ - times_[rows[i]];
                limiter_.spared += queue_;
            }
    size_ -= int64_t(n);
}

inline bool Table::can_claim() {
    if (closed()) return true;
    std::lock_guard<std::mutex> lock(mutex_);
    if (paused_ || held_ || preserved_.full() || limiter_.room(1, size_) == 0 || staging_.all_taken()) return false;
    if (arrivals_.used() < capacity_) return true;
    if (detached_) return true;
    return !queue_ && can_evict();
}

inline bool Table::can_evict() const {
    if (victims_) return sampler_->count(sampler_->state) > 0;
    if (remover_) return remover_->count(remover_->state) > 0;
    const uint32_t oldest = arrivals_.oldest();
    return oldest != Arrivals::kNone && generations_.live(oldest) && !leaving(oldest);
}

inline int Table::wait_space(int64_t timeout_ns) {
    const bool space = space_.wait([this] { return can_claim(); }, timeout_ns < 0 ? -1 : now_ns() + timeout_ns);
    return closed() ? ECHO_CLOSED : space ? ECHO_OK : ECHO_TIMEOUT;
}

inline int Table::arm_space(int eventfd) {
    eventfds_.arm(eventfd);
    if (!can_claim()) return ECHO_OK;
    disarm_space(eventfd);
    return ECHO_READY;
}

inline void Table::disarm_space(int eventfd) { eventfds_.disarm(eventfd); }

// The change that made space happened under the mutex, under which sleepers look for space. So either they see the space, or we see them here.
inline void Table::after_space() {
    if (space_.waiters() == 0 && !eventfds_.any()) return;
    if (!can_claim()) return;
    space_.notify(INT_MAX);
    eventfds_.signal();
}

inline void Table::after_insert() {
    if (ready_.waiters() != 0 || ready_eventfds_.any()) {
        bool wake = false;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (uint32_t n : waiting_) wake = wake || can_sample_locked(n);
        }
        if (wake) ready_.notify(INT_MAX), ready_eventfds_.signal();
    }
    after_space();  // a writer may have found that the oldest row was being written
}

}  // namespace echo::replay
