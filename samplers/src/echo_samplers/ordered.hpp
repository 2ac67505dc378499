// Keys in order of arrival: first in first out, or last in first out. 8 bytes per row; every operation takes constant time per key.
#pragma once

#include "row_sampler.hpp"

namespace echo_samplers {

// A doubly linked list in two arrays over the rows, so that any key can be removed without a search.
class RowList {
public:
    static constexpr Row kEnd = ~Row{0};

    explicit RowList(uint64_t capacity) : next_(capacity), prev_(capacity) {}

    void append(Row key) {
        next_[key] = kEnd;
        prev_[key] = tail_;
        (tail_ == kEnd ? head_ : next_[tail_ - 1]) = key + 1;
        tail_ = key + 1;
        ++count_;
    }
    void remove(Row key) {
        const Row next = next_[key], prev = prev_[key];
        (prev == kEnd ? head_ : next_[prev - 1]) = next;
        (next == kEnd ? tail_ : prev_[next - 1]) = prev;
        next_[key] = prev_[key] = 0;
        --count_;
    }
    void clear() {
        next_.clear();
        prev_.clear();
        head_ = tail_ = kEnd;
        count_ = 0;
    }
    bool holds(Row key) const { return next_[key] != 0; }
    size_t count() const { return count_; }
    bool empty() const { return count_ == 0; }
    Row oldest() const { return head_ - 1; }

    // Gives the first n keys, oldest or newest first. n is at most count().
    void walk(bool newest_first, size_t n, Row *keys) const {
        const PageArray<Row> &along = newest_first ? prev_ : next_;
        Row link = newest_first ? tail_ : head_;
        for (size_t i = 0; i < n; ++i) {
            keys[i] = link - 1;
            link = along[link - 1];
        }
    }

private:
    // A link is a key plus one, or kEnd. 0 in next_ means that the key is not held.
    PageArray<Row> next_;
    PageArray<Row> prev_;
    Row head_ = kEnd;
    Row tail_ = kEnd;
    size_t count_ = 0;
};

class Ordered final : public RowSampler {
public:
    Ordered(uint64_t capacity, bool newest_first) : RowSampler(capacity), list_(capacity), newest_first_(newest_first) {}

    void insert(const Row *keys, const double *, size_t n) override {
        for (size_t i = 0; i < n; ++i) list_.append(keys[i]);
    }
    void remove(const Row *keys, size_t n) override {
        for (size_t i = 0; i < n; ++i) list_.remove(keys[i]);
    }
    size_t sample(bitgen_t *, size_t n, Row *keys, double *probabilities) override {
        if (n > list_.count()) return 0;
        list_.walk(newest_first_, n, keys);
        for (size_t i = 0; i < n; ++i) probabilities[i] = 1.0;
        return n;
    }
    size_t count() const override { return list_.count(); }
    bool held(Row key) const override { return list_.holds(key); }

    std::string members() const override { return "keys"; }
    void save(State &state) const override {
        state.keys.resize(list_.count());
        list_.walk(false, list_.count(), state.keys.data());
    }
    void load(const State &state) override {
        list_.clear();
        insert(state.keys.data(), nullptr, state.keys.size());
    }

private:
    RowList list_;
    const bool newest_first_;
};

}  // namespace echo_samplers
