// Gives the keys in order of priority, the lowest (or highest) first. Among equal priorities, the first arrival comes first. 28 bytes per row.
#pragma once

#include <algorithm>

#include "row_sampler.hpp"

namespace echo_samplers {

// A 4-ary heap that knows the place of each row, so that any priority can change and any row can be removed in O(log N).
class RowHeap {
public:
    struct Entry {
        double rank;       // the priority, negated if the highest comes first
        uint64_t arrival;  // decides between equal ranks, so that the order never depends on the heap's history
        Row key;

        bool before(const Entry &other) const { return rank != other.rank ? rank < other.rank : arrival < other.arrival; }
    };

    explicit RowHeap(uint64_t capacity) : entries_(capacity), place_(capacity) {}

    void push(const Entry &entry) { rise(count_++, entry); }
    void remove(Row key) {
        const size_t hole = place_[key] - 1;
        place_[key] = 0;
        const Entry last = entries_[--count_];
        if (hole != count_) settle(hole, last);
    }
    void rank(Row key, double rank) {
        const size_t at = place_[key] - 1;
        Entry entry = entries_[at];
        entry.rank = rank;
        settle(at, entry);
    }
    void clear() {
        place_.clear();
        count_ = 0;
    }
    bool holds(Row key) const { return place_[key] != 0; }
    const Entry &of(Row key) const { return entries_[place_[key] - 1]; }
    const Entry &first() const { return entries_[0]; }
    const Entry *begin() const { return entries_.data(); }
    const Entry *end() const { return entries_.data() + count_; }
    size_t count() const { return count_; }

    // The first n keys in order, without removing them: the children of the keys taken so far are the candidates. n is at most count().
    void best(size_t n, Row *keys) const {
        if (n == 0) return;
        if (n == 1) {
            keys[0] = entries_[0].key;
            return;
        }
        const auto later = [this](size_t a, size_t b) { return entries_[b].before(entries_[a]); };
        candidates_.assign(1, 0);
        for (size_t i = 0; i < n; ++i) {
            std::pop_heap(candidates_.begin(), candidates_.end(), later);
            const size_t at = candidates_.back();
            candidates_.pop_back();
            keys[i] = entries_[at].key;
            for (size_t child = 4 * at + 1; child <= 4 * at + 4 && child < count_; ++child) {
                candidates_.push_back(child);
                std::push_heap(candidates_.begin(), candidates_.end(), later);
            }
        }
    }

private:
    void put(size_t at, const Entry &entry) {
        entries_[at] = entry;
        place_[entry.key] = static_cast<Row>(at + 1);
    }
    void rise(size_t at, const Entry &entry) {
        while (at > 0 && entry.before(entries_[(at - 1) / 4])) {
            put(at, entries_[(at - 1) / 4]);
            at = (at - 1) / 4;
        }
        put(at, entry);
    }
    void settle(size_t at, const Entry &entry) {
        if (at > 0 && entry.before(entries_[(at - 1) / 4])) return rise(at, entry);
        for (;;) {
            const size_t from = 4 * at + 1, to = std::min(from + 4, count_);
            size_t least = from;
            for (size_t child = from + 1; child < to; ++child)
                if (entries_[child].before(entries_[least])) least = child;
            if (from >= to || !entries_[least].before(entry)) break;
            put(at, entries_[least]);
            at = least;
        }
        put(at, entry);
    }

    PageArray<Entry> entries_;
    PageArray<Row> place_;  // the index of each key in entries_, plus one; 0: not held
    mutable std::vector<size_t> candidates_;
    size_t count_ = 0;
};

class Heap final : public RowSampler {
public:
    Heap(uint64_t capacity, bool highest_first) : RowSampler(capacity), heap_(capacity), sign_(highest_first ? -1.0 : 1.0) {}

    void insert(const Row *keys, const double *priorities, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            const double priority = priorities ? priorities[i] : maximum_;
            maximum_ = std::max(maximum_, priority);
            heap_.push({sign_ * priority, arrivals_++, keys[i]});
        }
    }
    void remove(const Row *keys, size_t n) override {
        for (size_t i = 0; i < n; ++i) heap_.remove(keys[i]);
    }
    void update(const Row *keys, const double *priorities, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            maximum_ = std::max(maximum_, priorities[i]);
            heap_.rank(keys[i], sign_ * priorities[i]);
        }
    }
    size_t sample(bitgen_t *, size_t n, Row *keys, double *probabilities) override {
        if (n > heap_.count()) return 0;
        heap_.best(n, keys);
        for (size_t i = 0; i < n; ++i) probabilities[i] = 1.0;
        return n;
    }
    size_t count() const override { return heap_.count(); }
    bool held(Row key) const override { return heap_.holds(key); }
    double priority(Row key) const override { return sign_ * heap_.of(key).rank; }

    std::string members() const override { return "keys priorities numbers"; }
    void save(State &state) const override {
        std::vector<RowHeap::Entry> entries(heap_.begin(), heap_.end());
        std::sort(entries.begin(), entries.end(), [](const auto &a, const auto &b) { return a.arrival < b.arrival; });
        for (const auto &entry : entries) {
            state.keys.push_back(entry.key);
            state.priorities.push_back(sign_ * entry.rank);
        }
        state.numbers = {maximum_};
    }
    std::string check(const State &state) const override {
        return state.numbers.size() == 1 && state.numbers[0] >= 1 ? "" : "'numbers' must be one number, the largest priority so far";
    }
    void load(const State &state) override {
        heap_.clear();
        insert(state.keys.data(), state.priorities.data(), state.keys.size());
        maximum_ = state.numbers[0];
    }

private:
    RowHeap heap_;
    const double sign_;
    double maximum_ = 1.0;
    uint64_t arrivals_ = 0;
};

}  // namespace echo_samplers
