// The buffers into which a table gathers batches. A batch keeps its buffer for as long as anything refers to it; then another batch uses
// the buffer, because fresh memory would cost a page fault for every 4 KiB. There are as many buffers as batches that are in use at the same time.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

#include "base/memory/fork_count.hpp"
#include "base/memory/page_lock.hpp"
#include "rows.hpp"

namespace echo::replay {

struct Batch {
    uint64_t n;
    uint64_t room;      // items that there is room for; n is less if a follower found fewer
    void *packed;       // where a follower gathers what varies in length; it is not the batch's own
    uint64_t borrower;  // the client that is given these items, in a queue with lease_timeout; 0: this process
    char *memory;
    uint64_t mapped;
    bool locked;  // page-locked
    std::vector<char *> leaf;
    uint64_t *keys;
    uint64_t *versions;  // versions of the policies that made the rows, if the table keeps them
    double *probabilities;
    double mass;  // the sum that the probabilities divide by; NaN if there is none
    float *weights;
    uint32_t *rows, *generations;  // used while the batch is gathered
    std::vector<uint32_t> ending;  // rows whose last allowed use is in this batch
    std::vector<uint32_t> torn;    // places in the batch whose rows were overwritten while they were gathered
};

class Batches {
public:
    explicit Batches(const std::vector<uint64_t> &leaf_bytes) : leaf_bytes_(leaf_bytes) {}
    ~Batches() {
        for (Batch *batch : free_) drop(batch);
    }

    static uint64_t bytes_of(const std::vector<uint64_t> &leaf_bytes, uint64_t n) {
        const uint64_t rows = Rows::plan(leaf_bytes, n, nullptr);
        uint64_t total;
        return rows == UINT64_MAX || __builtin_add_overflow(rows, n * 36 + 512, &total) ? UINT64_MAX : total;
    }

    // Returns a buffer for n rows; throws std::bad_alloc.
    Batch *take(uint64_t n) {
        leased.fetch_add(1, std::memory_order_relaxed);
        {
            std::lock_guard<std::mutex> lock(mutex_);
            for (size_t i = free_.size(); i-- > 0;) {
                if (free_[i]->room != n) continue;
                Batch *batch = free_[i];
                batch->n = n;
                free_.erase(free_.begin() + long(i));
                free_bytes_ -= batch->mapped;
                return batch;
            }
        }
        try {
            return make(n);
        } catch (...) {
            leased.fetch_sub(1, std::memory_order_relaxed);
            throw;
        }
    }
    void give_back(Batch *batch) {
        if (fork_count() != born_) return;  // in a forked child the mutex may be held by a thread that does not exist there
        leased.fetch_sub(1, std::memory_order_relaxed);
        std::vector<Batch *> surplus;
        {
            std::lock_guard<std::mutex> lock(mutex_);
            free_.push_back(batch);
            free_bytes_ += batch->mapped;
            // The newest one always stays, no matter how large it is: most loops have one or two batches at a time.
            while (free_.size() > kSpare || (free_.size() > 1 && free_bytes_ > kSpareBytes)) {
                surplus.push_back(free_.front());
                free_bytes_ -= free_.front()->mapped;
                free_.erase(free_.begin());
            }
        }
        for (Batch *old : surplus) drop(old);
    }

    // Page-locks the buffers that are made from now on, if the driver allows it. Uploads from a buffer that is not locked take longer.
    void lock_pages(const PageLock &lock) { lock_ = lock; }

    std::atomic<uint64_t> leased{0};

private:
    static constexpr size_t kSpare = 4;
    static constexpr uint64_t kSpareBytes = 128 << 20;  // clients that draw large batches must not leave more behind

    Batch *make(uint64_t n) const {
        const uint64_t rows = Rows::plan(leaf_bytes_, n, nullptr), bytes = bytes_of(leaf_bytes_, n);
        if (bytes == UINT64_MAX) throw std::bad_alloc();
        Batch *batch = new Batch{};
        batch->n = batch->room = n;
        batch->mapped = (bytes + 4095) & ~uint64_t(4095);
        void *memory = map_aligned(batch->mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        if (memory == MAP_FAILED) {
            delete batch;
            throw std::bad_alloc();
        }
        if (batch->mapped >= kHugePage) madvise(memory, batch->mapped, MADV_HUGEPAGE);
        batch->memory = static_cast<char *>(memory);
        batch->locked = lock_ && lock_.apply(memory, batch->mapped) == 0;
        std::vector<uint64_t> offsets;
        Rows::plan(leaf_bytes_, n, &offsets);
        for (uint64_t offset : offsets) batch->leaf.push_back(batch->memory + offset);
        char *at = batch->memory + rows;
        batch->keys = reinterpret_cast<uint64_t *>(at), at += n * 8;
        batch->probabilities = reinterpret_cast<double *>(at), at += n * 8;
        batch->versions = reinterpret_cast<uint64_t *>(at), at += n * 8;
        batch->weights = reinterpret_cast<float *>(at), at += n * 4;
        batch->rows = reinterpret_cast<uint32_t *>(at), at += n * 4;
        batch->generations = reinterpret_cast<uint32_t *>(at);
        return batch;
    }
    void drop(Batch *batch) const {
        if (batch->locked) lock_.undo(batch->memory);
        munmap(batch->memory, batch->mapped);
        delete batch;
    }

    const std::vector<uint64_t> leaf_bytes_;
    const uint32_t born_ = fork_count();
    PageLock lock_;  // must be set before the first buffer is made
    std::mutex mutex_;
    std::vector<Batch *> free_;
    uint64_t free_bytes_ = 0;
};

}  // namespace echo::replay
