// A 16-ary tree of sums over the rows: draws a row in proportion to its weight. 4.6 bytes per row.
//
//   leaves       float, one weight per row; a node of 16 is one cache line
//   level 0..    double, one sum for each node below; a node of 16 is two cache lines
//   last level   one node
//   starts       of the small levels' nodes, the sum of what comes before each child; those of the large ones are added up on the way down:
//                that costs less than fetching them, and an update has half as much to write
//
// * A sum is never changed by a difference: whenever a weight changes, every sum above it is added up anew from its 16 children. So
//   the sums are a function of the weights alone: they do not drift however many updates there are, nothing has to be rebuilt, and a
//   tree loaded from a checkpoint draws what the saved one would have drawn.
// * A batch is walked level by level, the levels some draws apart: what a draw needs of the next level is fetched while others are worked on.
// * Children come in the order 0, 4, 8, 12, 1, 5, ...: four lanes of a vector add up their columns at once. Any order will do, as long
//   as it is always the same; the lanes are four doubles whatever the machine has, so that rounding is the same everywhere.
#pragma once

#include <algorithm>
#include <limits>

#include "lanes.hpp"
#include "rows.hpp"

namespace echo_samplers {

namespace wide {

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

// The sums of 16 nodes below.
struct alignas(128) Sums {
    double of[16];
};

// Where each child of a node starts. What weighs nothing and has nothing after it starts nowhere, so that no rounding can lead there;
// before others, such a child is passed over, as the next one starts at the same point.
struct alignas(128) Begins {
    double of[16];
};

// What a node begins with, from its sums; returns the sum of the sums.
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
constexpr size_t kBare = 2;    // levels from the bottom whose nodes have no starts of their own
constexpr size_t kApart = 12;  // draws between two levels of a walk: about as many lines as a core fetches at once

// The memory of a tree, for the loops below.
struct View {
    float *leaves;
    Sums *sums[kLevels];
    Begins *begins[kLevels];  // from kBare on
    size_t levels;
};

// Rounding on the way down must not lead past the last child that weighs anything.
ECHO_SAMPLERS_INLINE double inside(double point, double total) {
    constexpr double kInside = 1.0 - 2 * std::numeric_limits<double>::epsilon();
    const double end = total * kInside;
    return point < end ? point : end;
}

// The child of a node without starts at *point, which from then on counts from where that child starts.
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

// points[i], from 0 to the total, becomes rows[i].
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
        if (const size_t j = i - kApart; j < n) {  // wraps around where i is less
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

// Weights into their rows, and sums of the nodes they are in. Every sum is taken after the weight that changed it, so that of a row that
// occurs twice the last weight counts.
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
// The sums at level `at`, of the nodes below it.
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
            wide::descend(view_, rows + begin, points, size);
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

    // Where each level of nodes begins; returns how many there are in all.
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
        Row entries[2 * kChunk];  // of a small level, all
        size_t count = 0, extent = extent_;
        for (size_t i = 0; i < n; ++i) {
            extent = std::max(extent, size_t{rows[i]} + 1);
            entries[count] = rows[i] / 256;
            count += count == 0 || entries[count] != entries[count - 1];  // rows that arrive one after the other share their nodes
        }
        extent_ = extent;
        for (size_t at = 1; at < levels_; ++at) {
            const size_t all = entries_[at];
            if (count * 2 >= all)  // an upper level, most of which a batch meets, and some of it often: each sum once
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
    size_t entries_[wide::kLevels] = {};  // of each level: how many sums
    size_t start_[wide::kLevels] = {};    // and where its nodes begin
    size_t begins_count_ = 0;
    size_t extent_ = 0;  // no row from here on weighs anything
    double total_ = 0;
    PageArray<float> leaves_;
    PageArray<wide::Sums> sums_;
    PageArray<wide::Begins> begins_;
    wide::View view_;
};

}  // namespace echo_samplers
