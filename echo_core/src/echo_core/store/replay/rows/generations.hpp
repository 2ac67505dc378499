// The generation of every row of a table. It is odd while nobody may read the row, and grows by one with each change. A row's key consists of
// its generation and its number, so that no key is ever used twice, and a row is found by its key with one look.
//
// Generations change under the table's mutex. A gather reads them without it, before and after it copies the rows.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>

#include "../../../include/echo_pages.h"

namespace echo::replay {

class Generations {
public:
    explicit Generations(uint32_t capacity)
        : capacity_(capacity), bits_(capacity <= kWide ? 16 : 32), of_(capacity) {
        for (uint32_t row = 0; row < capacity; ++row) of_[row].store(1, std::memory_order_relaxed);
        if (capacity <= kWide) high_ = std::make_unique<uint32_t[]>(capacity);
    }

    uint32_t of(uint32_t row) const { return of_[row].load(std::memory_order_relaxed); }
    bool live(uint32_t row) const { return (of(row) & 1) == 0; }
    void prefetch(uint32_t row) const { __builtin_prefetch(&of_[row]); }

    uint64_t key_of(uint32_t row) const { return ((high_ ? uint64_t(high_[row]) << 31 : 0) | of(row) >> 1) << bits_ | row; }
    uint32_t row_of(uint64_t key) const { return uint32_t(key & ((uint64_t(1) << bits_) - 1)); }
    // Whether the row is there and still has this key.
    bool holds(uint64_t key, uint32_t *row) const {
        *row = row_of(key);
        return *row < capacity_ && live(*row) && key_of(*row) == key;
    }
    // Returns the key that a row will have once it is committed; it is being written now.
    uint64_t next_key_of(uint32_t row) const {
        const uint32_t next = after(of(row));
        return ((high_ ? uint64_t(high_[row] + (next == 0)) << 31 : 0) | next >> 1) << bits_ | row;
    }
    void advance(uint32_t row, std::memory_order order) {
        const uint32_t next = after(of(row));
        if (next == 0 && high_) ++high_[row];
        of_[row].store(next, order);
    }

    uint64_t bytes_per_row() const { return high_ ? 8 : 4; }

    // Copies both columns for a checkpoint; each has `capacity` entries.
    void save(uint32_t *generations, uint32_t *high) const {
        for (uint32_t row = 0; row < capacity_; ++row) generations[row] = of(row), high[row] = high_ ? high_[row] : 0;
    }
    // No row is live until show(n). Keys that were given out after the checkpoint was taken must not name other items now, so all
    // generations are raised to a new floor.
    void restore(const uint32_t *generations, const uint32_t *high) {
        uint32_t most = 0;
        for (uint32_t row = 0; row < capacity_; ++row) {
            of_[row].store(generations[row] | 1, std::memory_order_relaxed);
            if (high_ && high) high_[row] = high[row];
            most = std::max(most, generations[row]);
        }
        if (most < UINT32_MAX / 2) floor_ = (most + (1u << 24)) & ~1u;
    }
    void show(uint32_t row, uint32_t generation) { of_[row].store(generation, std::memory_order_relaxed); }

private:
    uint32_t after(uint32_t generation) const {
        const uint32_t next = generation + 1;
        return next < floor_ ? floor_ | (next & 1) : next;
    }

    static constexpr uint64_t kWide = 1u << 16;  // smaller tables have 32 more bits per generation, so that they do not run out of keys

    const uint32_t capacity_, bits_;
    uint32_t floor_ = 0;  // even; generations below it may have been given out before a restart
    PageArray<std::atomic<uint32_t>> of_;
    std::unique_ptr<uint32_t[]> high_;
};

}  // namespace echo::replay
