/* Copies of large values between the memories of processes (C++17).
 * It is a header only and no part of the stable native interface: it may change with any release, and whoever includes it compiles it in. */
#ifndef ECHO_COPY_H
#define ECHO_COPY_H

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>

#if defined(__SSE2__)
#include <emmintrin.h>
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

// A memcpy that goes past the caches. A normal copy first reads the old contents of the target, and evicts what lies in the caches: for a value that
// does not fit there, both cost time and help nobody. The source comes from main memory, because whoever wrote it went past the caches too; it
// is prefetched here, because the processor's own prefetching stops at the end of a page.
inline void copy_past_caches(char *to, const char *from, uint64_t count) {
#if defined(__SSE2__)
    constexpr ptrdiff_t kSoon = 512, kAhead = 4096;  // a prefetch past the end is harmless, because it is not an access
    if (count >= 1024) {
        const uint64_t odd = -reinterpret_cast<uintptr_t>(to) % 64;
        std::memcpy(to, from, odd);
        to += odd, from += odd, count -= odd;
        const uint64_t whole = count / 64 * 64;
        for (const char *end = from + whole; from != end; from += 64, to += 64) {
            _mm_prefetch(from + kAhead, _MM_HINT_T1);
            _mm_prefetch(from + kSoon, _MM_HINT_T0);
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128(reinterpret_cast<__m128i *>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
        }
        _mm_sfence();  // such stores are not ordered with others: without the fence a reader could see a mark that follows before the value
        count -= whole;
    }
#endif
    std::memcpy(to, from, count);
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
