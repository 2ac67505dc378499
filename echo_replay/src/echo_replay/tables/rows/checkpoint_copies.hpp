// Rows as they were at one moment, for a checkpoint that is written while others write. If a writer is about to change a row that the
// checkpoint has not copied yet, it first puts the row's bytes here. Not thread-safe: the table's mutex guards it.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "rows.hpp"

namespace echo::replay {

class Preserved {
public:
    static constexpr uint64_t kBlock = 1u << 20;  // bytes that are put aside together; a writer copies at most so many under the mutex
    static constexpr size_t kBlocks = 64;         // blocks that may wait for the checkpoint to take them; when there are so many, writers wait

    Preserved(const Rows &rows, uint32_t capacity) : table_(rows), capacity_(capacity) {
        for (uint32_t leaf = 0; leaf < rows.leaves(); ++leaf) bytes_ += rows.leaf_bytes(leaf);
    }

    bool on() const { return left_ != nullptr; }
    void begin(const uint32_t *rows, size_t n) {
        end();  // removes what a failed checkpoint may have left
        left_ = std::make_unique<uint8_t[]>(capacity_);
        for (size_t i = 0; i < n; ++i) left_[rows[i]] = 1;
    }
    void end() { left_.reset(), aside_.clear(); }

    bool full() const { return aside_.size() >= kBlocks; }
    // Returns the number of rows of a block; a writer may take so many at once.
    uint64_t step() const { return bytes_ == 0 ? kBlock : bytes_ < kBlock ? kBlock / bytes_ : 1; }
    // Call this before the bytes of a row change.
    void keep(uint32_t row) {
        if (!left_[row]) return;
        if (aside_.empty() || aside_.back().rows.size() == step())
            aside_.push_back({{}, std::unique_ptr<char[]>(new char[step() * bytes_])});
        Block &block = aside_.back();
        char *to = block.bytes.get() + block.rows.size() * bytes_;
        for (uint32_t leaf = 0; leaf < table_.leaves(); to += table_.leaf_bytes(leaf++))
            std::memcpy(to, table_.at(leaf, row), table_.leaf_bytes(leaf));
        block.rows.push_back(row);
        left_[row] = 0;  // only now, because without memory for the block the row must stay marked
    }
    // Call this after copying the row. Returns whether the copied bytes are those of the checkpoint's moment. The row then needs no further copy.
    bool settle(uint32_t row) {
        const bool was = left_[row];
        left_[row] = 0;
        return was;
    }
    bool left(uint32_t row) const { return left_[row]; }
    // Takes one block of rows that were put aside: for each row its bytes, one leaf after another. Returns false if there is no block.
    bool take(std::vector<uint32_t> *rows, std::unique_ptr<char[]> *bytes) {
        if (aside_.empty()) return false;
        *rows = std::move(aside_.front().rows), *bytes = std::move(aside_.front().bytes);
        aside_.pop_front();
        return true;
    }

private:
    struct Block {
        std::vector<uint32_t> rows;
        std::unique_ptr<char[]> bytes;
    };

    const Rows &table_;
    const uint32_t capacity_;
    uint64_t bytes_ = 0;
    std::unique_ptr<uint8_t[]> left_;  // 1: the row still has to be copied
    std::deque<Block> aside_;
};

}  // namespace echo::replay
