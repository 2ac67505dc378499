// Stratified replay: a hot stratum with recent and valuable samples, and a cold one with all others. 59 bytes per row.
//
// Every batch takes a share `hot_ratio` from the hot stratum and the rest from the cold one. Within a stratum, a sample is drawn in
// proportion to a weight of its score. The reported probability of a key is that of the mixture, so importance weights correct it exactly.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>

#include "heap.hpp"
#include "ordered.hpp"
#include "prioritized.hpp"
#include "sum_tree.hpp"

namespace echo_samplers {

enum class Weighting : int { proportional, softmax, rank, robust };

struct HotColdOptions {
    uint64_t capacity;
    uint64_t hot_capacity;
    double hot_ratio;
    uint64_t age_threshold;  // 0: age does not matter
    int weighting;           // a Weighting
    double alpha;
    double eps;
    double temperature;
    bool by_versions;  // the age of a sample is counted in versions of the policy, not in inserts
    double promote_above;  // quantiles of all scores
    double demote_below;
};

// The scale of all scores: their quantiles, estimated from at most kSize of them. They are computed anew when an eighth of the samples has
// changed, not at each change. Until then, weights keep their scale, and probabilities follow the weights as they are.
class Scale {
public:
    static constexpr size_t kSize = 1024;
    static constexpr double kClip = 5.0;     // robust: scores that are more deviations away from the median are clipped
    static constexpr double kDepth = 80.0;   // softmax: exp(-80) is the smallest weight, about the least that float32 can hold together with 1

    double quantile(double q) const {
        if (sorted_.empty()) return 0;
        return sorted_[static_cast<size_t>(q * static_cast<double>(sorted_.size() - 1))];
    }
    double highest() const { return highest_; }
    bool empty() const { return sorted_.empty(); }

    void take(std::vector<double> scores, double highest, size_t count) {
        sorted_ = std::move(scores);
        std::sort(sorted_.begin(), sorted_.end());
        highest_ = highest;
        count_ = static_cast<double>(count);
        measure();
    }

    float weight(double score, const HotColdOptions &options) const {
        double weight = 0;
        switch (static_cast<Weighting>(options.weighting)) {
            case Weighting::proportional:
                return power_weight(narrow(score), static_cast<float>(options.eps), static_cast<float>(options.alpha));
            case Weighting::softmax:
                weight = std::exp(std::clamp((score - highest_) / options.temperature, -kDepth, kDepth));
                break;
            case Weighting::rank: {
                const auto above = static_cast<double>(sorted_.end() - std::upper_bound(sorted_.begin(), sorted_.end(), score));
                // The score lies between two known scores, so it gets the middle rank of the unknown scores between them.
                const double each = sorted_.empty() ? 1.0 : std::max(1.0, count_ / static_cast<double>(sorted_.size()));
                const double rank = 1.0 + above * each + (each - 1.0) / 2;
                weight = std::pow(rank, -options.alpha);
                break;
            }
            case Weighting::robust: {
                const double z = deviation_ > 0 ? std::clamp((score - median_) / deviation_, -kClip, kClip) : 0.0;
                weight = std::exp(std::clamp(z / options.temperature, -kDepth, kDepth));
                break;
            }
        }
        return std::clamp(static_cast<float>(weight), FLT_MIN, FLT_MAX);
    }

    // These serve checkpoints.
    void append(std::vector<double> &numbers) const {
        numbers.push_back(highest_);
        numbers.push_back(count_);
        numbers.insert(numbers.end(), sorted_.begin(), sorted_.end());
    }
    void restore(const double *numbers, size_t n) {
        highest_ = numbers[0];
        count_ = numbers[1];
        sorted_.assign(numbers + 2, numbers + n);
        measure();
    }

private:
    // The interquartile range is 1.349 standard deviations of a normal distribution. If half of the scores are equal, wider ranges are used.
    void measure() {
        median_ = quantile(0.5);
        deviation_ = 0;
        for (const auto &[outside, deviations] : {std::array{0.25, 1.349}, std::array{0.05, 3.290}, std::array{0.0, 6.0}}) {
            deviation_ = (quantile(1 - outside) - quantile(outside)) / deviations;
            if (deviation_ > 0) return;
        }
    }

    std::vector<double> sorted_;
    double highest_ = 0;
    double count_ = 0;
    double median_ = 0;
    double deviation_ = 0;
};

class HotCold final : public RowSampler {
public:
    explicit HotCold(const HotColdOptions &options)
        : RowSampler(options.capacity), options_(options), hot_(options.capacity), cold_(options.capacity), entry_(options.capacity),
          entered_(options.capacity), seen_((options.capacity + 63) / 64), wanted_(options.temperature) {}

