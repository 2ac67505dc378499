// A 16-ary tree of sums over the rows, which draws a row in proportion to its weight. 4.6 bytes per row.
//
//   leaves       float, one weight per row; a node of 16 is one cache line
//   level 0..    double, one sum for each node below; a node of 16 is two cache lines
//   last level   one node
//   starts       for nodes of the small levels, the sum of the weights before each child. For the large levels these are added up on the
//                way down, which costs less than fetching them. An update then has half as much to write.
//
// * A sum is never changed by a difference: whenever a weight changes, every sum above it is added up anew from its 16 children. The sums
//   are therefore a function of the weights alone. They do not drift after any number of updates, and never have to be rebuilt. A tree
//   loaded from a checkpoint makes the same draws as the saved one.
// * A batch is walked level by level, with some draws between the levels: the data that a draw needs on the next level is fetched while
//   other draws are worked on.
// * Children are in the order 0, 4, 8, 12, 1, 5, ..., so that four lanes of a vector add up their columns at once. Any fixed order would
//   do. The lanes are four doubles on every machine, so that rounding is the same everywhere.
#pragma once

#include <algorithm>
#include <limits>

#include "row_sampler.hpp"
#include "simd.hpp"

namespace echo_samplers {

namespace wide {

// For each of 16 weights, the sum of the weights before it: first down the four columns, then across.
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

// Among the children that start at or before `at`, the one that starts last.
ECHO_SAMPLERS_INLINE uint32_t child_at(const Lanes &a, const Lanes &b, const Lanes &c, const Lanes &d, double at) {
    const Lanes point = {at, at, at, at};
    Masks passed = ((a <= point) + (b <= point)) + ((c <= point) + (d <= point));
    passed += __builtin_shuffle(passed, Masks{2, 3, 0, 1});
    const auto last = static_cast<uint32_t>(-(passed[0] + passed[1])) - 1;
    return (last & 3) * 4 + (last >> 2);
}

// The sums of 16 nodes below.
struct alignas(128) Sums {
    double of[16];
};

// The point where each child of a node starts. A child of weight 0 with no weight after it gets no start, so that no rounding can lead to
// it. A child of weight 0 before others is skipped, because the next child starts at the same point.
struct alignas(128) Begins {
    double of[16];
};

// Computes the starts of a node's children from the node's sums; returns the sum of these sums.
ECHO_SAMPLERS_INLINE double begin(const Sums &sums, Begins &begins) {
    const Starts found = starts(sums.of);
    const double infinite = std::numeric_limits<double>::infinity();
    const Lanes total = {found.total, found.total, found.total, found.total}, nowhere = {infinite, infinite, infinite, infinite};
    write(begins.of, found.column[0] < total ? found.column[0] : nowhere);
    write(begins.of + 4, found.column[1] < total ? found.column[1] : nowhere);
    write(begins.of + 8, found.column[2] < total ? found.column[2] : nowhere);
    write(begins.of + 12, found.column[3] < total ? found.column[3] : nowhere);
    return found.total;
}

constexpr size_t kLevels = 8;  // 16**8 rows
constexpr size_t kBare = 2;    // levels from the bottom whose nodes store no starts
constexpr size_t kApart = 12;  // draws between two levels of a walk: about the number of cache lines that a core fetches at once

// The memory of a tree, in the form that the loops below use.
struct View {
    float *leaves;
    Sums *sums[kLevels];
    Begins *begins[kLevels];  // from kBare on
    size_t levels;
};

// Rounding on the way down must not lead past the last child with a positive weight.
ECHO_SAMPLERS_INLINE double inside(double point, double total) {
    constexpr double kInside = 1.0 - 2 * std::numeric_limits<double>::epsilon();
    const double end = total * kInside;
    return point < end ? point : end;
}

// The child that contains *point, in a node without starts. *point then becomes relative to the start of that child.
ECHO_SAMPLERS_INLINE uint32_t step(const Sums &node, double *point) {
    const Starts found = starts(node.of);
    const double at = inside(*point, found.total);
    const uint32_t child = child_at(found.column[0], found.column[1], found.column[2], found.column[3], at);
    *point = at - found.column[child / 4][child % 4];
    return child;
}
ECHO_SAMPLERS_INLINE uint32_t last_step(const float *leaves, double point) {
    const Starts found = starts(leaves);
    return child_at(found.column[0], found.column[1], found.column[2], found.column[3], inside(point, found.total));
}

// Finds rows[i] for each points[i], which is from 0 to the total.
ECHO_SAMPLERS_WIDE inline void descend(const View &tree, Row *rows, double *points, size_t n) {
    const bool two = tree.levels > 1;
    for (size_t i = 0; i < n + 3 * kApart; ++i) {
        if (i < n) {
            Row node = 0;
            double point = points[i];
            for (size_t at = tree.levels; at-- > kBare;) {
                const double *from = tree.begins[at][node].of;
                const uint32_t child = child_at(read(from), read(from + 4), read(from + 8), read(from + 12), point);
                point -= from[child];
                node = node * 16 + child;
            }
            rows[i] = node, points[i] = point;
            if (two) __builtin_prefetch(tree.sums[1][node].of), __builtin_prefetch(tree.sums[1][node].of + 8);
        }
        if (const size_t j = i - kApart; j < n) {  // wraps around if i is less than kApart
            if (two) rows[j] = rows[j] * 16 + step(tree.sums[1][rows[j]], &points[j]);
            __builtin_prefetch(tree.sums[0][rows[j]].of), __builtin_prefetch(tree.sums[0][rows[j]].of + 8);
        }
        if (const size_t j = i - 2 * kApart; j < n) {
            rows[j] = rows[j] * 16 + step(tree.sums[0][rows[j]], &points[j]);
            __builtin_prefetch(tree.leaves + size_t{rows[j]} * 16);
        }
        if (const size_t j = i - 3 * kApart; j < n) rows[j] = rows[j] * 16 + last_step(tree.leaves + size_t{rows[j]} * 16, points[j]);
    }
}

// Writes weights into their rows, and the sums of the nodes that contain them. Every sum is computed after the weights are written, so that
// the last weight counts for a row that occurs twice.
ECHO_SAMPLERS_WIDE inline void set_leaves(const View &tree, const Row *rows, const float *weights, size_t n) {
    for (size_t i = 0; i < n + 2 * kApart; ++i) {
        if (i < n) __builtin_prefetch(tree.leaves + rows[i], 1), __builtin_prefetch(&tree.sums[0][rows[i] / 256].of[rows[i] / 16 % 16], 1);
        if (const size_t j = i - kApart; j < n) tree.leaves[rows[j]] = weights[j];
        if (const size_t j = i - 2 * kApart; j < n)
            tree.sums[0][rows[j] / 256].of[rows[j] / 16 % 16] = starts(tree.leaves + size_t{rows[j]} / 16 * 16).total;
    }
}
ECHO_SAMPLERS_WIDE inline void sum_leaves(const View &tree, const Row *entries, size_t n) {
    for (size_t i = 0; i < n; ++i) tree.sums[0][entries[i] / 16].of[entries[i] % 16] = starts(tree.leaves + size_t{entries[i]} * 16).total;
}
// Computes the sums at level `at` from the nodes below it.
ECHO_SAMPLERS_WIDE inline void sum_nodes(const View &tree, size_t at, const Row *entries, size_t n) {
    const Sums *nodes = tree.sums[at - 1];
    Sums *parents = tree.sums[at];
    if (at - 1 < kBare) {
        for (size_t i = 0; i < n; ++i) parents[entries[i] / 16].of[entries[i] % 16] = starts(nodes[entries[i]].of).total;
    } else {
        Begins *begins = tree.begins[at - 1];
        for (size_t i = 0; i < n; ++i) parents[entries[i] / 16].of[entries[i] % 16] = begin(nodes[entries[i]], begins[entries[i]]);
    }
}
ECHO_SAMPLERS_WIDE inline double sum_root(const View &tree) {
    const size_t top = tree.levels - 1;
    return top < kBare ? starts(tree.sums[top]->of).total : begin(*tree.sums[top], *tree.begins[top]);
}

}  // namespace wide

class SumTree {
public:
    explicit SumTree(uint64_t capacity)
        : leaves_((capacity + 15) / 16 * 16), sums_(place_levels(capacity)), begins_(begins_count_) {
        view_ = {leaves_.data(), {}, {}, levels_};
        for (size_t at = 0; at < levels_; ++at) {
            view_.sums[at] = sums_.data() + start_[at];
            if (at >= wide::kBare) view_.begins[at] = begins_.data() + (start_[at] - start_[wide::kBare]);
        }
    }

