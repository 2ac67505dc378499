// Prioritized experience replay, the proportional variant (Schaul et al. 2016). 4.7 bytes per row.
#pragma once

#include <algorithm>
#include <cfloat>
#include <cmath>

#include "power.hpp"
#include "sum_tree.hpp"

namespace echo_samplers {

// Rounds a priority to float32: a positive one stays positive, and a large one stays finite.
inline float narrow(double priority) {
    if (priority <= 0) return 0;
    return static_cast<float>(std::clamp(priority, static_cast<double>(FLT_MIN), static_cast<double>(FLT_MAX)));
}

// The weight (priority + eps) ** alpha: it is 0 only if both are 0, and never with an alpha of 0.
inline float power_weight(float priority, float eps, float alpha) {
    if (alpha == 0) return 1;
    const float sum = std::min(priority + eps, FLT_MAX);
    if (!(sum > 0)) return 0;
    const float weight = alpha == 1 ? sum : alpha == 0.5f ? std::sqrt(sum) : std::pow(sum, alpha);
    return std::clamp(weight, FLT_MIN, FLT_MAX);
}

// The weights of n priorities, equal to power_weight() except for the last digit; returns the largest of them and `most`. n is a multiple
// of four.
ECHO_SAMPLERS_WIDE inline float power_weights(const double *priorities, float *weights, size_t n, float eps, float alpha, float most) {
    using namespace wide;
    constexpr double kLeast = FLT_MIN, kMost = FLT_MAX;
    const Lanes none = {}, least = none + kLeast, limit = none + kMost;
    const Floats added = {eps, eps, eps, eps};
    Floats largest = {most, most, most, most};
    for (size_t i = 0; i < n; i += 4) {
        const Lanes given = read(priorities + i);
        Lanes p = given < least ? least : given;
        p = p > limit ? limit : p;
        p = given > none ? p : none;
        const Floats narrow = __builtin_convertvector(p, Floats);
        largest = narrow > largest ? narrow : largest;
        Lanes sum = __builtin_convertvector(narrow + added, Lanes);
        sum = sum > limit ? limit : sum;
        Lanes weight = power(sum < least ? least : sum, alpha);
        weight = weight < least ? least : weight;
        weight = weight > limit ? limit : weight;
        if (alpha != 0) weight = sum > none ? weight : none;
        write(weights + i, __builtin_convertvector(weight, Floats));
    }
    for (int lane = 0; lane < 4; ++lane) most = std::max(most, largest[lane]);
    return most;
}

class Prioritized final : public RowSampler {
public:
    Prioritized(uint64_t capacity, double alpha, double eps, bool stratified)
        : RowSampler(capacity), tree_(capacity), held_((capacity + 63) / 64), alpha_(static_cast<float>(alpha)),
          eps_(static_cast<float>(eps)), stratified_(stratified) {}

    void insert(const Row *keys, const double *priorities, size_t n) override {
        for (size_t i = 0; i < n; ++i) held_[keys[i] / 64] |= uint64_t{1} << (keys[i] % 64);
        count_ += n;
        set(keys, priorities, n);
    }
    void update(const Row *keys, const double *priorities, size_t n) override { set(keys, priorities, n); }
    void remove(const Row *keys, size_t n) override {
        const float weights[kChunk] = {};
        for (size_t i = 0; i < n; ++i) held_[keys[i] / 64] &= ~(uint64_t{1} << (keys[i] % 64));
        for (size_t begin = 0; begin < n; begin += kChunk) tree_.set(keys + begin, weights, std::min(kChunk, n - begin));
        count_ -= n;
    }
    size_t sample(bitgen_t *random, size_t n, Row *keys, double *probabilities) override {
        if (!(tree_.total() > 0)) return 0;
        tree_.draw(random, stratified_, n, keys, probabilities);
        return n;
    }
    size_t count() const override { return count_; }
    double mass() const override { return tree_.total(); }
    bool held(Row key) const override { return held_[key / 64] >> (key % 64) & 1; }
    // Only the weight is kept, so this is the priority that has that weight, to about seven digits. With an alpha of 0 it is 1 for all.
    double priority(Row key) const override { return unweigh(tree_.weight(key), alpha_, eps_); }