    void insert(const Row *keys, const double *priorities, size_t n) override {
        apply_temperature();
        double largest = 0;
        for (size_t i = 0; i < n; ++i) {
            const double score = priorities ? priorities[i] : maximum_;
            maximum_ = std::max(maximum_, score);
            largest = std::max(largest, score);
            ++inserts_;
            extent_ = std::max(extent_, uint64_t{keys[i]} + 1);
            heat({score, inserts_, keys[i]});
            cool_old();
        }
        finish(n, largest);
    }

    void remove(const Row *keys, size_t n) override {
        for (size_t i = 0; i < n; ++i) {
            const bool hot = hot_.heap.holds(keys[i]);
            (hot ? hot_ : cold_).heap.remove(keys[i]);
            if (hot) entry_.remove(keys[i]);
            (hot ? hot_ : cold_).note(keys[i], 0.0f);
        }
        finish(0, 0);
    }

    void update(const Row *keys, const double *priorities, size_t n) override {
        apply_temperature();
        const double largest = n ? *std::max_element(priorities, priorities + n) : 0.0;
        maximum_ = std::max(maximum_, largest);
        const double promote = scale_.quantile(options_.promote_above), demote = scale_.quantile(options_.demote_below);
        for (size_t i : last_of_each(keys, n)) {
            const Row key = keys[i];
            const double score = priorities[i];
            const bool hot = hot_.heap.holds(key);
            Stratum &stratum = hot ? hot_ : cold_;
            const double before = stratum.heap.of(key).rank;
            stratum.heap.rank(key, score);
            if (hot && score < before && score < demote) {
                cool(key);
            } else if (!hot && score > before && score >= promote && deserves(score)) {
                RowHeap::Entry entry = cold_.heap.of(key);
                cold_.heap.remove(key);
                cold_.note(key, 0.0f);
                heat(entry);
            } else {
                stratum.note(key, weight(score));
            }
        }
        finish(n, largest);
    }

    void published(uint64_t version) override {
        version_ = std::max(version_, version);
        cool_old();
        finish(0, 0);
    }

    // Any thread may set the temperature. All weights are computed anew at the next insert, update or draw, so that a batch is drawn with one
    // temperature and its probabilities are exact.
    double temperature() const { return wanted_.load(std::memory_order_relaxed); }
    void set_temperature(double temperature) { wanted_.store(temperature, std::memory_order_relaxed); }

    size_t sample(bitgen_t *random, size_t n, Row *keys, double *probabilities) override {
        apply_temperature();
        const bool hot = hot_.tree.total() > 0, cold = cold_.tree.total() > 0;
        if (!hot && !cold) return 0;
        size_t from_hot = hot ? n : 0;
        double share = hot ? 1.0 : 0.0;
        if (hot && cold) {
            // It is rounded up at random, so often that the expected share is exact. Always rounding the same way would falsify the reported
            // probabilities.
            share = options_.hot_ratio;
            const double u = random->next_double(random->state);
            from_hot = std::min(n, static_cast<size_t>(static_cast<double>(n) * share + u));
        }
        if (from_hot) hot_.tree.draw(random, false, from_hot, keys, probabilities);
        if (from_hot < n) cold_.tree.draw(random, false, n - from_hot, keys + from_hot, probabilities + from_hot);
        for (size_t i = 0; i < n; ++i) probabilities[i] *= i < from_hot ? share : 1 - share;
        return n;
    }

    // Cold samples come before hot ones. In each stratum the lowest scores come first, and among equal scores the oldest.
    size_t victims(size_t n, Row *keys) const override {
        if (n > count()) return 0;
        const size_t from_cold = std::min(n, cold_.heap.count());
        cold_.heap.best(from_cold, keys);
        hot_.heap.best(n - from_cold, keys + from_cold);
        return n;
    }

    size_t count() const override { return hot_.heap.count() + cold_.heap.count(); }
    bool held(Row key) const override { return hot_.heap.holds(key) || cold_.heap.holds(key); }
    double priority(Row key) const override { return (hot_.heap.holds(key) ? hot_ : cold_).heap.of(key).rank; }
    bool hot(Row key) const { return hot_.heap.holds(key); }

    std::string members() const override { return "keys priorities numbers hot entered"; }

    void save(State &state) const override {
        std::vector<RowHeap::Entry> entries(hot_.heap.begin(), hot_.heap.end());
        entries.insert(entries.end(), cold_.heap.begin(), cold_.heap.end());
        std::sort(entries.begin(), entries.end(), [](const auto &a, const auto &b) { return a.arrival < b.arrival; });
        for (const auto &entry : entries) {
            state.keys.push_back(entry.key);
            state.priorities.push_back(entry.rank);
        }
        state.hot.resize(entry_.count());
        entry_.walk(false, entry_.count(), state.hot.data());
        for (Row key : state.hot) state.entered.push_back(static_cast<double>(entered_[key]));
        state.numbers = {maximum_, static_cast<double>(inserts_), static_cast<double>(changes_), static_cast<double>(extent_),
                         static_cast<double>(version_), options_.by_versions ? 1.0 : 0.0, temperature() == first_temperature_ ? 0.0 : temperature()};
        scale_.append(state.numbers);
    }

