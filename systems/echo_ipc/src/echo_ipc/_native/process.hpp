// Whether a process still lives. Its number alone does not tell, because numbers are used again; number and start time together do.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace echo_ipc {

// When the process started, in clock ticks since the machine did. 0: it is gone, or a zombie. -1: this cannot be found out.
inline int64_t start_of(int64_t pid) {
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(pid));
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    // Without /proc, a living process is not found either.
    if (fd < 0) return errno == ENOENT && kill(pid_t(pid), 0) != 0 && errno == ESRCH ? 0 : -1;
    const ssize_t count = read(fd, text, sizeof text - 1);
    const int error = errno;
    close(fd);
    if (count <= 0) return count < 0 && error != ESRCH ? -1 : 0;
    text[count] = 0;
    const char *at = strrchr(text, ')');  // the name before it may contain anything
    if (!at || at[1] != ' ') return -1;
    at += 2;
    if (*at == 'Z' || *at == 'X' || *at == 'x') return 0;
    for (int field = 3; field < 22; ++field) {
        at = strchr(at, ' ');
        if (!at) return -1;
        ++at;
    }
    return strtoll(at, nullptr, 10);
}

// A process of which nothing can be found out counts as alive: nothing of it is taken away.
inline bool is_alive(int64_t pid, int64_t started) {
    const int64_t now = start_of(pid);
    return now == -1 || (now != 0 && (started == -1 || now == started));
}

}  // namespace echo_ipc