    std::string members() const override { return "keys weights numbers"; }
    void save(State &state) const override {
        state.keys.reserve(count_);
        state.weights.reserve(count_);
        for (Row row = 0; state.keys.size() < count_; ++row) {
            if (!held(row)) continue;
            state.keys.push_back(row);
            state.weights.push_back(tree_.weight(row));
        }
        state.numbers = {maximum_, alpha_, eps_};
    }
    std::string check(const State &state) const override {
        if (state.weights.size() != state.keys.size()) return "'weights' has another length than 'keys'";
        for (double weight : state.weights)
            if (!(weight >= 0 && weight <= FLT_MAX)) return "'weights' holds a weight that is negative or not finite";
        if (state.numbers.size() != 3) return "'numbers' must be the largest priority so far, alpha and eps";
        for (double number : state.numbers)
            if (!(number >= 0 && number <= FLT_MAX)) return "'numbers' holds a number that is negative or not finite";
        return {};
    }
    void load(const State &state) override {
        held_.clear();
        tree_.clear();
        count_ = state.keys.size();
        maximum_ = static_cast<float>(state.numbers[0]);
        const auto alpha = static_cast<float>(state.numbers[1]), eps = static_cast<float>(state.numbers[2]);
        std::vector<float> weights;
        weights.reserve(count_);
        for (double saved : state.weights) {
            auto weight = static_cast<float>(saved);
            // The state was saved with other options, so the weights are computed anew from the priorities that they represent.
            if (alpha != alpha_ || eps != eps_) weight = weight_of(narrow(unweigh(weight, alpha, eps)));
            weights.push_back(weight);
        }
        for (Row key : state.keys) held_[key / 64] |= uint64_t{1} << (key % 64);
        tree_.set(state.keys.data(), weights.data(), count_);
    }

private:
    static constexpr size_t kChunk = 256;

    static double unweigh(double weight, double alpha, double eps) {
        if (weight == 0) return 0;
        return alpha == 0 ? 1 : std::max(0.0, std::pow(weight, 1 / alpha) - eps);
    }

    void set(const Row *keys, const double *priorities, size_t n) {
        float weights[kChunk];
        double padded[kChunk];
        for (size_t begin = 0; begin < n; begin += kChunk) {
            const size_t size = std::min(kChunk, n - begin), whole = (size + 3) & ~size_t{3};
            if (!priorities) {
                if (begin == 0) std::fill(weights, weights + size, weight_of(maximum_));
            } else if (alpha_ == 1 || alpha_ == 0.5f) {  // this is exact and takes one instruction
                for (size_t i = 0; i < size; ++i) weights[i] = narrow(priorities[begin + i]);
                for (size_t i = 0; i < size; ++i) maximum_ = std::max(maximum_, weights[i]);
                for (size_t i = 0; i < size; ++i) weights[i] = power_weight(weights[i], eps_, alpha_);
            } else {
                std::copy(priorities + begin, priorities + begin + size, padded);
                std::fill(padded + size, padded + whole, 0.0);
                maximum_ = power_weights(padded, weights, whole, eps_, alpha_, maximum_);
            }
            tree_.set(keys + begin, weights, size);
        }
    }

    // The weight of one priority, in the form of set().
    float weight_of(float priority) const {
        if (alpha_ == 1 || alpha_ == 0.5f) return power_weight(priority, eps_, alpha_);
        const double priorities[4] = {priority};
        float weights[4];
        power_weights(priorities, weights, 4, eps_, alpha_, 0);
        return weights[0];
    }

    SumTree tree_;
    PageArray<uint64_t> held_;  // one bit per row, because a weight of 0 does not show whether a row holds a sample
    const float alpha_;
    const float eps_;
    const bool stratified_;
    float maximum_ = 1.0f;  // the largest priority so far, unchanged; it is transformed only when it is used
    size_t count_ = 0;
};

}  // namespace echo_samplers
