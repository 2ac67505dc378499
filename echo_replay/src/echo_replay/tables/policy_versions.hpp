// The version of the policy that made each row. It is kept beside the rows, and indexed by version. Rows that lag too far behind the newest
// policy are therefore removed without a search (O(log v) each, with v versions in the table), and the lags of a table are known at once.
//
// Changes happen under the table's mutex. of() may be read without it while rows are gathered; the reader then checks the generation before and after.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

namespace echo::replay {

struct LagLimits {
    static constexpr uint64_t kNoLimit = UINT64_MAX;

    bool kept = false;             // whether versions are kept at all
    uint64_t max_lag = kNoLimit;   // rows with a larger lag are removed
    double weight = 1;             // the factor by which each version of lag multiplies a row's weight in a batch
};

class PolicyVersions {
public:
    PolicyVersions(uint32_t capacity, const LagLimits &limits) : limits_(limits) {
        if (!limits.kept) return;
        of_ = std::make_unique<uint64_t[]>(capacity);
        next_ = std::make_unique<uint32_t[]>(capacity), previous_ = std::make_unique<uint32_t[]>(capacity);
    }

    bool kept() const { return limits_.kept; }
    const LagLimits &limits() const { return limits_; }
    uint64_t of(uint32_t row) const { return __atomic_load_n(&of_[row], __ATOMIC_RELAXED); }
    uint64_t newest() const { return __atomic_load_n(&newest_, __ATOMIC_RELAXED); }
    void publish(uint64_t version) { __atomic_store_n(&newest_, version, __ATOMIC_RELAXED); }
    // A version above the newest is a mistake of its worker, and has a lag of 0.
    uint64_t lag(uint64_t version) const { return version < newest() ? newest() - version : 0; }
    bool stale(uint64_t version, uint64_t newest) const { return version < newest && newest - version > limits_.max_lag; }
    double weight(uint64_t version) const { return std::pow(limits_.weight, double(lag(version))); }

    void insert(uint32_t row, uint64_t version) {
        __atomic_store_n(&of_[row], version, __ATOMIC_RELAXED);
        // Most rows have the same version as the row before.
        if (by_version_.empty() || by_version_.rbegin()->first != version) by_version_[version];
        Rows &rows = by_version_.rbegin()->first == version ? by_version_.rbegin()->second : by_version_[version];
        next_[row] = kNone, previous_[row] = rows.last;
        (rows.last == kNone ? rows.first : next_[rows.last]) = row;
        rows.last = row;
        ++rows.count;
    }
    // The row is no item any more. of() stays valid for readers that are gathering the row.
    void remove(uint32_t row) {
        const auto at = by_version_.find(of(row));
        Rows &rows = at->second;
        (previous_[row] == kNone ? rows.first : next_[previous_[row]]) = next_[row];
        (next_[row] == kNone ? rows.last : previous_[next_[row]]) = previous_[row];
        if (--rows.count == 0) by_version_.erase(at);
    }
    // Returns the row that lags furthest, if it lags too far behind `newest`, and otherwise kNone. If several lag equally far, it is the oldest of them.
    uint32_t stalest(uint64_t newest) const {
        if (by_version_.empty() || !stale(by_version_.begin()->first, newest)) return kNone;
        return by_version_.begin()->second.first;
    }
    // Returns (version, number of its rows), oldest version first.
    std::vector<std::pair<uint64_t, uint64_t>> counts() const {
        std::vector<std::pair<uint64_t, uint64_t>> out;
        for (const auto &[version, rows] : by_version_) out.emplace_back(version, rows.count);
        return out;
    }
    void clear() { by_version_.clear(); }

    uint64_t bytes_per_row() const { return limits_.kept ? 16 : 0; }

    static constexpr uint32_t kNone = UINT32_MAX;

private:
    struct Rows {  // rows of one version, in order of arrival
        uint32_t first = kNone, last = kNone, count = 0;
    };

    const LagLimits limits_;
    std::unique_ptr<uint64_t[]> of_;
    std::unique_ptr<uint32_t[]> next_, previous_;
    std::map<uint64_t, Rows> by_version_;
    uint64_t newest_ = 0;
};

}  // namespace echo::replay
