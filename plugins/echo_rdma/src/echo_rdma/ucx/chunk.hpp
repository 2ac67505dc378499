// Memory for consecutive samples of a worker, stored sample after sample, and functions that copy leaves to and from it.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "peer.hpp"

namespace echo_rdma {

class Window;

struct Chunk {
    Window *window;
    uint64_t first = 0;   // number of its first sample
    uint32_t room = 0;    // samples that fit
    uint32_t filled = 0, sent = 0;
    std::atomic<uint32_t> in_flight{0}; // requests of UCX; the last one is subtracted under the window's lock, see `let_go`
    bool sealed = false;  // takes no more samples
    char *rows = nullptr;
    uint64_t offset = 0;  // offset of its rows in the region; 0 if they lie in memory of its own
    Memory own;
};

// Copies one leaf of `count` samples to or from rows of samples. If the compiler knows the size, a small copy is only one or two moves.
template <bool to_rows> inline void copy_column(char *rows, char *column, size_t size, size_t stride, size_t count) {
    auto copy = [&](auto bytes) {
        for (size_t i = 0; i < count; i++) {
            if constexpr (to_rows)
                memcpy(rows + i * stride, column + i * bytes, bytes);
            else
                memcpy(column + i * bytes, rows + i * stride, bytes);
        }
    };
    if (size == stride)
        to_rows ? memcpy(rows, column, count * size) : memcpy(column, rows, count * size);
    else if (size == 4)
        copy(std::integral_constant<size_t, 4>());
    else if (size == 8)
        copy(std::integral_constant<size_t, 8>());
    else if (size == 1)
        copy(std::integral_constant<size_t, 1>());
    else if (size == 16)
        copy(std::integral_constant<size_t, 16>());
    else
        copy(size);
}

} // namespace echo_rdma
