// A 16-ary tree of sums over the rows: draws a row in proportion to its weight. 5.1 bytes per row.
//
//   leaves       float, one weight per row; a node of 16 is one cache line
//   level 0..    double, one sum for each node below; a node has 16 sums, and 16 starts: the sum of what comes before each child
//   last level   one node
//
// * A sum is never changed by a difference: whenever a weight changes, every sum above it is added up anew from its 16 children. So
//   the sums are a function of the weights alone: they do not drift however many updates there are, nothing has to be rebuilt, and a
//   tree loaded from a checkpoint draws what the saved one would have drawn.
// * A batch is walked level by level: while one draw waits for the memory of its next node, the others are worked on.
// * Children come in the order 0, 4, 8, 12, 1, 5, ...: four lanes of a vector add up their columns at once. Any order will do, as long
//   as it is always the same; the lanes are four doubles whatever the machine has, so that rounding is the same everywhere.
#pragma once

#include <algorithm>
#include <cfloat>

#include "rows.hpp"

namespace echo_samplers {

namespace wide {

typedef double Lanes __attribute__((vector_size(32)));
typedef int64_t Masks __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(16)));

#define ECHO_SAMPLERS_INLINE __attribute__((always_inline)) inline

// Single loads and stores of a whole vector: copied in other pieces, it would wait for its own stores.
ECHO_SAMPLERS_INLINE Lanes read(const double *from) {
    typedef double Unaligned __attribute__((vector_size(32), aligned(8), may_alias));
    return *reinterpret_cast<const Unaligned *>(from);
}
ECHO_SAMPLERS_INLINE Lanes read(const float *from) {
    typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const Unaligned *>(from), Lanes);
}

ECHO_SAMPLERS_INLINE void write(double *to, const Lanes &lanes) {
    typedef double Unaligned __attribute__((vector_size(32), aligned(8), may_alias));
    *reinterpret_cast<Unaligned *>(to) = lanes;
}

// The running sums of 16 weights before each of them: down the four columns, then across.
struct Starts {
    Lanes column[4];
    double total;
};

template <class T>
ECHO_SAMPLERS_INLINE Starts starts(const T *weights) {
    const Lanes a = read(weights), b = a + read(weights + 4), c = b + read(weights + 8), d = c + read(weights + 12);
    const double one = d[0], two = one + d[1], three = two + d[2];
    const Lanes before = {0.0, one, two, three};
    return {{before, a + before, b + before, c + before}, three + d[3]};
}

// The child that starts last, of those that start at or before `at`.
ECHO_SAMPLERS_INLINE uint32_t child_at(const Lanes &a, const Lanes &b, const Lanes &c, const Lanes &d, double at) {
    const Lanes point = {at, at, at, at};
    Masks passed = ((a <= point) + (b <= point)) + ((c <= point) + (d <= point));
    passed += __builtin_shuffle(passed, Masks{2, 3, 0, 1});
    const auto last = static_cast<uint32_t>(-(passed[0] + passed[1])) - 1;
    return (last & 3) * 4 + (last >> 2);
}

// An inner node: what its children sum up to, and where each starts. What weighs nothing and has nothing after it starts nowhere, so
// that no rounding can lead there; before others, such a child is passed over, as the next one starts at the same point.
struct Node {
    double sums[16];
    double starts[16];
};

// Bring the starts of a node up to its sums; returns the sum of the sums.
ECHO_SAMPLERS_INLINE double refresh(Node &node) {
    const Starts found = starts(node.sums);
    const double infinite = std::numeric_limits<double>::infinity();
    const Lanes total = {found.total, found.total, found.total, found.total}, nowhere = {infinite, infinite, infinite, infinite};
    write(node.starts, found.column[0] < total ? found.column[0] : nowhere);
    write(node.starts + 4, found.column[1] < total ? found.column[1] : nowhere);
    write(node.starts + 8, found.column[2] < total ? found.column[2] : nowhere);
    write(node.starts + 12, found.column[3] < total ? found.column[3] : nowhere);
    return found.total;
}

