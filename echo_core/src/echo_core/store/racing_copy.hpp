// Copies of memory that another thread may be writing or reading at the same time.
#pragma once

#include <cstddef>
#include <cstring>

namespace echo {

// Copies bytes that a writer may be overwriting. They may be torn; the caller finds that out, by a row's generation or a buffer's progress.
// ThreadSanitizer cannot know this, so in its builds every byte is an atomic here, and also where rows are written.
inline void copy_racing(char *to, const char *from, size_t bytes) {
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < bytes; ++i) to[i] = __atomic_load_n(from + i, __ATOMIC_RELAXED);
#else
    std::memcpy(to, from, bytes);
#endif
}

// The same in the other direction: readers may be copying the bytes that are written.
inline void copy_racing_out(char *to, const char *from, size_t bytes) {
#ifdef __SANITIZE_THREAD__
    for (size_t i = 0; i < bytes; ++i) __atomic_store_n(to + i, from[i], __ATOMIC_RELAXED);
#else
    std::memcpy(to, from, bytes);
#endif
}

}  // namespace echo
