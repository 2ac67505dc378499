// The change log of a table whose sampler is written in Python. That sampler is told of changes only when a thread draws, so that writers
// never need the GIL. The log is not thread-safe: the table's mutex guards it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "rows/generations.hpp"

namespace echo::replay {

struct Change {
    uint32_t row;
    uint32_t inserted;  // 1: inserted, 0: removed
    double priority;    // NaN: the sampler chooses the priority
};

class ChangeLog {
public:
    // capacity 0: the sampler is native and needs no log.
    explicit ChangeLog(uint32_t capacity) : capacity_(capacity), known_(capacity ? std::make_unique<uint32_t[]>(capacity) : nullptr) {
        std::fill_n(known_.get(), capacity, 1u);
    }

    void note(uint32_t row, bool inserted, double priority) {
        log_.push_back({row, inserted, priority});
        if (log_.size() > 4 * uint64_t(capacity_) + 4096) compact();
    }
    // Returns everything that happened since the last call, in order.
    void take(std::vector<Change> *log, const Generations &generations) {
        log->clear();
        log->swap(log_);
        for (const Change &change : *log) known_[change.row] = generations.live(change.row) ? generations.of(change.row) : 1;
    }
    // Returns the generation of the item in this row that the sampler knows; 1 if it knows none, or has been told that the item was removed.
    uint32_t known(uint32_t row) const { return known_[row]; }
    // The sampler has this item already, from a checkpoint.
    void set_known(uint32_t row, uint32_t generation) {
        if (known_) known_[row] = generation;
    }
    void clear() { log_.clear(); }

    uint64_t bytes_per_row() const { return known_ ? 4 : 0; }

private:
    // Shortens the log to what the sampler still has to be told, at most two entries for each row. This is needed if nobody draws for a long time.
    void compact() {
        std::vector<uint32_t> last(capacity_, 0);  // the number of the row's last entry, plus 1
        std::vector<Change> shorter;
        for (size_t i = 0; i < log_.size(); ++i) {
            if (last[log_[i].row] == 0 && !log_[i].inserted) shorter.push_back(log_[i]);  // the sampler has the row's old item: its removal comes first
            last[log_[i].row] = uint32_t(i + 1);
        }
        for (size_t i = 0; i < log_.size(); ++i)
            if (log_[i].inserted && last[log_[i].row] == i + 1) shorter.push_back(log_[i]);
        log_.swap(shorter);
    }

    const uint32_t capacity_;
    std::vector<Change> log_;
    std::unique_ptr<uint32_t[]> known_;
};

}  // namespace echo::replay
