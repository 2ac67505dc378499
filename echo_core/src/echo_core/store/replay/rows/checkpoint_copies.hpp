// Rows as they were at one moment, for a checkpoint that is written while others write: whoever wants to change a row whose turn to be
// copied has not come yet puts its bytes here first. Not thread-safe: the table's mutex guards it.
#pragma once

#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "store/replay/rows/rows.hpp"

namespace echo::replay {

class Preserved {
public:
    static constexpr uint64_t kBlock = 1u << 20;  // bytes that are put aside together, and that a writer copies under the mutex at most
    static constexpr size_t kBlocks = 64;         // that wait for the checkpoint to take them; then writers wait for it

    Preserved(const Rows &rows, uint32_t capacity) : table_(rows), capacity_(capacity) {
        for (uint32_t leaf = 0; leaf < rows.leaves(); ++leaf) bytes_ += rows.leaf_bytes(leaf);
    }

    bool on() const { return left_ != nullptr; }
    void begin(const uint32_t *rows, size_t n) {
        end();  // whatever one that failed has left
        left_ = std::make_unique<uint8_t[]>(capacity_);
        for (size_t i = 0; i < n; ++i) left_[rows[i]] = 1;
    }
    void end() { left_.reset(), aside_.clear(); }

    bool full() const { return aside_.size() >= kBlocks; }
    // Rows of a block, and how many a writer may take at once.
    uint64_t step() const { return bytes_ == 0 ? kBlock : bytes_ < kBlock ? kBlock / bytes_ : 1; }
    // Before the bytes of a row change.
    void keep(uint32_t row) {
        if (!left_[row]) return;
        if (aside_.empty() || aside_.back().rows.size() == step())
            aside_.push_back({{}, std::unique_ptr<char[]>(new char[step() * bytes_])});
        Block &block = aside_.back();
        char *to = block.bytes.get() + block.rows.size() * bytes_;
        for (uint32_t leaf = 0; leaf < table_.leaves(); to += table_.leaf_bytes(leaf++))
            std::memcpy(to, table_.at(leaf, row), table_.leaf_bytes(leaf));
        block.rows.push_back(row);
        left_[row] = 0;  // only now: had there been no memory, the row would be nowhere
    }
    // Whether the bytes that somebody just copied out of the row are those of the moment; it is done with, then.
    bool settle(uint32_t row) {
        const bool was = left_[row];
        left_[row] = 0;
        return was;
    }
    bool left(uint32_t row) const { return left_[row]; }
    // One block of what was put aside: for each row its bytes, the leaves one after another. False when there is none.
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
    std::unique_ptr<uint8_t[]> left_;  // 1: has to be copied still
    std::deque<Block> aside_;
};

}  // namespace echo::replay
