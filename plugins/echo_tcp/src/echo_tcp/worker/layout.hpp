// The layout of samples in a staging block, which also decides in which order they are sent.
//
// Wire protocol 2 sends a frame of n samples leaf by leaf. So a block keeps one run per leaf with
// room for `capacity` samples (structure of arrays), and any stretch of rows is one iovec per leaf.
// The original protocol sends whole samples one after another; for it, a row is a whole sample.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "../frame.hpp"

namespace echo_tcp::worker {

class Layout {
public:
    enum class Order { leaf_major, sample_major };

    Layout(const std::vector<std::uint64_t>& leaf_bytes, std::uint64_t target_bytes, Order order)
        : order_(order) {
        for (auto bytes : leaf_bytes) sample_bytes_ += bytes;
        capacity_ = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(
            sample_bytes_ ? target_bytes / sample_bytes_ : max_data_count, 1, max_data_count));
        if (order == Order::sample_major) {
            place_rows(leaf_bytes);
        } else {
            place_runs(leaf_bytes);
        }
    }

    std::uint64_t sample_bytes() const noexcept { return sample_bytes_; }
    std::uint32_t capacity() const noexcept { return capacity_; }  // samples per block
    std::uint64_t block_bytes() const noexcept { return block_bytes_; }

    // Copies one sample into `row`; leaves[i] is leaf i, contiguous.
    void put(std::byte* block, std::uint32_t row, const void* const* leaves) const noexcept {
        for (const Run& run : runs_) {
            copy(block + run.offset + row * run.stride, leaves[run.leaf], run.bytes);
        }
    }

    // Copies samples [from, from + n) of a batch into the rows from `row` on; leaves[i] is leaf i
    // of all samples of the batch, one after another.
    void put_many(std::byte* block, std::uint32_t row, const void* const* leaves,
                  std::uint64_t from, std::uint32_t n) const noexcept {
        for (const Run& run : runs_) {
            std::byte* to = block + run.offset + row * run.stride;
            auto* source = static_cast<const std::byte*>(leaves[run.leaf]) + from * run.bytes;
            if (run.stride == run.bytes) {
                std::memcpy(to, source, n * run.bytes);
                continue;
            }
            for (std::uint32_t i = 0; i < n; ++i) {
                copy(to + i * run.stride, source + i * run.bytes, run.bytes);
            }
        }
    }

    // Appends the pieces of the `n` samples from `row` on, in wire order.
    void gather(std::byte* block, std::uint32_t row, std::uint32_t n,
                std::vector<iovec>& out) const {
        if (order_ == Order::sample_major) {
            if (sample_bytes_) out.push_back({block + row * sample_bytes_, n * sample_bytes_});
            return;
        }
        for (const Run& run : runs_) {
            out.push_back({block + run.offset + row * run.stride, n * run.bytes});
        }
    }

private:
    struct Run {
        std::uint32_t leaf;
        std::uint64_t bytes;   // size of this leaf in one sample, never 0, because empty leaves have no run
        std::uint64_t offset;  // offset of row 0 from the start of the block
        std::uint64_t stride;  // from one row to the next
    };

    static constexpr std::uint64_t line = 64, lines_per_page = 64;

    void place_rows(const std::vector<std::uint64_t>& leaf_bytes) {
        for (std::uint32_t i = 0; i < leaf_bytes.size(); ++i) {
            if (leaf_bytes[i]) runs_.push_back({i, leaf_bytes[i], block_bytes_, sample_bytes_});
            block_bytes_ += leaf_bytes[i];
        }
        block_bytes_ = capacity_ * sample_bytes_;
    }

    // Runs start on cache lines of different sets. If all runs had the same offset modulo 4 KiB,
    // storing a sample of many leaves would evict its own lines from the first-level cache.
    void place_runs(const std::vector<std::uint64_t>& leaf_bytes) {
        std::array<unsigned, lines_per_page> used{};
        unsigned fewest = 0;
        for (std::uint32_t i = 0; i < leaf_bytes.size(); ++i) {
            if (!leaf_bytes[i]) continue;
            auto set = [&] { return block_bytes_ / line % lines_per_page; };
            if (std::count(used.begin(), used.end(), fewest) == 0) ++fewest;
            while (used[set()] > fewest) block_bytes_ += line;
            ++used[set()];
            runs_.push_back({i, leaf_bytes[i], block_bytes_, leaf_bytes[i]});
            block_bytes_ += capacity_ * leaf_bytes[i];
            block_bytes_ = (block_bytes_ + line - 1) / line * line;
        }
    }

    // Most leaves have a few bytes. For them, a copy of fixed size takes two instructions, and a call twenty.
    static void copy(std::byte* to, const void* from, std::uint64_t n) noexcept {
        switch (n) {
            case 1: std::memcpy(to, from, 1); return;
            case 4: std::memcpy(to, from, 4); return;
            case 8: std::memcpy(to, from, 8); return;
            case 16: std::memcpy(to, from, 16); return;
            default: std::memcpy(to, from, n);
        }
    }

    Order order_;
    std::uint64_t sample_bytes_ = 0;
    std::uint32_t capacity_ = 1;
    std::uint64_t block_bytes_ = 0;
    std::vector<Run> runs_;
};

}  // namespace echo_tcp::worker
