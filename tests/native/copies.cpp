// The copies of echo_copy.h, between all positions in a cache line and with sizes around each limit: every byte arrives, and no other byte changes.
#include "echo_copy.h"

#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

namespace {

using Copy = void (*)(char *, const char *, uint64_t);

void past_caches(char *to, const char *from, uint64_t count) { echo::copy_past_caches(to, from, count); }
void sample(char *to, const char *from, uint64_t count) { echo::copy_sample(to, from, count); }
void racing(char *to, const char *from, uint64_t count) { echo::copy_racing(to, from, count, true); }
#if defined(__x86_64__)
// `copy_past_caches` uses only one of the two on the processor that runs this test.
void by_16(char *to, const char *from, uint64_t count) { echo::stream_by_16(to, from, count); }
void by_32(char *to, const char *from, uint64_t count) { echo::stream_by_32(to, from, count); }
#endif

constexpr size_t kMargin = 128;
std::mt19937_64 random_bytes(1);

// The source's memory ends with its last byte, so that AddressSanitizer sees a read beyond it.
bool holds(const char *name, Copy copy, size_t size, size_t to_offset, size_t from_offset) {
    std::vector<char> source(std::max<size_t>(from_offset + size, 1)), target(size + 2 * kMargin + 128, 'x');
    for (char &byte : source) byte = char(random_bytes());
    char *line = target.data() + kMargin;
    line += -reinterpret_cast<uintptr_t>(line) % 64;
    char *to = line + to_offset;
    copy(to, source.data() + from_offset, size);
    bool same = size == 0 || std::memcmp(to, source.data() + from_offset, size) == 0;
    for (char *p = target.data(); p < to; ++p) same = same && *p == 'x';
    for (char *p = to + size; p < target.data() + target.size(); ++p) same = same && *p == 'x';
    if (!same) printf("FORBIDDEN: %s of %zu bytes from offset %zu to offset %zu\n", name, size, from_offset, to_offset);
    return same;
}

}  // namespace

int main() {
    bool good = true;
    for (size_t to = 0; to < 64; to += to < 17 ? 1 : 5)
        for (size_t from = 0; from < 64; from += from < 17 ? 3 : 11) {
            for (size_t size : {0, 1, 63, 64, 1023, 1024, 1025, 1087, 1088, 4096 + 63, 10000}) {
                good &= holds("copy_past_caches", past_caches, size, to, from);
                good &= holds("copy_racing", racing, size, to, from);
                good &= holds("copy_sample", sample, size, to, from);
            }
        }
    for (size_t size : {(256 << 10) - 1, 256 << 10, (256 << 10) + 65})
        for (size_t to : {0, 1, 32, 63}) good &= holds("copy_sample", sample, size, to, 7);
#if defined(__x86_64__)
    for (size_t size : {0, 64, 128, 4096, 8256})
        for (size_t from = 0; from < 64; ++from) {
            good &= holds("stream_by_16", by_16, size, 0, from);
            if (__builtin_cpu_supports("avx")) good &= holds("stream_by_32", by_32, size, 0, from);
        }
#endif
    if (good) printf("no forbidden outcome\n");
    return !good;
}