    std::string check(const State &state) const override {
        if (state.numbers.size() < kNumbers || state.numbers.size() > kNumbers + Scale::kSize) return "'numbers' has a wrong length";
        for (double number : state.numbers)
            if (!(number >= 0) || !std::isfinite(number)) return "'numbers' holds a number that is negative or not finite";
        for (size_t i = 1; i < kCounters - 1; ++i)  // the last one is a temperature
            if (state.numbers[i] > kExact || state.numbers[i] != std::floor(state.numbers[i])) return "'numbers' holds a fraction as a count";
        if (state.numbers[3] > static_cast<double>(capacity_)) return "'numbers' counts more rows than the capacity";
        if (state.numbers[1] < static_cast<double>(state.keys.size())) return "'numbers' counts fewer inserts than there are keys";
        if (state.numbers[5] != (options_.by_versions ? 1 : 0))
            return std::string("'numbers' counts ages in ") + (options_.by_versions ? "inserts, but age_unit is 'versions'" : "versions, but age_unit is 'inserts'");
        if (!std::is_sorted(state.numbers.begin() + kNumbers, state.numbers.end())) return "'numbers' holds quantiles out of order";
        for (Row key : state.keys)
            if (key >= state.numbers[3]) return "'keys' has a row above the largest one of 'numbers'";
        if (state.hot.size() != state.entered.size()) return "'entered' has another length than 'hot'";
        if (state.hot.size() > options_.hot_capacity)
            return "'hot' has " + std::to_string(state.hot.size()) + " keys, but hot_capacity is " + std::to_string(options_.hot_capacity);
        for (size_t i = 0; i < state.entered.size(); ++i) {
            const double now = state.entered[i];
            if (!(now >= (i ? state.entered[i - 1] : 0)) || now > state.numbers[options_.by_versions ? 4 : 1]) return "'entered' is out of order";
        }
        std::vector<Row> keys = state.keys, hot = state.hot;
        std::sort(keys.begin(), keys.end());
        std::sort(hot.begin(), hot.end());
        if (std::adjacent_find(hot.begin(), hot.end()) != hot.end()) return "'hot' holds a key twice";
        if (!std::includes(keys.begin(), keys.end(), hot.begin(), hot.end())) return "'hot' holds a key that is not in 'keys'";
        return {};
    }

    void load(const State &state) override {
        for (Stratum *stratum : {&hot_, &cold_}) stratum->clear();
        entry_.clear();
        maximum_ = state.numbers[0];
        inserts_ = static_cast<uint64_t>(state.numbers[1]);
        changes_ = static_cast<uint64_t>(state.numbers[2]);
        extent_ = static_cast<uint64_t>(state.numbers[3]);
        version_ = static_cast<uint64_t>(state.numbers[4]);
        options_.temperature = state.numbers[6] > 0 ? state.numbers[6] : first_temperature_;
        set_temperature(options_.temperature);
        scale_.restore(state.numbers.data() + kCounters, state.numbers.size() - kCounters);
        for (size_t i = 0; i < state.hot.size(); ++i) {
            entry_.append(state.hot[i]);
            entered_[state.hot[i]] = static_cast<uint64_t>(state.entered[i]);
        }
        // The newest arrival counts as the last insert, so that later arrivals get later numbers.
        const uint64_t first = inserts_ - state.keys.size();
        for (size_t i = 0; i < state.keys.size(); ++i)
            (entry_.holds(state.keys[i]) ? hot_ : cold_).heap.push({state.priorities[i], first + i + 1, state.keys[i]});
        weigh();
    }

private:
    static constexpr size_t kCounters = 7;
    static constexpr size_t kNumbers = kCounters + 2;      // the counters, and the numbers of a Scale other than its quantiles
    static constexpr double kExact = 9007199254740992.0;  // whole numbers up to here are exact as float64

    struct Stratum {
        explicit Stratum(uint64_t capacity) : heap(capacity), tree(capacity) {}
        // All weights of one call go into the tree together, because writing them is most of the cost of a batch.
        void note(Row key, float weight) {
            rows.push_back(key);
            weights.push_back(weight);
        }
        void flush() {
            tree.set(rows.data(), weights.data(), rows.size());
            rows.clear();
            weights.clear();
        }
        void clear() {
            heap.clear();
            tree.clear();
            rows.clear();
            weights.clear();
        }
        RowHeap heap;  // lowest score first
        SumTree tree;
        std::vector<Row> rows;
        std::vector<float> weights;
    };

