// Records, the learners' side: the bytes of drawn items are copied from their pages into a packed batch, and items are drawn by a budget of rows.
#pragma once

namespace echo::replay {

// The item's row is copied now, under the table's mutex. Later it may be that of another record, while the lengths must agree with the memory.
inline void Records::choose(Batch *batch, uint32_t i, bitgen_t *) {
    std::memcpy(batch->leaf[1] + i * sizeof(RecordRow), row(batch->rows[i]), sizeof(RecordRow));
    pages_.prefetch(row(batch->rows[i])->first);
}

inline void Records::gather(Batch *batch) const {
    PackedBatch *const packed = static_cast<PackedBatch *>(batch->packed);
    const size_t axes = layout_.most.size(), leaves = layout_.leaves.size();
    uint64_t totals[MOST_AXES] = {};
    for (uint64_t i = 0; i < batch->n; ++i) {
        RecordRow row;
        std::memcpy(&row, batch->leaf[1] + i * sizeof row, sizeof row);
        // An item that was not drawn after all has an odd generation, and the row of an earlier batch: it counts as one of length 0.
        bool here = (batch->generations[i] & 1) == 0 && layout_.fits(row.lengths);
        for (size_t axis = 0; axis < axes; ++axis) here = here && totals[axis] + row.lengths[axis] <= packed->room[axis];
        Pages::Cursor from(pages_, here ? row.first : Pages::kNone);
        if (!here) std::fill_n(row.lengths, MOST_AXES, 0u);
        for (size_t leaf = 0; leaf < leaves; ++leaf) {
            const RecordLeaf &one = layout_.leaves[leaf];
            from.read(packed->leaf[leaf] + (one.axis < 0 ? i : totals[one.axis]) * one.bytes, one.bytes_of(row.lengths));
        }
        for (size_t axis = 0; axis < axes; ++axis) {
            packed->offsets[axis][i] = int32_t(totals[axis]);
            totals[axis] += row.lengths[axis];
        }
    }
    for (size_t axis = 0; axis < axes; ++axis) packed->offsets[axis][batch->n] = int32_t(totals[axis]);
    std::copy(totals, totals + MOST_AXES, packed->totals);
}

inline bool Records::fits(const RecordRow &row, const uint64_t *totals, uint32_t axis, uint64_t units) const {
    for (size_t at = 0; at < layout_.most.size(); ++at)
        if (totals[at] + row.lengths[at] > (at == axis ? units : uint64_t(INT32_MAX))) return false;
    return true;
}

// Whether it is worth while to wait for more items than there are: together they have fewer rows than wanted, and writers can add some.
inline bool Records::grows(uint32_t axis, uint64_t units) const {
    const Table &items = *items_;
    if (items.replacement_ || rows_[axis].load(std::memory_order_relaxed) >= int64_t(units)) return false;
    if (items.unacknowledged_.any() && items.unacknowledged_.back() > 0) return false;  // items that came back are not in rows_
    const bool full = items.limiter_.room(1, items.size_) == 0 || items.arrivals_.used() == items.capacity_ ||
                      pages_.free() < Pages::of(layout_.bytes_of(layout_.most.data())) || wanted_.load(std::memory_order_relaxed);
    return !full;
}

inline Answer Records::draw_units(Batch *batch, uint32_t axis, uint64_t units) {
    Table &items = *items_;
    if (items.closed_.load(std::memory_order_relaxed)) return kClosed;
    items.expire_unacknowledged();
    if (!items.can_sample_locked(1) || grows(axis, units)) return kWait;
    const uint64_t most = batch->n;
    const int64_t size = items.size_;
    uint64_t totals[MOST_AXES] = {};
    uint32_t n = 0;
    batch->mass = items.mass_locked();
    const auto add = [&](uint32_t of, double probability) {
        batch->rows[n] = of, batch->probabilities[n] = probability;
        items.label(batch, n++);
        for (size_t at = 0; at < layout_.most.size(); ++at) totals[at] += row(of)->lengths[at];
    };
    const auto keep = [&](uint32_t of, double probability) { kept_ = items.generations_.key_of(of), kept_probability_ = probability; };
    // A sampler that gives every item once per batch has to be asked for all of them at once. Nothing changes by that, so it can be asked again.
    const bool once = !items.replacement_ && !items.max_times_;
    uint32_t first = UINT32_MAX;
    uint64_t key = std::exchange(kept_, kNoKey);
    if (key != kNoKey && items.holds(key, &first)) {
        if (items.max_times_) ++items.limiter_.samples, items.use(batch, first);
        add(first, kept_probability_);
    } else {
        first = UINT32_MAX;
    }
    if (once) {
        const uint64_t all = std::min<uint64_t>(most, items.sampler_->count(items.sampler_->state));
        const double mean = std::max(1.0, double(rows_[axis].load(std::memory_order_relaxed)) / double(std::max<int64_t>(1, size)));
        uint64_t wanted = uint64_t(1.25 * double(units) / mean) + 16;
        std::vector<uint32_t> rows;
        std::vector<double> probabilities;
        uint64_t sum[MOST_AXES], got = 0;
        for (bool enough = false; !enough; wanted *= 2) {
            wanted = std::min(wanted, all);
            rows.resize(wanted), probabilities.resize(wanted);
            if (wanted == 0 || items.sampler_->sample(items.sampler_->state, items.random_, wanted, rows.data(), probabilities.data()) == 0) break;
            std::copy(totals, totals + MOST_AXES, sum);
            for (got = 0; got < wanted && (rows[got] == first || fits(*row(rows[got]), sum, axis, units)); ++got)
                for (size_t at = 0; rows[got] != first && at < layout_.most.size(); ++at) sum[at] += row(rows[got])->lengths[at];
            enough = got < wanted || wanted == all;
        }
        items.limiter_.samples += n;
        uint64_t i = 0;
        for (; i < got && n < most && items.limiter_.can_sample(1, size); ++i)
            if (rows[i] != first) ++items.limiter_.samples, add(rows[i], probabilities[i]);
        if (i == got && got < rows.size() && n < most) keep(rows[got], probabilities[got]);
    } else {
        while (n < most && (!items.max_times_ || items.uses_left_ > 0) && items.limiter_.can_sample(1, size)) {
            uint32_t of;
            double probability = 1;
            const bool back = items.unacknowledged_.any() && items.unacknowledged_.take(&of);
            if (!back && items.sampler_->sample(items.sampler_->state, items.random_, 1, &of, &probability) == 0) break;
            if (!fits(*row(of), totals, axis, units)) {
                if (back) items.unacknowledged_.give_out_again(of);
                else keep(of, probability);
                break;
            }
            if (back) --items.size_, --items.uses_left_, items.leave(batch, of);
            else if (items.max_times_ && !items.use(batch, of)) continue;
            ++items.limiter_.samples;
            add(of, probability);
        }
    }
    if (n == 0) return items.can_sample_locked(1) ? kNothing : kWait;
    batch->n = n;
    ++items.batches_drawn_;
    return kDrawn;
}

inline Answer Records::sample_units(Batch *batch, uint32_t axis, uint64_t units) {
    for (;;) {
        {
            std::lock_guard<std::mutex> lock(items_->mutex_);
            const Answer answer = draw_units(batch, axis, units);
            if (answer != kDrawn) return answer;
        }
        for (int turn = 0; items_->gather(batch) != 0; ++turn) {
            // The torn items are gone. The batch becomes shorter by them, and their places are closed.
            std::unique_lock<std::mutex> lock(items_->mutex_);
            items_->find_torn(batch);
            items_->limiter_.samples -= int64_t(batch->torn.size());
            for (size_t torn = batch->torn.size(); torn-- > 0;) {
                const uint64_t at = batch->torn[torn], behind = --batch->n - at;
                const auto close = [&](auto *column) { std::memmove(column + at, column + at + 1, behind * sizeof *column); };
                close(batch->rows), close(batch->generations), close(batch->keys), close(batch->probabilities);
                close(reinterpret_cast<RecordRow *>(batch->leaf[1]));
            }
            if (batch->n == 0) break;
            if (turn < Table::kPolite) continue;
            items_->copy_rows(batch);  // nobody can overwrite what is left
            break;
        }
        if (batch->n) break;
        batch->n = batch->room;
    }
    items_->finish(batch);
    return kDrawn;
}

inline bool Records::stuck(uint64_t n, Stuck *out) {
    std::lock_guard<std::mutex> lock(items_->mutex_);
    const Table &items = *items_;
    const uint64_t wanted = wanted_.load(std::memory_order_relaxed);
    // While rows are written, gathered or on loan, room may come of itself.
    if (!items.queue_ || wanted == 0 || pages_.free() >= wanted || items.size_ >= int64_t(n) || items.arrivals_.used() != items.size_) return false;
    *out = {uint64_t(items.size_), wanted * Pages::kBytes, uint64_t(pages_.free()) * Pages::kBytes};
    return true;
}

}  // namespace echo::replay
