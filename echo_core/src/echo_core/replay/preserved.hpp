// Rows as they were at one moment, for a checkpoint that is written while others write: whoever wants to change a row whose turn to be
// copied has not come yet puts its bytes here first. Not thread-safe: the table's mutex guards it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

#include "rows.hpp"

namespace echo::replay {

class Preserved {
public:
    static constexpr uint64_t kMost = 64u << 20;    // bytes kept until the checkpoint takes them; writers wait for that
    static constexpr uint64_t kAtOnce = 1u << 20;   // bytes that a writer copies under the mutex

    Preserved(const Rows &rows, uint32_t capacity) : table_(rows), capacity_(capacity) {
        for (uint32_t leaf = 0; leaf < rows.leaves(); ++leaf) bytes_ += rows.leaf_bytes(leaf);
    }

    bool on() const { return left_ != nullptr; }
    void begin(const uint32_t *rows, size_t n) {
        left_ = std::make_unique<uint8_t[]>(capacity_);
        for (size_t i = 0; i < n; ++i) left_[rows[i]] = 1;
    }
    void end() { left_.reset(), rows_.clear(), data_.clear(), data_.shrink_to_fit(); }

    bool full() const { return on() && data_.size() >= kMost; }
    // How many rows a writer may take at once.
    uint64_t step() const { return bytes_ < kAtOnce ? kAtOnce / (bytes_ ? bytes_ : 1) : 1; }
    // Before the bytes of a row change.
    void keep(uint32_t row) {
        if (!left_[row]) return;
        left_[row] = 0;
        const size_t at = data_.size();
        data_.resize(at + bytes_);
        char *to = data_.data() + at;
        for (uint32_t leaf = 0; leaf < table_.leaves(); to += table_.leaf_bytes(leaf++))
            std::memcpy(to, table_.at(leaf, row), table_.leaf_bytes(leaf));
        rows_.push_back(row);
    }
    // Whether the bytes that somebody just copied out of the row are those of the moment; it is done with, then.
    bool settle(uint32_t row) {
        const bool was = left_[row];
        left_[row] = 0;
        return was;
    }
    bool left(uint32_t row) const { return left_[row]; }
    // What was put here, row by row with the leaves one after another.
    void take(std::vector<uint32_t> *rows, std::vector<char> *data) {
        rows->clear(), data->clear();
        rows->swap(rows_), data->swap(data_);
    }

private:
    const Rows &table_;
    const uint32_t capacity_;
    uint64_t bytes_ = 0;
    std::unique_ptr<uint8_t[]> left_;  // 1: has to be copied still
    std::vector<uint32_t> rows_;
    std::vector<char> data_;
};

}  // namespace echo::replay
