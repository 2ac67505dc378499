// Tells whether this process was forked since. A child has no I/O thread and must not use the socket.
#pragma once

#include <pthread.h>

#include <atomic>

#include "../descriptors.hpp"

namespace echo_tcp::worker {

// Counts the forks between the first process and this one. A read of it is one load; getpid()
// would be a system call on every send.
inline std::atomic<unsigned> fork_generation{0};

inline void watch_forks() {
    static const int registered = ::pthread_atfork(
        nullptr, nullptr, [] { fork_generation.fetch_add(1, std::memory_order_relaxed); });
    (void)registered;
    give_sockets_back_in_children();
}

// Closes a socket that is already shut down.
inline void close_socket(int fd) noexcept {
    sockets_of_ours.remove(fd);
    ::close(fd);
}

}  // namespace echo_tcp::worker
