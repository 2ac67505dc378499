// Where chunks arrive: rows that transports claim, fill and commit. A row is free again as soon as it was committed, so few of them are in use at
// a time, and the same ones are used again as long as they are in a cache. Not thread-safe, except for at().
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

namespace echo::replay {

class Landing {
public:
    Landing(uint64_t row_bytes, uint32_t rows)
        : row_bytes_(row_bytes), rows_(rows), memory_(new char[row_bytes * rows]), taken_(rows) {}

    uint64_t row_bytes() const { return row_bytes_; }
    uint32_t rows() const { return rows_; }
    bool full() const { return used_ == rows_; }
    char *at(uint32_t row) const { return memory_.get() + row * row_bytes_; }

    // Takes 1..wanted free rows side by side. Returns how many, or 0 if none is free.
    uint32_t take(uint32_t wanted, uint32_t *first) {
        if (full() || wanted == 0) return 0;
        if (used_ == 0) at_ = 0;
        while (taken_[at_]) at_ = at_ + 1 == rows_ ? 0 : at_ + 1;
        *first = at_;
        uint32_t n = 0;
        for (const uint32_t most = std::min(wanted, rows_ - at_); n < most && !taken_[at_ + n]; ++n) taken_[at_ + n] = 1;
        used_ += n, at_ = at_ + n == rows_ ? 0 : at_ + n;
        return n;
    }
    void give(uint32_t first, uint32_t n) {
        std::fill_n(taken_.begin() + first, n, uint8_t(0));
        used_ -= n;
    }

private:
    const uint64_t row_bytes_;
    const uint32_t rows_;
    const std::unique_ptr<char[]> memory_;
    std::vector<uint8_t> taken_;
    uint32_t at_ = 0, used_ = 0;
};

}  // namespace echo::replay
