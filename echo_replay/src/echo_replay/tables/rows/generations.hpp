// The generation of every row of a table. It is odd while nobody may read the row, and grows by one with each change. A row's key consists of
// its generation and its number, so that no key is ever used twice, and a row is found by its key with one look.
//
// Learners keep keys when the server of a table is restarted. So that these keys name no new item of its successor, every table begins at a
// random generation, also after a restore. Only restored items keep their generations, and with them their keys.
//
// Generations change under the table's mutex. A gather reads them without it, before and after it copies the rows.
#pragma once

#include <sys/random.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <system_error>
#include <vector>

#include "echo_pages.h"

namespace echo::replay {

class Generations {
public:
    explicit Generations(uint32_t capacity)
        : capacity_(capacity), bits_(capacity <= kWide ? 16 : 32), of_(capacity) {
        if (capacity <= kWide) high_ = std::make_unique<uint32_t[]>(capacity);
        begin();
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
        const uint32_t next = of(row) + 1;
        return ((high_ ? uint64_t(high_[row] + (next == 0)) << 31 : 0) | next >> 1) << bits_ | row;
    }
    // Inserts call this in a loop; as a call of its own it took a ninth of their time.
    [[gnu::always_inline]] void advance(uint32_t row, std::memory_order order) {
        if (!restored_.empty() && restored_[row]) [[unlikely]] return leave_checkpoint(row, order);
        const uint32_t next = of(row) + 1;
        if (next == 0 && high_) [[unlikely]] ++high_[row];
        of_[row].store(next, order);
    }

    uint64_t bytes_per_row() const { return high_ ? 8 : 4; }

    // Copies both columns for a checkpoint; each has `capacity` entries.
    void save(uint32_t *generations, uint32_t *high) const {
        for (uint32_t row = 0; row < capacity_; ++row) generations[row] = of(row), high[row] = high_ ? high_[row] : 0;
    }
    // No row is live until restore(n).
    void begin_restore() {
        begin();
        restored_.assign(capacity_, false);
    }
    // The row has an item again, with the key that it had when the checkpoint was taken. The row's next item gets a new one.
    void restore(uint32_t row, uint32_t generation, uint32_t high) {
        of_[row].store(generation, std::memory_order_relaxed);
        if (high_) high_[row] = high;
        restored_[row] = true;
    }

private:
    // The first change of a row whose item came from a checkpoint: the generations of this process begin.
    [[gnu::noinline]] void leave_checkpoint(uint32_t row, std::memory_order order) {
        restored_[row] = false;
        of_[row].store(first_, order);
        if (high_) high_[row] = first_high_;
    }
    // All rows are free, with a random generation.
    void begin() {
        uint32_t random[2];
        if (getrandom(random, sizeof random, 0) != ssize_t(sizeof random)) throw std::system_error(errno, std::generic_category(), "getrandom");
        first_ = random[0] >> 1 | 1, first_high_ = random[1] & 0xFFFF;  // so keys are below 2^63, and fit into signed numbers too
        for (uint32_t row = 0; row < capacity_; ++row) {
            of_[row].store(first_, std::memory_order_relaxed);
            if (high_) high_[row] = first_high_;
        }
    }

    static constexpr uint64_t kWide = 1u << 16;  // smaller tables have 17 more bits per generation, so that they do not run out of keys

    const uint32_t capacity_, bits_;
    uint32_t first_ = 1, first_high_ = 0;  // the generation with which rows begin in this process; it is odd
    PageArray<std::atomic<uint32_t>> of_;
    std::unique_ptr<uint32_t[]> high_;
    std::vector<bool> restored_;  // rows whose items come from a checkpoint
};

}  // namespace echo::replay
