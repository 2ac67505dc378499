// How spans of steps become a batch: the steps of every item are found along its chain and copied to their places, without any lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../tables/rows/batch_buffers.hpp"
#include "item_cutter.hpp"
#include "../tables/rows/rows.hpp"

namespace echo::replay {

struct Mark {  // the first leaf of a step, as the worker wrote it
    uint64_t stream;
    uint64_t word;  // the step's number in its stream, times 256, and flags
};

struct Link {  // the same memory once the step is committed
    static constexpr uint64_t kNoKey = UINT64_MAX;
    static constexpr uint32_t kNone = UINT32_MAX;
    uint64_t key;     // key of the item whose anchor is this step
    uint32_t next;    // row of the next step of the episode
    uint32_t stream;  // index of its stream among the open ones, as long as the episode is open

    void set(uint32_t place) {
        __atomic_store_n(&key, kNoKey, __ATOMIC_RELAXED);
        __atomic_store_n(&next, kNone, __ATOMIC_RELAXED);
        __atomic_store_n(&stream, place, __ATOMIC_RELAXED);
    }
};
static_assert(sizeof(Mark) == 16 && sizeof(Link) == 16);

// The state of a step's row, and how its episode went on.
enum State : uint8_t { kFree = 0, kWriting = 1, kHole = 2, kLive = 4 };
constexpr uint8_t live_state(Ends ends) { return uint8_t(kLive | ends << 4); }
constexpr Ends ends_of(uint8_t state) { return Ends(state >> 4); }

// Which part of an item's steps a batch shows.
struct View {
    uint32_t burn_in;             // windows: the number of their steps that come before the anchor
    std::vector<uint32_t> stack;  // for each leaf of a step except its mark: how many steps are stacked into one
    bool repeat;                  // if an episode has no earlier steps, stacks repeat its first one; otherwise they contain zeros
    int32_t reward;               // transitions: index of the leaf to sum, not counting the mark; -1: windows
    bool wide;                    // whether that leaf is float64 rather than float32
    double gamma;
    uint32_t spans;  // index of the leaf of a batch that contains the items' spans
};

class Windows {
public:
    Windows(const Rows &rows, uint32_t capacity, const Cut &cut, const View &view)
        : rows_(rows), capacity_(capacity), cut_(cut), view_(view), most_(cut.lookback - view.burn_in) {}

    Link *link(uint32_t row) const { return reinterpret_cast<Link *>(rows_.at(0, row)); }
    const Mark *mark(uint32_t row) const { return reinterpret_cast<const Mark *>(rows_.at(0, row)); }

    void gather(Batch *batch) const {
        Places places(cut_.width(), batch->n);
        find(batch, &places);
        if (view_.reward >= 0) transitions(batch, places);
        else windows(batch, places);
    }

    const Span &span(const Batch *batch, uint32_t i) const { return span(const_cast<Batch *>(batch), i); }
    Span &span(Batch *batch, uint32_t i) const { return reinterpret_cast<Span *>(batch->leaf[view_.spans])[i]; }

    const std::atomic<uint8_t> *states = nullptr;

private:
    static constexpr uint32_t kNone = Link::kNone;

    // The rows of each item's steps. The anchor's row is at `lookback`; kNone means that the episode has no such step.
    struct Places {
        Places(uint32_t width, uint64_t n) : width(width), rows(memory(width * n)), first(n), last(n) {}
        static uint32_t *memory(uint64_t entries) {
            static thread_local std::vector<uint32_t> kept;
            if (kept.size() < entries) kept.resize(entries);
            return kept.data();
        }
        const uint32_t *of(uint64_t item) const { return rows + item * width; }
        const uint32_t width;
        uint32_t *const rows;
        std::vector<uint32_t> first, last;  // places of an item's first and last step
    };

    // Follows all chains together, one step of each at a time, so that their cache misses overlap. Torn values are kept within bounds.
    void find(const Batch *batch, Places *places) const {
        const uint64_t n = batch->n;
        const Span *spans = reinterpret_cast<const Span *>(batch->leaf[view_.spans]);
        std::fill_n(places->rows, n * places->width, kNone);
        std::vector<uint32_t> at(n);
        uint32_t longest = 0;
        for (uint64_t i = 0; i < n; ++i) {
            const uint32_t back = std::min<uint32_t>(spans[i].back, cut_.lookback), from = cut_.lookback - back;
            const uint32_t count = std::clamp<uint32_t>(spans[i].count, back + 1, places->width - from);
            at[i] = uint32_t(spans[i].first % capacity_);
            places->first[i] = from, places->last[i] = from + count - 1;
            longest = std::max(longest, count);
            __builtin_prefetch(link(at[i]));
        }
        for (uint32_t step = 0; step < longest; ++step)
            for (uint64_t i = 0; i < n; ++i) {
                const uint32_t place = places->first[i] + step;
                if (place > places->last[i] || at[i] >= capacity_) continue;
                places->rows[i * places->width + place] = at[i];
                at[i] = __atomic_load_n(&link(at[i])->next, __ATOMIC_RELAXED);
                if (at[i] < capacity_) __builtin_prefetch(link(at[i]));
            }
    }