    float weight(Row row) const { return leaves_[row]; }
    double total() const { return total_; }

    // Gives n rows new weights, none of them negative. If a row occurs twice, its last weight counts.
    void set(const Row *rows, const float *weights, size_t n) {
        for (size_t begin = 0; begin < n; begin += kChunk) set_chunk(rows + begin, weights + begin, std::min(kChunk, n - begin));
    }

    // Draws n rows, each with probability weight / total(). total() must be positive. With `strata`, the i-th row comes from the i-th of n
    // equal parts of the total: on average every row is drawn as often as without it, but more evenly.
    void draw(bitgen_t *random, bool strata, size_t n, Row *rows, double *probabilities) const {
        double points[kChunk];
        const double part = total_ / (strata ? static_cast<double>(n) : 1.0);
        for (size_t begin = 0; begin < n; begin += kChunk) {
            const size_t size = std::min(kChunk, n - begin);
            for (size_t i = 0; i < size; ++i)
                points[i] = (static_cast<double>(strata ? begin + i : 0) + random->next_double(random->state)) * part;
            wide::descend(view_, rows + begin, points, size);
            for (size_t i = 0; i < size; ++i) probabilities[begin + i] = leaves_[rows[begin + i]] / total_;
        }
    }

    // Sets all weights anew: weight(row) for the rows below `extent`, 0 for the others.
    template <class Weight>
    void rebuild(size_t extent, Weight weight) {
        for (size_t row = 0; row < extent; ++row) leaves_[row] = weight(static_cast<Row>(row));
        if (extent < extent_) std::fill(leaves_.data() + extent, leaves_.data() + extent_, 0.0f);
        size_t entries = (std::max(extent, extent_) + 15) / 16;
        extent_ = extent;
        Row list[kChunk];
        for (size_t at = 0; at < levels_; ++at, entries = (entries + 15) / 16) {
            for (size_t begin = 0; begin < entries; begin += kChunk) {
                const size_t size = std::min(kChunk, entries - begin);
                for (size_t i = 0; i < size; ++i) list[i] = static_cast<Row>(begin + i);
                if (at == 0) wide::sum_leaves(view_, list, size);
                else wide::sum_nodes(view_, at, list, size);
            }
        }
        total_ = wide::sum_root(view_);
    }

