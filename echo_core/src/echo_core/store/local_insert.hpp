// Inserts samples of this process into a store: copies as many as have room now into claimed slots, and commits them.
#pragma once

#include <Python.h>

#include <cstdint>
#include <cstring>

#include "wait/event_count.hpp"
#include "../include/echo_capi.h"
#include "../spec/sample_labels.hpp"

namespace echo {

// Copies samples `done` to `count` from the leaf runs at `data`. Returns up to which sample all are done: `count`, or
// less if the store is full or closed. `claimed` is a run that the first samples go into, or NULL; leaves whose `data` is NULL are in that run already.
// Call it with the GIL. It releases the GIL for copies that take longer than releasing and retaking it (46 ns).
template <class Store>
size_t copy_in(Store *store, const void *const *data, size_t done, size_t count, const Labels &labels, const echo_run *claimed) {
    constexpr uint64_t kGilBytes = 32768;
    const uint32_t leaves = store->leaf_count();
    while (done < count) {
        echo_run run;
        const size_t left = count - done;
        const bool filled = claimed != nullptr;
        if (claimed) run = *claimed, claimed = nullptr;
        else if (store->claim(left < 0x7fffffff ? uint32_t(left) : 0x7fffffff, &run) != ECHO_OK) break;
        // One sample in 64 is timed: reading the clock twice costs as much as copying a small sample.
        const bool timed = (run.slot & 63) == 0;
        const int64_t began = timed ? now_ns() : 0;
        PyThreadState *const away = store->sample_bytes() * run.count > kGilBytes ? PyEval_SaveThread() : nullptr;
        const auto copy = [&](uint32_t leaf) {
            const size_t size = store->leaf_bytes(leaf);
            std::memcpy(store->leaf(run, leaf), static_cast<const char *>(data[leaf]) + done * size, size * run.count);
        };
        if (!filled) [[likely]] {
            for (uint32_t leaf = 0; leaf < leaves; ++leaf) copy(leaf);
        } else {
            for (uint32_t leaf = 0; leaf < leaves; ++leaf)
                if (data[leaf]) copy(leaf);
        }
        if (away) PyEval_RestoreThread(away);
        if (timed) store->copy.record(uint64_t(now_ns() - began) / run.count);
        if constexpr (requires { store->commit(run, labels); }) store->commit(run, labels.from(done));
        else store->commit(run);
        done += run.count;
    }
    return done;
}

}  // namespace echo
