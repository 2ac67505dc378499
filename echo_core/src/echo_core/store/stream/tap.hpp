// A look at the newest committed samples of a stream store. It takes nothing: no samples, and no time of the writers and the learner.
//
// While a batch is being filled, the store knows how many of its slots are committed, but not which. Only when as many slots are committed
// as were claimed, all claimed slots are committed. In batches that are complete and not yet taken, all slots are committed. A learner may take
// a batch while it is being copied, and then change it. The buffer's `progress` and `order` show this afterwards, and the copy is dropped.
#pragma once

#include <algorithm>
#include <vector>

#include "../racing_copy.hpp"
#include "ring.hpp"

// The test-suite pauses here, so that a learner takes the batch and writes to it before it is copied.
#ifndef ECHO_TAP_PAUSE
#define ECHO_TAP_PAUSE()
#endif

namespace echo {

struct Tap {
    // Copies up to `most` samples to to[leaf], with the newest last, and returns how many. They are at the end of the room for `most` samples.
    static uint64_t newest(const Ring &ring, uint64_t most, char *const *to) {
        struct Found {
            uint64_t order, progress;
            uint32_t buffer, count;
        };
        std::vector<Found> found;
        for (uint32_t b = 0; b < ring.total_; ++b) {
            // acquire: every sample that counts as committed here is complete in memory.
            const uint64_t progress = ring.buffer_[b].progress.load(std::memory_order_acquire);  // SYNC batch
            const uint32_t count = Progress::count(progress);
            if (Progress::state(progress) != Progress::kOpen || count == 0 || count > ring.batch_) continue;
            // This is read after `progress`. The number of claimed slots only grows, so if it is not larger than the number committed then,
            // no slot was claimed and not committed at that time.
            const uint64_t open = ring.control_->open.load(std::memory_order_acquire);  // SYNC open
            if (count < ring.batch_ && (Open::buffer(open) != b || Open::next(open) != count)) continue;
            found.push_back({ring.buffer_[b].order.load(std::memory_order_relaxed), progress, b, count});
        }
        std::sort(found.begin(), found.end(), [](const Found &x, const Found &y) { return x.order > y.order; });
        uint64_t copied = 0;
        for (const Found &f : found) {
            if (copied == most) break;
            ECHO_TAP_PAUSE();
            const uint64_t n = std::min<uint64_t>(f.count, most - copied);
            const echo_run run{f.buffer, uint32_t(f.count - n), uint32_t(n), 0};
            for (uint32_t leaf = 0; leaf < ring.leaf_count(); ++leaf) {
                const uint64_t bytes = ring.leaf_bytes(leaf);
                copy_racing(to[leaf] + (most - copied - n) * bytes, ring.leaf(run, leaf), n * bytes);
            }
            std::atomic_thread_fence(std::memory_order_acquire);  // the copy comes before this second look
            const Buffer &buffer = ring.buffer_[f.buffer];
            const uint64_t now = buffer.progress.load(std::memory_order_relaxed);
            const bool same = Progress::lap(now) == Progress::lap(f.progress) && Progress::state(now) == Progress::kOpen &&
                              buffer.order.load(std::memory_order_relaxed) == f.order;
            if (same) copied += n;
        }
        return copied;
    }
};

}  // namespace echo