    void clear() {
        rebuild(0, [](Row) { return 0.0f; });
    }

private:
    static constexpr size_t kChunk = 256;

    // Computes where each level of nodes begins; returns the number of all nodes.
    size_t place_levels(uint64_t capacity) {
        size_t all = 0;
        for (uint64_t entries = capacity; entries > 16 || levels_ == 0;) {
            entries = (entries + 15) / 16;
            entries_[levels_] = entries;
            start_[levels_++] = all;
            all += (entries + 15) / 16;
        }
        begins_count_ = levels_ > wide::kBare ? all - start_[wide::kBare] : 0;
        return all;
    }

    void set_chunk(const Row *rows, const float *weights, size_t n) {
        wide::set_leaves(view_, rows, weights, n);
        Row entries[2 * kChunk];  // all entries, for a small level
        size_t count = 0, extent = extent_;
        for (size_t i = 0; i < n; ++i) {
            extent = std::max(extent, size_t{rows[i]} + 1);
            entries[count] = rows[i] / 256;
            count += count == 0 || entries[count] != entries[count - 1];  // rows that arrive in sequence share their nodes
        }
        extent_ = extent;
        for (size_t at = 1; at < levels_; ++at) {
            const size_t all = entries_[at];
            if (count * 2 >= all)  // a batch meets most sums of an upper level, some of them often, so each sum is computed once
                for (count = 0; count < all; ++count) entries[count] = static_cast<Row>(count);
            wide::sum_nodes(view_, at, entries, count);
            size_t kept = 0;
            for (size_t i = 0; i < count; ++i) {
                entries[kept] = entries[i] / 16;
                kept += kept == 0 || entries[kept] != entries[kept - 1];
            }
            count = kept;
        }
        total_ = wide::sum_root(view_);
    }

    size_t levels_ = 0;
    size_t entries_[wide::kLevels] = {};  // the number of sums of each level
    size_t start_[wide::kLevels] = {};    // where the nodes of each level begin
    size_t begins_count_ = 0;
    size_t extent_ = 0;  // all rows from here on have weight 0
    double total_ = 0;
    PageArray<float> leaves_;
    PageArray<wide::Sums> sums_;
    PageArray<wide::Begins> begins_;
    wide::View view_;
};

}  // namespace echo_samplers
