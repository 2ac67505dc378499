// Writes short rows past the caches. A table that is larger than the caches is not read soon where it is written, and a normal store would first
// read what lies there.
//
// Stores past the caches are fast only if each fills a whole cache line, and the pieces of a row do not. So a few rows are put together in a buffer,
// and its whole lines are stored. Measured with rows of 444 bytes in six pieces: 256 rows take four fifths of the time, 4096 rows nine tenths.
#pragma once

#include <algorithm>

#include "segment.hpp"

namespace echo_ipc {

constexpr uint64_t kLine = 64, kBuffer = 2048;
constexpr uint64_t kRowsAhead = 12;  // so far ahead the source is prefetched; while whole lines are stored, the processor reads nothing ahead by itself

// Whether these rows can be written so: a row has to fit into the buffer, and few bytes are not worth it.
inline bool rows_fit_past_caches(uint64_t row, uint64_t rows) {
#if defined(__SANITIZE_THREAD__)
    (void)row, (void)rows;
    return false;  // ThreadSanitizer does not see these stores
#else
    return row <= kBuffer - kLine && rows * row >= 2 * kBuffer;
#endif
}

// Where rows are put together. It lies within one page, because a store across the end of a page takes many times as long, and not on the stack,
// where the same code took a third longer on the measured processor (Zen).
struct alignas(kBuffer) RowBuffer {
    char bytes[kBuffer];
};

// Writes `rows` rows of `row` bytes to `to`, one behind the other, from row `first` of the columns on.
inline void write_past_caches(char *to, const Part *columns, int count, uint64_t first, uint64_t rows, uint64_t row, RowBuffer &lines) {
    char *const buffer = lines.bytes;
    const uint64_t most = (kBuffer - kLine) / row, last = first + rows;
    uint64_t before = reinterpret_cast<uintptr_t>(to) % kLine;  // the first bytes of this line belong to another row, which somebody may read now
    uint64_t held = before;
    char *line = to - before;  // where the buffer goes
    while (first < last) {
        for (const uint64_t end = std::min(last, first + most); first < end; ++first, held += row)
            for (int c = 0; c < count; ++c) {
                for (uint64_t at = 0; at < columns[c].bytes; at += kLine) __builtin_prefetch(columns[c].memory + (first + kRowsAhead) * columns[c].bytes + at);
                copy_piece(buffer + held + columns[c].offset, columns[c].memory + first * columns[c].bytes, columns[c].bytes);
            }
        const uint64_t whole = held / kLine * kLine, start = before != 0 ? kLine : 0;
        if (before != 0) std::memcpy(line + before, buffer + before, kLine - before);
        before = 0;
        echo::stream<false>(line + start, buffer + start, whole - start);
        line += whole, held -= whole;
        std::memmove(buffer, buffer + whole, kLine);  // the beginning of the next line
    }
    std::memcpy(line, buffer, held);
    echo::end_stream();
}

}  // namespace echo_ipc
