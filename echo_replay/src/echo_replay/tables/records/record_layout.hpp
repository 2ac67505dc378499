// How a table stores a record: one sample of varying length, as spec/record_format.hpp describes it. Its bytes are in pages, and a row of the table
// says in which ones.
#pragma once

#include <cstdint>
#include <vector>

#include "spec/record_format.hpp"

namespace echo::replay {

inline uint64_t client_of(const ChunkHead &head) { return head.stream >> 16; }
inline uint16_t number_of(const ChunkHead &head) { return uint16_t(head.stream); }

// A table's row of an item: where its bytes are, and how many rows it has along each axis.
struct RecordRow {
    uint64_t bytes;
    uint32_t lengths[MOST_AXES];
    uint32_t first;  // page of its chain
};
static_assert(sizeof(RecordRow) == 32);

struct RecordLeaf {
    uint64_t bytes;  // of the whole leaf, or of one row along its axis
    int32_t axis;    // -1: the leaf has the same size in every sample

    uint64_t bytes_of(const uint32_t *lengths) const { return axis < 0 ? bytes : bytes * lengths[axis]; }
};

struct RecordLayout {
    std::vector<RecordLeaf> leaves;
    std::vector<uint32_t> most;  // of each axis

    uint64_t bytes_of(const uint32_t *lengths) const {
        uint64_t total = 0;
        for (const RecordLeaf &leaf : leaves) total += leaf.bytes_of(lengths);
        return total;
    }
    // Whether a sample can have these lengths. They come from a worker, so they are checked before anything is reserved for them.
    bool fits(const uint32_t *lengths) const {
        for (uint32_t axis = 0; axis < MOST_AXES; ++axis)
            if (lengths[axis] > (axis < most.size() ? most[axis] : 0)) return false;
        return true;
    }
};

}  // namespace echo::replay
