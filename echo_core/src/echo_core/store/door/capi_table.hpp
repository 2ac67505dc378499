// The function table of echo_capi.h, implemented over Door. Only this file and door.hpp know what an echo_store is.
#pragma once

#include "door.hpp"

namespace echo {

inline Door *door_of(echo_store *store) { return reinterpret_cast<Door *>(store); }
inline const Door *door_of(const echo_store *store) { return reinterpret_cast<const Door *>(store); }

inline const echo_capi *capi_table() {
    static const echo_capi table = {
        .version = ECHO_CAPI_VERSION,
        .size = sizeof(echo_capi),
        .retain = [](echo_store *s) { door_of(s)->retain(); },
        .release = [](echo_store *s) { door_of(s)->release(); },
        .leaf_count = [](const echo_store *s) { return door_of(s)->leaf_count(); },
        .leaf_bytes = [](const echo_store *s, uint32_t leaf) { return door_of(s)->leaf_bytes(leaf); },
        .sample_bytes = [](const echo_store *s) { return door_of(s)->sample_bytes(); },
        .batch_size = [](const echo_store *s) { return uint32_t(door_of(s)->batch_size()); },
        .claim = [](echo_store *s, uint32_t wanted, echo_run *out) { return door_of(s)->claim(wanted, out); },
        .leaf = [](echo_store *s, const echo_run *run, uint32_t leaf) -> void * { return door_of(s)->leaf(*run, leaf); },
        .commit = [](echo_store *s, const echo_run *run) { door_of(s)->commit(*run); },
        .abort = [](echo_store *s, const echo_run *run) { door_of(s)->abort(*run); },
        .wait_space = [](echo_store *s, int64_t timeout_ns) { return door_of(s)->wait_space(timeout_ns); },
        .arm_space = [](echo_store *s, int eventfd) { return door_of(s)->arm_space(eventfd); },
        .disarm_space = [](echo_store *s, int eventfd) { door_of(s)->disarm_space(eventfd); },
        .gauge_add = [](echo_store *s, int gauge, int64_t delta) { door_of(s)->gauge_add(gauge, delta); },
        .queue_depth = [](echo_store *s, uint64_t depth) { door_of(s)->queue_depth(depth); },
        .observe = [](echo_store *s, int histogram, uint64_t ns) { door_of(s)->observe(histogram, ns); },
        .put = [](echo_store *s, const void *const *leaves, uint32_t n, uint32_t *taken) { return door_of(s)->put(leaves, n, taken); },
    };
    return &table;
}

}  // namespace echo