    void windows(Batch *batch, const Places &places) const {
        const uint32_t length = view_.burn_in + cut_.forward;
        const size_t leaves = view_.stack.size();
        for (size_t leaf = 0; leaf < leaves; ++leaf) {
            const uint64_t bytes = rows_.leaf_bytes(uint32_t(leaf + 1)) * view_.stack[leaf];
            for (uint64_t i = 0; i < batch->n; ++i) {
                char *const to = batch->leaf[1 + leaf] + i * length * bytes;
                if (view_.stack[leaf] == 1) copy_run(leaf, places.of(i) + most_, length, to);
                else for (uint32_t t = 0; t < length; ++t) copy_stack(leaf, places, i, most_ + t, to + t * bytes);
            }
        }
        char *const mask = batch->leaf[1 + leaves], *const ends = batch->leaf[2 + leaves];
        for (uint64_t i = 0; i < batch->n; ++i)
            for (uint32_t t = 0; t < length; ++t) {
                const uint32_t row = places.of(i)[most_ + t];
                mask[i * length + t] = row != kNone;
                ends[i * length + t] = row == kNone ? 0 : char(ends_of(states[row].load(std::memory_order_relaxed)));
            }
    }

    void transitions(Batch *batch, const Places &places) const {
        const Span *spans = reinterpret_cast<const Span *>(batch->leaf[0]);
        const size_t leaves = view_.stack.size();
        for (size_t leaf = 0; leaf < leaves; ++leaf) {
            const uint64_t bytes = rows_.leaf_bytes(uint32_t(leaf + 1)) * view_.stack[leaf];
            for (uint64_t i = 0; i < batch->n; ++i) {
                if (i + kAhead < batch->n) fetch(leaf, places.of(i + kAhead)[cut_.lookback], places.of(i + kAhead)[places.last[i + kAhead]]);
                copy_stack(leaf, places, i, cut_.lookback, batch->leaf[1 + leaf] + i * bytes);
                copy_stack(leaf, places, i, places.last[i], batch->leaf[1 + leaves + leaf] + i * bytes);
            }
        }
        char *const *const figures = batch->leaf.data() + 1 + 2 * leaves;
        for (uint64_t i = 0; i < batch->n; ++i) {
            const bool terminated = spans[i].terminated & 1;
            // The transition leads to the last step, whose own reward counts only if the episode ends with it.
            const uint32_t rewards = places.last[i] - cut_.lookback + terminated;
            if (view_.wide) sum<double>(places, i, rewards, figures[0]);
            else sum<float>(places, i, rewards, figures[0]);
            double discount = 1;
            for (uint32_t k = 0; k < rewards; ++k) discount *= view_.gamma;
            reinterpret_cast<float *>(figures[1])[i] = float(discount);
            figures[2][i] = terminated;
        }
    }

    template <class Real>
    void sum(const Places &places, uint64_t item, uint32_t rewards, char *to) const {
        const uint32_t leaf = uint32_t(view_.reward) + 1;
        const uint64_t bytes = rows_.leaf_bytes(leaf), width = bytes / sizeof(Real);
        for (uint64_t element = 0; element < width; ++element) {
            double total = 0, discount = 1;
            for (uint32_t k = 0; k < rewards; ++k, discount *= view_.gamma) {
                const uint32_t row = places.of(item)[cut_.lookback + k];
                Real reward = 0;
                if (row != kNone)
                    copy_racing(reinterpret_cast<char *>(&reward), rows_.at(leaf, row) + element * sizeof(Real), sizeof(Real));
                total += discount * double(reward);
            }
            reinterpret_cast<Real *>(to + item * bytes)[element] = Real(total);
        }
    }

    // If the compiler knows the size, a small copy is one or two moves instead of a call.
    static void copy(char *to, const char *from, uint64_t bytes) {
        switch (bytes) {
            case 1: return copy_racing(to, from, 1);
            case 4: return copy_racing(to, from, 4);
            case 8: return copy_racing(to, from, 8);
            case 16: return copy_racing(to, from, 16);
            default: copy_racing(to, from, bytes);
        }
    }
    static constexpr uint64_t kAhead = 12;
    void fetch(size_t leaf, uint32_t row, uint32_t other) const {
        if (row != kNone) __builtin_prefetch(rows_.at(uint32_t(leaf + 1), row));
        if (other != kNone) __builtin_prefetch(rows_.at(uint32_t(leaf + 1), other));
    }

    // Copies steps that are side by side at once, and writes zeros where there is no step.
    void copy_run(size_t leaf, const uint32_t *rows, uint32_t length, char *to) const {
        const uint64_t bytes = rows_.leaf_bytes(uint32_t(leaf + 1));
        for (uint32_t t = 0, run; t < length; t += run) {
            run = 1;
            if (rows[t] == kNone) {
                while (t + run < length && rows[t + run] == kNone) ++run;
                std::memset(to + t * bytes, 0, run * bytes);
            } else {
                while (t + run < length && rows[t + run] == rows[t] + run) ++run;
                copy(to + t * bytes, rows_.at(uint32_t(leaf + 1), rows[t]), run * bytes);
            }
        }
    }

    // Copies the step at `place` and those before it, oldest first.
    void copy_stack(size_t leaf, const Places &places, uint64_t item, uint32_t place, char *to) const {
        const uint32_t stack = view_.stack[leaf], *const rows = places.of(item);
        const uint64_t bytes = rows_.leaf_bytes(uint32_t(leaf + 1));
        if (rows[place] == kNone) {
            std::memset(to, 0, stack * bytes);
            return;
        }
        for (uint32_t k = 0; k < stack; ++k) {
            uint32_t from = place + k + 1 - stack;  // not below 0: the lookback has room for the longest stack
            if (from < places.first[item] && view_.repeat) from = places.first[item];
            const uint32_t row = rows[from];
            if (row == kNone) std::memset(to + k * bytes, 0, bytes);
            else copy(to + k * bytes, rows_.at(uint32_t(leaf + 1), row), bytes);
        }
    }

    const Rows &rows_;
    const uint32_t capacity_;
    const Cut cut_;
    const View view_;
    const uint32_t most_;  // number of places before the first step that a batch shows; only stacks need them
};

}  // namespace echo::replay
