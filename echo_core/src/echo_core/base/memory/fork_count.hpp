// Tells whether this process was forked since an object was made. A forked child has copies of the parent's locks, mappings and buffers,
// but none of its threads. Reading the count is one load; getpid() is a system call, which would cost a sixth of a draw of one small sample.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

namespace echo {

inline std::atomic<uint32_t> forks_counted{0};
inline const int forks_are_counted =
    pthread_atfork(nullptr, nullptr, [] { forks_counted.fetch_add(1, std::memory_order_relaxed); });

// An object that a fork has copied was born at another count. The number has no other meaning: each extension that uses it may count.
inline uint32_t fork_count() { return forks_counted.load(std::memory_order_relaxed); }

}  // namespace echo
