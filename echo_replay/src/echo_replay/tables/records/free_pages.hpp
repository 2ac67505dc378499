// The free pages of a pool, as bits: one for each page, and above them, level by level, one for each word that has any. So the next free page is
// found in a few steps, however many are taken, and pages that are free side by side are found side by side again, no matter which record gave them back.
// Not thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace echo::replay {

class FreePages {
public:
    static constexpr uint32_t kNone = UINT32_MAX;

    explicit FreePages(uint32_t pages) {
        uint64_t bits = pages;
        do bits = (bits + 63) / 64, levels_.emplace_back(bits, 0);
        while (bits > 1);
    }

    // Adds the pages first to first + n - 1, which are not free.
    void add(uint32_t first, uint32_t n) {
        for (uint32_t some; n != 0; first += some, n -= some) {
            some = std::min(n, 64 - first % 64);
            add_in_word(first / 64, mask(first % 64, some));
        }
    }

    // Takes up to `most` pages side by side: the next ones from `at` on. Returns how many, or 0 if none is free from there on.
    uint32_t take(uint32_t at, uint32_t most, uint32_t *first) {
        if ((*first = next(at)) == kNone) return 0;
        uint64_t &word = levels_[0][*first / 64];
        const uint64_t taken = ~(word >> *first % 64);
        const uint32_t side_by_side = taken ? uint32_t(__builtin_ctzll(taken)) : 64;
        const uint32_t n = std::min(most, side_by_side);
        word &= ~mask(*first % 64, n);
        if (word == 0) empty(*first / 64);
        return n;
    }

private:
    static uint64_t mask(uint32_t begin, uint32_t n) { return (n == 64 ? ~uint64_t(0) : (uint64_t(1) << n) - 1) << begin; }

    void add_in_word(uint64_t index, uint64_t bits) {
        for (auto &level : levels_) {
            const uint64_t before = level[index];
            level[index] = before | bits;
            if (before != 0) return;
            bits = uint64_t(1) << index % 64, index /= 64;
        }
    }
    void empty(uint64_t index) {
        for (size_t level = 1; level < levels_.size(); ++level, index /= 64)
            if ((levels_[level][index / 64] &= ~(uint64_t(1) << index % 64)) != 0) return;
    }
    // The first free page from `at` on.
    uint32_t next(uint64_t at) const {
        for (size_t level = 0; level < levels_.size(); ++level) {
            if (at / 64 >= levels_[level].size()) return kNone;
            if (const uint64_t word = levels_[level][at / 64] >> at % 64) {
                at += uint64_t(__builtin_ctzll(word));
                while (level-- > 0) at = at * 64 + uint64_t(__builtin_ctzll(levels_[level][at]));
                return uint32_t(at);
            }
            at = at / 64 + 1;  // nothing in this word: the level above says which of the later ones has any
        }
        return kNone;
    }

    std::vector<std::vector<uint64_t>> levels_;
};

}  // namespace echo::replay
