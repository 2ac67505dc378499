// Staging buffers for tables whose rows are records. The native interface promises writers one array for each leaf, so they fill a staging
// buffer with such arrays, and commit() copies it into the records. Not thread-safe, except for at(): the table's mutex guards the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "echo_capi.h"
#include "rows.hpp"

namespace echo::replay {

class StagingRows {
public:
    static constexpr uint32_t kRows = 1024;  // in one staging buffer

    explicit StagingRows(const Rows &rows) : rows_(rows) {
        if (!rows.packed()) return;
        buffers_ = std::make_unique<Buffer[]>(kBuffers);
        for (uint32_t leaf = 0; leaf < rows.leaves(); ++leaf)
            offset_.push_back(bytes_), bytes_ += (rows.leaf_bytes(leaf) * kRows + 63) & ~uint64_t(63);
        for (uint32_t i = kBuffers; i-- > 0;) free_.push_back(i);
    }

    bool any() const { return buffers_ != nullptr; }
    bool all_taken() const { return buffers_ && free_.empty(); }
    // Takes a staging buffer for a run of rows that was just claimed, and notes it in the run.
    void take(echo_run *run) {
        run->buffer = free_.back();
        Buffer &d = buffers_[run->buffer];
        if (!d.memory) d.memory.reset(new char[bytes_]);
        free_.pop_back();
        d.first = run->slot, d.left = run->count;
    }
    // Part of a run was committed or aborted. When all of it was, its staging buffer is free.
    void leave(const echo_run &run) {
        if ((buffers_[run.buffer].left -= run.count) == 0) free_.push_back(run.buffer);
    }
    char *at(const echo_run &run, uint32_t leaf) const {
        const Buffer &d = buffers_[run.buffer];
        return d.memory.get() + offset_[leaf] + (run.slot - d.first) * rows_.leaf_bytes(leaf);
    }

private:
    static constexpr uint32_t kBuffers = 1024;

    struct Buffer {
        std::unique_ptr<char[]> memory;
        uint32_t first = 0, left = 0;  // the row that it begins with; the rows that are not committed or aborted yet
    };

    const Rows &rows_;
    std::unique_ptr<Buffer[]> buffers_;
    std::vector<uint64_t> offset_;
    std::vector<uint32_t> free_;
    uint64_t bytes_ = 0;
};

}  // namespace echo::replay