ECHO_SAMPLERS_WIDE inline void sum_leaves(const float *leaves, Node *parents, const Row *entries, size_t n) {
    for (size_t i = 0; i < n; ++i) parents[entries[i] / 16].sums[entries[i] % 16] = starts(leaves + size_t{entries[i]} * 16).total;
}
ECHO_SAMPLERS_WIDE inline void sum_nodes(Node *nodes, Node *parents, const Row *entries, size_t n) {
    for (size_t i = 0; i < n; ++i) parents[entries[i] / 16].sums[entries[i] % 16] = refresh(nodes[entries[i]]);
}

ECHO_SAMPLERS_WIDE inline void descend_nodes(const Node *level, Row *nodes, double *points, size_t n) {
    for (size_t i = 0; i < n; ++i) {
        const double *from = level[nodes[i]].starts;
        const uint32_t child = child_at(read(from), read(from + 4), read(from + 8), read(from + 12), points[i]);
        points[i] -= from[child];
        nodes[i] = nodes[i] * 16 + child;
    }
}
ECHO_SAMPLERS_WIDE inline void descend_leaves(const float *leaves, Row *nodes, const double *points, size_t n) {
    constexpr double kInside = 1.0 - 2 * std::numeric_limits<double>::epsilon();
    for (size_t i = 0; i < n; ++i) {
        const Starts found = starts(leaves + size_t{nodes[i]} * 16);
        const double end = found.total * kInside;  // rounding on the way down must not lead past the last leaf that weighs anything
        const double at = points[i] < end ? points[i] : end;
        nodes[i] = nodes[i] * 16 + child_at(found.column[0], found.column[1], found.column[2], found.column[3], at);
    }
}

}  // namespace wide

class SumTree {
public:
    explicit SumTree(uint64_t capacity) : leaves_((capacity + 15) / 16 * 16), nodes_(place_levels(capacity)) {}

    float weight(Row row) const { return leaves_[row]; }
    double total() const { return total_; }

    // Give n rows new weights, none negative; of a row that occurs twice the last one counts.
    void set(const Row *rows, const float *weights, size_t n) {
        for (size_t begin = 0; begin < n; begin += kChunk) set_chunk(rows + begin, weights + begin, std::min(kChunk, n - begin));
    }

    // Draw n rows, each with probability weight / total(). total() must be positive. With `strata`, the i-th of n equal parts of the
    // total gives the i-th row: every row is drawn as often on average, but more evenly.
    void draw(bitgen_t *random, bool strata, size_t n, Row *rows, double *probabilities) const {
        double points[kChunk];
        const double part = total_ / (strata ? static_cast<double>(n) : 1.0);
        for (size_t begin = 0; begin < n; begin += kChunk) {
            const size_t size = std::min(kChunk, n - begin);
            for (size_t i = 0; i < size; ++i)
                points[i] = (static_cast<double>(strata ? begin + i : 0) + random->next_double(random->state)) * part;
            walk(points, rows + begin, size);
            for (size_t i = 0; i < size; ++i) probabilities[begin + i] = leaves_[rows[begin + i]] / total_;
        }
    }

    // All weights anew: weight(row) for the rows below `extent`, 0 for the others.
    template <class Weight>
    void rebuild(size_t extent, Weight weight) {
        for (size_t row = 0; row < extent; ++row) leaves_[row] = weight(static_cast<Row>(row));
        if (extent < extent_) std::fill(leaves_.data() + extent, leaves_.data() + extent_, 0.0f);
        size_t entries = (std::max(extent, extent_) + 15) / 16;
        extent_ = extent;
        Row list[kChunk];
        for (size_t level = 0; level < levels_; ++level, entries = (entries + 15) / 16) {
            for (size_t begin = 0; begin < entries; begin += kChunk) {
                const size_t size = std::min(kChunk, entries - begin);
                for (size_t i = 0; i < size; ++i) list[i] = static_cast<Row>(begin + i);
                sum_up(level, list, size);
            }
        }
        total_ = wide::refresh(*level(levels_ - 1));
    }

