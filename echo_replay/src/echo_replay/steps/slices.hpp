// The index of episodes from which slices are chosen when they are sampled. It is kept up to date with every step, so that no draw looks at
// more than one episode. The items of such a table are episodes that have at least one step with which a slice can begin.
//
// The number of a step follows from its place in the episode. The index stores the number of every 64th step (an eighth of a byte for each
// step), and follows at most 63 links of the chain from there. If all starts are equally likely, the episode is found in a Fenwick tree
// (8 bytes for each row of the table).
//
// The mutex of the table of items guards everything here.
#pragma once

#include <bit>
#include <cstdint>
#include <vector>

#include "item_cutter.hpp"

namespace echo::replay {

// Whole-number weights of the rows of a table. Drawing a row, or setting its weight, takes O(log n).
class Weights {
public:
    explicit Weights(uint64_t rows) : weight_(rows), sums_(rows ? std::bit_ceil(rows) + 1 : 0) {}
    uint64_t total() const { return total_; }
    void set(uint32_t row, uint64_t weight) {
        const uint64_t change = weight - weight_[row];  // modulo 2^64, like the sums
        if (change == 0) return;
        weight_[row] = weight, total_ += change;
        for (uint64_t i = uint64_t(row) + 1; i < sums_.size(); i += i & -i) sums_[i] += change;
    }
    // Returns the row that contains unit *u of the total weight, and sets *u to the number of that unit within the row.
    uint32_t find(uint64_t *u) const {
        uint64_t at = 0;
        for (uint64_t step = sums_.size() - 1; step; step >>= 1)
            if (at + step < sums_.size() && sums_[at + step] <= *u) at += step, *u -= sums_[at];
        return uint32_t(at);
    }

private:
    std::vector<uint64_t> weight_, sums_;
    uint64_t total_ = 0;
};

class Slices {
public:
    static constexpr uint64_t kNoKey = UINT64_MAX;

    struct Run {  // an episode, or the rest of it
        uint64_t count = 0, eroded = 0;  // steps so far; how many of them are gone
        uint64_t oldest = 0;             // number of the oldest step that is left
        uint64_t key = kNoKey;           // key of its item, if it has one
        uint64_t base = 0;               // place of the first of `marks`, divided by 64
        std::vector<uint64_t> marks;     // numbers of the steps at places base * 64, (base + 1) * 64, ...
        uint32_t row = 0;
        bool closed = false, retired = false, waiting = false;  // retired: its item was removed by key, or was sampled as often as allowed
    };

    // rows: the number of rows of the table of items, or 0 if the table's sampler alone decides how likely an episode is.
    Slices(uint32_t lookback, uint32_t length, bool pad, uint64_t rows)
        : lookback_(lookback), need_(pad ? 1 : length), weights_(rows), owner_(rows), by_steps_(rows != 0) {}

    bool by_steps() const { return by_steps_; }
    const Weights &weights() const { return weights_; }
    uint32_t owner(uint32_t row) const { return owner_[row]; }
    Run &run(uint64_t id) { return runs_[id]; }
    size_t runs() const { return runs_.size(); }

    // begins: false if the episode's first steps are lost.
    uint32_t open(bool begins) {
        if (free_.empty()) free_.push_back(uint32_t(runs_.size())), runs_.emplace_back();
        const uint32_t id = free_.back();
        free_.pop_back();
        if (!begins) runs_[id].count = runs_[id].eroded = 1;  // as if its first step had been removed
        return id;
    }
    void add(uint32_t id, uint64_t number) {
        Run &run = runs_[id];
        if (run.count == run.eroded) run.oldest = number;
        if (run.count % 64 == 0) {
            if (run.marks.empty()) run.base = run.count / 64;
            run.marks.push_back(number);
        }
        ++run.count;
        changed(run);
    }
    // The episode is finished. Its remaining steps stay.
    void close(uint32_t id) { runs_[id].closed = true; }
    // Removes the oldest step. `next` is the number of the step after it, if there is one.
    void erode(uint32_t id, uint64_t next) {
        Run &run = runs_[id];
        ++run.eroded, run.oldest = next;
        if (run.eroded > run.base * 64 + 63 + 64 * (run.marks.size() / 2)) {
            // Remove half of the marks at once, so that this costs almost nothing on average.
            const uint64_t stale = run.eroded / 64 - run.base;
            run.marks.erase(run.marks.begin(), run.marks.begin() + long(std::min<uint64_t>(stale, run.marks.size())));
            run.base += stale;
        }
        changed(run);
    }
    // Forgets an episode that has no steps left and is no item.
    void tidy(uint32_t id) {
        if (runs_[id].closed && runs_[id].count == runs_[id].eroded) drop(id);
    }
    // From now on the episode has an item (listed) or has none (unlisted).
    void listed(uint64_t id, uint64_t key, uint32_t row) {
        runs_[id].key = key, runs_[id].row = row;
        if (by_steps_) owner_[row] = uint32_t(id);
        changed(runs_[id]);
    }
    void unlisted(Run &run, bool retired) {
        if (owns(run)) weights_.set(run.row, 0);
        run.key = kNoKey, run.retired = run.retired || retired;
    }

    // Returns how many of its steps can begin a slice. Frame stacks need earlier steps, so a step whose earlier steps are gone cannot begin one.
    uint64_t starts(const Run &run) const {
        const uint64_t low = lowest(run) + need_;
        return run.count >= low ? run.count - low + 1 : 0;
    }
    // Returns the slice that begins with the `u`-th of those steps. link(number) returns the link of that step, and number_of(row) the
    // number of the step in that row.
    template <class LinkOf, class NumberOf>
    Span slice(const Run &run, uint64_t u, uint32_t length, LinkOf link, NumberOf number_of) const {
        const uint64_t start = lowest(run) + u;
        const uint64_t back = std::min<uint64_t>(start - run.eroded, lookback_), from = start - back;
        const uint64_t mark = from / 64;
        const bool marked = mark * 64 >= run.eroded;
        uint64_t number = marked ? run.marks[mark - run.base] : run.oldest;
        for (uint64_t place = marked ? mark * 64 : run.eroded; place < from; ++place) number = number_of(link(number)->next);
        return {number, uint32_t(back + std::min<uint64_t>(length, run.count - start)), uint16_t(back), 0, 0};
    }

    // Restores a run from a checkpoint. The caller then adds its steps again, and calls drop_empty() at the end.
    void restore(uint64_t id, uint64_t eroded, bool closed, bool retired) {
        if (id >= runs_.size()) runs_.resize(id + 1);
        Run &run = runs_[id];
        run.count = run.eroded = eroded, run.closed = closed, run.retired = retired;
    }
    void drop_empty() {
        for (uint32_t id = 0; id < runs_.size(); ++id)
            if (runs_[id].count == runs_[id].eroded) drop(id);
    }

private:
    uint64_t lowest(const Run &run) const { return run.eroded ? run.eroded + lookback_ : 0; }
    void changed(const Run &run) {
        if (run.key != kNoKey && owns(run)) weights_.set(run.row, starts(run));
    }
    // If an item was deleted by its key, its row may already belong to another item before this index is told.
    bool owns(const Run &run) const { return by_steps_ && &runs_[owner_[run.row]] == &run; }
    void drop(uint32_t id) {
        runs_[id] = Run{};
        free_.push_back(id);
    }

    const uint32_t lookback_, need_;
    Weights weights_;
    std::vector<uint32_t> owner_;  // the run of each row
    const bool by_steps_;
    std::vector<Run> runs_;
    std::vector<uint32_t> free_;
};

}  // namespace echo::replay
