// The memory of packed batches: for each ragged axis the offsets of the batch's items, and for each leaf one array of all their rows, one item after
// another.
//
// How long the items will be is known only when they are drawn, and then nothing may fail any more. So addresses are reserved for the longest
// items, and the kernel provides memory for those that are written. A batch's memory is used again, as that of batches of fixed size.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "base/memory/fork_count.hpp"
#include "base/memory/page_lock.hpp"
#include "echo_huge_pages.h"
#include "record_layout.hpp"

namespace echo::replay {

struct PackedBatch {
    uint64_t items;               // there is room for so many
    uint64_t room[MOST_AXES];     // and for so many rows along each axis
    char *memory;
    uint64_t mapped, touched;
    bool locked;
    uint64_t totals[MOST_AXES];   // rows of the items that it has now
    int32_t *offsets[MOST_AXES];  // items + 1 entries
    std::vector<char *> leaf;
};

class PackedBatches {
public:
    explicit PackedBatches(const RecordLayout &layout) : layout_(layout) {}
    ~PackedBatches() {
        for (PackedBatch *batch : free_) drop(batch);
    }

    // Returns memory for `items` items of up to room[axis] rows together; throws std::bad_alloc.
    PackedBatch *take(uint64_t items, const uint64_t *room) {
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (size_t i = free_.size(); i-- > 0;) {
                if (free_[i]->items != items || !std::equal(room, room + MOST_AXES, free_[i]->room)) continue;
                PackedBatch *batch = free_[i];
                free_.erase(free_.begin() + long(i));
                free_bytes_ -= batch->touched;
                return batch;
            }
        }
        return make(items, room);
    }
    void give_back(PackedBatch *batch) {
        if (fork_count() != born_) return;  // in a forked child the mutex may be held by a thread that does not exist there
        uint64_t used = 0;
        for (const RecordLeaf &leaf : layout_.leaves) used += leaf.bytes * (leaf.axis < 0 ? batch->items : batch->totals[leaf.axis]);
        batch->touched = std::max(batch->touched, used);
        std::vector<PackedBatch *> surplus;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            free_.push_back(batch);
            free_bytes_ += batch->touched;
            while (free_.size() > kSpare || (free_.size() > 1 && free_bytes_ > kSpareBytes)) {
                surplus.push_back(free_.front());
                free_bytes_ -= free_.front()->touched;
                free_.erase(free_.begin());
            }
        }
        for (PackedBatch *old : surplus) drop(old);
    }
    // Page-locks the memory that is made from now on. Locking provides all of it, so batches that could be very large stay unlocked.
    void lock_pages(const PageLock &lock) { lock_ = lock; }

private:
    static constexpr size_t kSpare = 4;
    static constexpr uint64_t kSpareBytes = 128 << 20, kLockBytes = 256 << 20;

    PackedBatch *make(uint64_t items, const uint64_t *room) const {
        uint64_t end = 0;
        const auto place = [&end](uint64_t bytes, uint64_t count) {
            const uint64_t at = (end + 4095) & ~uint64_t(4095);  // a leaf begins with a page of its own, so that the arrays are aligned
            uint64_t size;
            if (__builtin_mul_overflow(bytes, count, &size) || __builtin_add_overflow(at, size, &end) || end > uint64_t(1) << 46)
                throw std::bad_alloc();
            return at;
        };
        std::vector<uint64_t> offsets, leaves;
        for (size_t axis = 0; axis < layout_.most.size(); ++axis) offsets.push_back(place(4, items + 1));
        for (const RecordLeaf &leaf : layout_.leaves) leaves.push_back(place(leaf.bytes, leaf.axis < 0 ? items : room[leaf.axis]));
        end += 64;
        void *memory = mmap(nullptr, end, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        PackedBatch *batch = new PackedBatch{};
        batch->items = items, batch->memory = static_cast<char *>(memory), batch->mapped = end;
        std::copy(room, room + MOST_AXES, batch->room);
        batch->locked = lock_ && end <= kLockBytes && lock_.apply(memory, end) == 0;
        for (size_t axis = 0; axis < offsets.size(); ++axis) batch->offsets[axis] = reinterpret_cast<int32_t *>(batch->memory + offsets[axis]);
        for (uint64_t at : leaves) batch->leaf.push_back(batch->memory + at);
        return batch;
    }
    void drop(PackedBatch *batch) const {
        if (batch->locked) lock_.undo(batch->memory);
        munmap(batch->memory, batch->mapped);
        delete batch;
    }

    const RecordLayout layout_;
    const uint32_t born_ = fork_count();
    PageLock lock_;  // must be set before the first batch is made
    std::mutex mutex_;
    std::vector<PackedBatch *> free_;
    uint64_t free_bytes_ = 0;
};

}  // namespace echo::replay
