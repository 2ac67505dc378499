// The function table of echo_capi.h over Ring. Only this file knows that an echo_store is a Ring.
#pragma once

#include "ring.hpp"

namespace echo {

inline Ring *ring_of(echo_store *store) { return reinterpret_cast<Ring *>(store); }
inline const Ring *ring_of(const echo_store *store) { return reinterpret_cast<const Ring *>(store); }

inline const echo_capi *capi_table() {
    static const echo_capi table = {
        .version = ECHO_CAPI_VERSION,
        .size = sizeof(echo_capi),
        .retain = [](echo_store *s) { ring_of(s)->retain(); },
        .release = [](echo_store *s) { ring_of(s)->release(); },
        .leaf_count = [](const echo_store *s) { return ring_of(s)->leaf_count(); },
        .leaf_bytes = [](const echo_store *s, uint32_t leaf) { return ring_of(s)->leaf_bytes(leaf); },
        .sample_bytes = [](const echo_store *s) { return ring_of(s)->sample_bytes(); },
        .batch_size = [](const echo_store *s) { return uint32_t(ring_of(s)->batch_size()); },
        .claim = [](echo_store *s, uint32_t wanted, echo_run *out) { return ring_of(s)->claim(wanted, out); },
        .leaf = [](echo_store *s, const echo_run *run, uint32_t leaf) -> void * { return ring_of(s)->leaf(*run, leaf); },
        .commit = [](echo_store *s, const echo_run *run) { ring_of(s)->commit(*run); },
        .abort = [](echo_store *s, const echo_run *run) { ring_of(s)->abort(*run); },
        .wait_space = [](echo_store *s, int64_t timeout_ns) { return ring_of(s)->wait_space(timeout_ns); },
        .arm_space = [](echo_store *s, int eventfd) { return ring_of(s)->arm_space(eventfd); },
        .disarm_space = [](echo_store *s, int eventfd) { ring_of(s)->disarm_space(eventfd); },
        .gauge_add =
            [](echo_store *s, int gauge, int64_t delta) {
                ring_of(s)->gauges[gauge].fetch_add(delta, std::memory_order_relaxed);
            },
        .queue_depth =
            [](echo_store *s, uint64_t depth) {
                auto &most = ring_of(s)->queue_depth_max;
                uint64_t seen = most.load(std::memory_order_relaxed);
                while (depth > seen && !most.compare_exchange_weak(seen, depth, std::memory_order_relaxed)) {}
            },
        .observe =
            [](echo_store *s, int histogram, uint64_t ns) {
                (histogram == ECHO_HIST_COPY ? ring_of(s)->copy : ring_of(s)->ingest_round).record(ns);
            },
    };
    return &table;
}

}  // namespace echo
