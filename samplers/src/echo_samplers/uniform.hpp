// Draws every key with equal probability, with or without replacement. Insert and remove take constant time. 8 bytes per row.
#pragma once

#include <algorithm>

#include "row_sampler.hpp"

namespace echo_samplers {

class Uniform final : public RowSampler {
public:
    Uniform(uint64_t capacity, bool replacement) : RowSampler(capacity), keys_(capacity), place_(capacity), replacement_(replacement) {}

    void insert(const Row *keys, const double *, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            keys_[count_] = keys[i];
            place_[keys[i]] = static_cast<Row>(++count_);
        }
    }

    void remove(const Row *keys, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            const Row last = keys_[--count_];
            const Row hole = place_[keys[i]];
            keys_[hole - 1] = last;  // the last key moves into the hole, so that the held ones stay a run
            place_[last] = hole;
            place_[keys[i]] = 0;
        }
    }

    size_t sample(bitgen_t *random, size_t n, Row *keys, double *probabilities) override {
        const auto held = static_cast<uint32_t>(count_);
        if (held == 0 || (!replacement_ && n > held)) return 0;
        if (replacement_) {
            for (size_t i = 0; i < n; ++i) keys[i] = below(random, held);
            if (held == capacity_) return chances(held, n, probabilities);  // all rows are held, so a row number itself is a uniform draw
            for (size_t i = 0; i < n; ++i) __builtin_prefetch(&keys_[keys[i]]);
            for (size_t i = 0; i < n; ++i) keys[i] = keys_[keys[i]];
        } else {
            shuffle(random, n, keys);
        }
        return chances(held, n, probabilities);
    }

    size_t count() const override { return count_; }
    double mass() const override { return static_cast<double>(count_); }
    bool held(Row key) const override { return place_[key] != 0; }

    std::string members() const override { return "keys"; }
    void save(State &state) const override { state.keys.assign(keys_.data(), keys_.data() + count_); }
    void load(const State &state) override {
        place_.clear();
        count_ = 0;
        insert(state.keys.data(), nullptr, state.keys.size());
    }

private:
    static size_t chances(uint32_t held, size_t n, double *probabilities) {
        std::fill_n(probabilities, n, 1.0 / held);
        return n;
    }

    // Does the first n steps of a Fisher-Yates shuffle and undoes them, because a draw must leave the contents unchanged.
    void shuffle(bitgen_t *random, size_t n, Row *keys) {
        swapped_.resize(n);
        for (size_t i = 0; i < n; ++i) {
            swapped_[i] = static_cast<Row>(i) + below(random, static_cast<uint32_t>(count_ - i));
            std::swap(keys_[i], keys_[swapped_[i]]);
            keys[i] = keys_[i];
        }
        for (size_t i = n; i-- > 0;) std::swap(keys_[i], keys_[swapped_[i]]);
    }

    PageArray<Row> keys_;   // the held keys are the first count_
    PageArray<Row> place_;  // the index of each key in keys_, plus one; 0: not held
    std::vector<Row> swapped_;
    size_t count_ = 0;
    const bool replacement_;
};

}  // namespace echo_samplers