    float weight(double score) const { return scale_.weight(score, options_); }

    bool deserves(double score) const {
        return hot_.heap.count() < options_.hot_capacity || score > hot_.heap.first().rank;
    }

    void heat(const RowHeap::Entry &entry) {
        hot_.heap.push(entry);
        entry_.append(entry.key);
        entered_[entry.key] = clock();
        hot_.note(entry.key, weight(entry.rank));
        if (hot_.heap.count() > options_.hot_capacity) cool(hot_.heap.first().key);
    }

    void cool(Row key) {
        const RowHeap::Entry entry = hot_.heap.of(key);
        hot_.heap.remove(key);
        entry_.remove(key);
        hot_.note(key, 0.0f);
        cold_.heap.push(entry);
        cold_.note(key, weight(entry.rank));
    }

    uint64_t clock() const { return options_.by_versions ? version_ : inserts_; }

    void apply_temperature() {
        const double wanted = temperature();
        if (wanted == options_.temperature) return;
        options_.temperature = wanted;
        weigh();
    }

    void cool_old() {
        if (!options_.age_threshold) return;
        while (!entry_.empty() && clock() - entered_[entry_.oldest()] > options_.age_threshold) cool(entry_.oldest());
    }

    // The places of the valid entries. Of several entries of one key only the last is valid; an earlier one could move it between the strata.
    const std::vector<size_t> &last_of_each(const Row *keys, size_t n) {
        places_.clear();
        for (size_t i = n; i-- > 0;) {
            uint64_t &word = seen_[keys[i] / 64];
            const uint64_t bit = uint64_t{1} << (keys[i] % 64);
            if (!(word & bit)) places_.push_back(i);
            word |= bit;
        }
        for (size_t i = 0; i < n; ++i) seen_[keys[i] / 64] = 0;
        std::reverse(places_.begin(), places_.end());
        return places_;
    }

    // Ends a call that gave n scores, none of them above `largest`.
    void finish(size_t n, double largest) {
        changes_ += n;
        // A score that exceeds the scale by half its depth would make the weights of all others indistinguishable.
        const bool beyond = static_cast<Weighting>(options_.weighting) == Weighting::softmax &&
                            largest > scale_.highest() + Scale::kDepth / 2 * options_.temperature;
        if (n && (scale_.empty() || beyond || changes_ >= std::max<uint64_t>(16, count() / 8))) {
            changes_ = 0;
            rescale();
        } else {
            hot_.flush();
            cold_.flush();
        }
    }

    // The rows for the quantiles depend only on the held rows, so that a restored sampler uses the same ones. Steps of the golden ratio
    // meet the rows of all interleaved workers, while a fixed stride could meet the rows of one worker only.
    void rescale() {
        std::vector<double> scores;
        if (extent_ <= Scale::kSize) {
            for (Row row = 0; row < extent_; ++row)
                if (held(row)) scores.push_back(priority(row));
        } else {
            uint32_t at = 0;
            for (size_t i = 0; i < Scale::kSize; ++i, at += 0x9E3779B1u) {
                const auto row = static_cast<Row>(uint64_t{at} * extent_ >> 32);
                if (held(row)) scores.push_back(priority(row));
            }
        }
        double highest = 0;
        for (const Stratum *stratum : {&hot_, &cold_})
            for (const auto &entry : stratum->heap) highest = std::max(highest, entry.rank);
        if (scores.empty() && count()) scores.push_back(highest);
        scale_.take(std::move(scores), highest, count());
        if (static_cast<Weighting>(options_.weighting) == Weighting::proportional) {
            hot_.flush();
            cold_.flush();
        } else {
            weigh();
        }
    }

    void weigh() {
        for (Stratum *stratum : {&hot_, &cold_}) {
            stratum->rows.clear();
            stratum->weights.clear();
            stratum->tree.rebuild(extent_, [this, stratum](Row row) {
                return stratum->heap.holds(row) ? weight(stratum->heap.of(row).rank) : 0.0f;
            });
        }
    }

    HotColdOptions options_;  // only the temperature changes
    const double first_temperature_ = options_.temperature;
    Stratum hot_;
    Stratum cold_;
    RowList entry_;            // the hot keys, in the order in which they became hot
    PageArray<uint64_t> entered_;  // the value of clock() when each hot key became hot
    PageArray<uint64_t> seen_;     // one bit per row, all clear between calls
    std::vector<size_t> places_;
    Scale scale_;
    uint64_t inserts_ = 0;
    uint64_t changes_ = 0;  // changes since the last rescale
    uint64_t extent_ = 0;   // all rows that were ever used are below this
    uint64_t version_ = 0;  // the newest version of the policy
    double maximum_ = 1.0;
    std::atomic<double> wanted_;
};

}  // namespace echo_samplers