    void clear() {
        rebuild(0, [](Row) { return 0.0f; });
    }

private:
    static constexpr size_t kChunk = 256;
    static constexpr size_t kLevels = 8;  // 16**8 rows

    // Where each level of nodes begins; returns how many there are in all.
    size_t place_levels(uint64_t capacity) {
        size_t all = 0;
        for (uint64_t entries = capacity; entries > 16 || levels_ == 0;) {
            entries = (entries + 15) / 16;
            entries_[levels_] = entries;
            start_[levels_++] = all;
            all += (entries + 15) / 16;
        }
        return all;
    }

    wide::Node *level(size_t level) { return nodes_.data() + start_[level]; }
    const wide::Node *level(size_t level) const { return nodes_.data() + start_[level]; }

    void sum_up(size_t at, const Row *entries, size_t n) {
        if (at == 0) wide::sum_leaves(leaves_.data(), level(0), entries, n);
        else wide::sum_nodes(level(at - 1), level(at), entries, n);
    }

    void set_chunk(const Row *rows, const float *weights, size_t n) {
        for (size_t i = 0; i < n; ++i) __builtin_prefetch(&leaves_[rows[i]], 1);
        Row entries[2 * kChunk];  // of a small level, all
        size_t count = 0, extent = extent_;
        for (size_t i = 0; i < n; ++i) {
            leaves_[rows[i]] = weights[i];
            extent = std::max(extent, size_t{rows[i]} + 1);
            entries[count] = rows[i] / 16;
            count += count == 0 || entries[count] != entries[count - 1];  // rows that arrive one after the other share their nodes
        }
        extent_ = extent;
        for (size_t at = 0;; ++at) {
            if (at + 1 < levels_) {
                const wide::Node *nodes = level(at);
                for (size_t i = 0; i < count; ++i) __builtin_prefetch(nodes[entries[i] / 16].sums + entries[i] % 16 / 8 * 8, 1);
            }
            sum_up(at, entries, count);
            if (at + 1 == levels_) break;
            const size_t all = entries_[at + 1];
            if (count * 2 >= all) {  // an upper level, most of which a batch meets, and some of it often: each sum once
                for (count = 0; count < all; ++count) entries[count] = static_cast<Row>(count);
                continue;
            }
            size_t kept = 0;
            for (size_t i = 0; i < count; ++i) {
                entries[kept] = entries[i] / 16;
                kept += kept == 0 || entries[kept] != entries[kept - 1];
            }
            count = kept;
        }
        total_ = wide::refresh(*level(levels_ - 1));
    }

    void walk(double *points, Row *rows, size_t n) const {
        std::fill(rows, rows + n, Row{0});
        for (size_t at = levels_; at-- > 0;) {
            wide::descend_nodes(level(at), rows, points, n);
            if (at == 0) {
                for (size_t i = 0; i < n; ++i) __builtin_prefetch(&leaves_[size_t{rows[i]} * 16]);
            } else if (entries_[at - 1] > 4096) {  // smaller levels are in the cache anyway
                const wide::Node *nodes = level(at - 1);
                for (size_t i = 0; i < n; ++i) {
                    __builtin_prefetch(nodes[rows[i]].starts);
                    __builtin_prefetch(nodes[rows[i]].starts + 8);
                }
            }
        }
        wide::descend_leaves(leaves_.data(), rows, points, n);
    }

    size_t levels_ = 0;
    size_t entries_[kLevels] = {};  // of each level: how many sums
    size_t start_[kLevels] = {};    // and where its nodes begin
    size_t extent_ = 0;             // no row from here on weighs anything
    double total_ = 0;
    Array<float> leaves_;
    Array<wide::Node> nodes_;
};

}  // namespace echo_samplers
