// The sockets that native code of this process owns, so that a forked child can close its copies of them at once.
//
// A connection ends when the last copy of its descriptor is closed. A child (a data loader, or a tool that was started
// by os.fork) may outlive a parent that was killed. Its copies would keep every connection of the parent open, and the
// other ends would wait for ever for a process that no longer exists.
#pragma once

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace echo_tcp {

// One bit for each descriptor. There is no lock, because in the child a thread that held it would not exist to release it.
class Descriptors {
public:
    void add(int fd) noexcept {
        if (fd < 0 || fd >= most) return;
        words_[fd / 64].fetch_or(bit(fd));
        for (int last = last_.load(); last < fd && !last_.compare_exchange_weak(last, fd);) {}
    }
    // To be called after the socket is shut down and before it is closed. A moment after the close the number may belong to
    // another file, which a child must not close. A child that is forked in between keeps a copy of a connection that has ended.
    void remove(int fd) noexcept {
        if (fd >= 0 && fd < most) words_[fd / 64].fetch_and(~bit(fd));
    }
    // To be called in the child, while this is its only thread.
    void close_all() noexcept {
        for (int word = 0; word <= last_.load() / 64; ++word)
            for (std::uint64_t left = words_[word].exchange(0); left != 0; left &= left - 1)
                ::close(word * 64 + __builtin_ctzll(left));
    }

private:
    static constexpr int most = 1 << 20;  // the kernel's default limit of descriptors per process
    static constexpr std::uint64_t bit(int fd) noexcept { return std::uint64_t(1) << fd % 64; }

    std::atomic<std::uint64_t> words_[most / 64]{};
    std::atomic<int> last_{0};
};

inline Descriptors sockets_of_ours;

inline void give_sockets_back_in_children() {
    static const int registered = ::pthread_atfork(nullptr, nullptr, [] { sockets_of_ours.close_all(); });
    (void)registered;
}

}  // namespace echo_tcp
