/* Copies of large values: between the memories of processes, and of samples into windows and stores (C++17).
 * It is a header only and no part of the stable native interface: it may change with any release, and whoever includes it compiles it in. */
#ifndef ECHO_COPY_H
#define ECHO_COPY_H

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace echo {

// How many bytes the last level of this processor's caches has; a usual size if the system does not say. glibc's _SC_LEVEL3_CACHE_SIZE is no
// replacement: it adds up caches of cores that do not share them.
inline uint64_t shared_cache() {
    static const uint64_t size = [] {
        uint64_t kib = 0;
        if (FILE *file = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re")) {
            unsigned long long found = 0;
            if (fscanf(file, "%lluK", &found) == 1) kib = found;
            fclose(file);
        }
        return kib ? kib << 10 : uint64_t(16) << 20;
    }();
    return size;
}

#if defined(__x86_64__)

// The source of a copy past the caches often comes from main memory, because whoever wrote it went past the caches too. It is prefetched, because
// the processor's own prefetching stops at the end of a page. A prefetch past the end is harmless, because it is not an access.
inline void prefetch_source(const char *from) {
    _mm_prefetch(from + 4096, _MM_HINT_T1);
    _mm_prefetch(from + 512, _MM_HINT_T0);
}

// Both copy `count` bytes, a multiple of 64, to the start of a cache line.
inline void stream_by_16(char *to, const char *from, uint64_t count) {
    for (const char *end = from + count; from != end; from += 64, to += 64) {
        prefetch_source(from);
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
    }
}

// Half as many stores make it 5 to 20 % faster.
__attribute__((target("avx"))) inline void stream_by_32(char *to, const char *from, uint64_t count) {
    for (const char *end = from + count; from != end; from += 64, to += 64) {
        prefetch_source(from);
        const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from));
        const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(from + 32));
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to), low);
        _mm256_stream_si256(reinterpret_cast<__m256i *>(to + 32), high);
    }
}

#endif

// A memcpy that goes past the caches. A normal copy first reads the old contents of the target, and evicts what lies in the caches: for a value that
// does not fit there, both cost time and help nobody.
inline void copy_past_caches(char *to, const char *from, uint64_t count) {
#if defined(__x86_64__)
    if (count >= 1024) {
        const uint64_t odd = -reinterpret_cast<uintptr_t>(to) % 64;
        std::memcpy(to, from, odd);
        to += odd, from += odd, count -= odd;
        const uint64_t whole = count / 64 * 64;
        __builtin_cpu_supports("avx") ? stream_by_32(to, from, whole) : stream_by_16(to, from, whole);
        _mm_sfence();  // such stores are not ordered with others: without the fence a reader could see a mark that follows before the value
        to += whole, from += whole, count -= whole;
    }
#endif
    std::memcpy(to, from, count);
}

// Copies a leaf of samples to memory that nobody reads soon. A large one goes past the caches: a window or a store of samples is larger than they are,
// and would evict the messages that are read next.
inline void copy_sample(void *to, const void *from, size_t size) {
    constexpr size_t kLarge = 256 << 10;  // as large as a core's share of the caches
    size >= kLarge ? copy_past_caches(static_cast<char *>(to), static_cast<const char *>(from), size) : void(std::memcpy(to, from, size));
}

// Copies memory that another thread or process may write at the same time; the caller finds out afterwards whether it did.
inline void copy_racing(char *to, const char *from, uint64_t count, bool past_caches) {
#if defined(__SANITIZE_THREAD__)
    // ThreadSanitizer must see that torn copies are meant: every access is atomic.
    (void)past_caches;
    const uint64_t words = (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % 8 == 0 ? count / 8 : 0;
    for (uint64_t i = 0; i < words; ++i)
        __atomic_store_n(reinterpret_cast<uint64_t *>(to) + i, __atomic_load_n(reinterpret_cast<const uint64_t *>(from) + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
    for (uint64_t i = words * 8; i < count; ++i) __atomic_store_n(to + i, __atomic_load_n(from + i, __ATOMIC_RELAXED), __ATOMIC_RELAXED);
#else
    past_caches ? copy_past_caches(to, from, count) : void(std::memcpy(to, from, count));
#endif
}

}  // namespace echo

#endif
