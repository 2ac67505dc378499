// What the three stress programs have in common: memory, time, children that are killed at random instants, and how a forbidden outcome is told.
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "../../src/echo_ipc/_native/segment.hpp"

using namespace echo_ipc;
using Number = unsigned long long;

inline double now() { return double(now_ns()) * 1e-9; }

[[noreturn]] inline void forbidden(const char *what, uint64_t a = 0, uint64_t b = 0) {
    printf("FORBIDDEN: %s (%llu, %llu)\n", what, Number(a), Number(b));
    fflush(stdout);
    _exit(1);
}

// Memory that children share with this process. It begins at zero.
inline char *shared(uint64_t size) {
    void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) perror("mmap"), exit(2);
    return static_cast<char *>(memory);
}

inline Segment segment(uint64_t size, Kind kind, std::initializer_list<uint64_t> sizes) {
    uint64_t words[8] = {};
    std::copy(sizes.begin(), sizes.end(), words);
    char *base = shared(size);
    make(base, size, kind, 1, "", 0, words);
    if (wrong(base, size, kind)) forbidden("the segment is wrong");
    return Segment(base, true);
}

inline void unmap(const Segment &segment) { munmap(segment.header, segment.header->size); }

// ThreadSanitizer watches one process only.
#if defined(__SANITIZE_THREAD__)
constexpr bool kProcesses = false;
#else
constexpr bool kProcesses = true;
#endif

// Processes that are killed at random instants and replaced, until the time is over. All are gone when this returns.
inline uint64_t slaughter(double seconds, const std::vector<std::function<void()>> &bodies) {
    std::mt19937 random(7);
    const auto born = [](const std::function<void()> &body) {
        const pid_t child = fork();
        if (child < 0) perror("fork"), exit(2);
        if (child == 0) body(), _exit(0);
        return child;
    };
    const auto reaped = [](pid_t child) {
        int status = 0;
        waitpid(child, &status, 0);
        if (WIFEXITED(status) && WEXITSTATUS(status) != 0) forbidden("a child failed", uint64_t(WEXITSTATUS(status)));
        if (WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL) forbidden("a child died of a signal", uint64_t(WTERMSIG(status)));
    };
    std::vector<pid_t> children;
    for (const auto &body : bodies) children.push_back(born(body));
    uint64_t kills = 0;
    for (const double end = now() + seconds; now() < end; ++kills) {
        usleep(useconds_t(200 + random() % 12'000));
        const size_t which = random() % children.size();
        kill(children[which], SIGKILL);
        reaped(children[which]);
        children[which] = born(bodies[which]);
    }
    for (const pid_t child : children) kill(child, SIGKILL), reaped(child);
    return kills;
}
