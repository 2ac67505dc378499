// A guard: a thread that ends this process when another one, usually the learner that started it, is gone. It is a thread of C++, because a
// process whose Python code never gives the interpreter's lock away must end as well.
//
// PR_SET_PDEATHSIG is no replacement: it fires when the *thread* ends that started this process. But a process that is stopped (SIGSTOP) runs no thread at
// all, so the death of its parent has to wake it. SIGCONT does that, and does nothing to a process that runs.
#pragma once

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>

#include "process.hpp"
#include "segment.hpp"

namespace echo_ipc {

class Guard {
public:
    // grace: ns from the other process' death to the end of this one; negative: never. code: the exit code then.
    Guard(int64_t pid, int64_t started, int64_t grace, int code) : pid_(pid), started_(started), grace_(grace), code_(code) {
        fired_.init();
        if (pid == getppid()) prctl(PR_SET_PDEATHSIG, SIGCONT);
        stop_ = eventfd(0, EFD_CLOEXEC);
#ifdef SYS_pidfd_open
        process_ = int(syscall(SYS_pidfd_open, pid_t(pid), 0));
#endif
        // If the number was used again between its death and now, the descriptor is of another process.
        if (!is_alive(pid_, started_)) dead_.store(true);
        thread_ = std::thread([this] { run(); });
    }

    // Not in a forked child: the thread is not there.
    ~Guard() {
        stop();
        thread_.join();
        close(stop_);
        if (process_ >= 0) close(process_);
    }

    void stop() {
        const uint64_t one = 1;
        if (write(stop_, &one, sizeof one) < 0) {}
    }

    bool is_dead() const { return dead_.load(); }

    // Sleeps until the process is dead or `longest` ns passed.
    bool wait(int64_t longest) {
        const uint32_t seen = fired_.look();
        if (!dead_.load()) fired_.sleep(seen, longest);
        return dead_.load();
    }

private:
    void run() {
        while (!dead_.load()) {
            // Without a descriptor (an old kernel, or a sandbox), it asks about the process a few times a second.
            pollfd what[2] = {{stop_, POLLIN, 0}, {process_, POLLIN, 0}};
            const int found = poll(what, process_ >= 0 ? 2 : 1, process_ >= 0 ? -1 : 200);
            if (found < 0 && errno != EINTR) return;
            if (found > 0 && what[0].revents) return;
            if (process_ >= 0 ? found > 0 && what[1].revents : !is_alive(pid_, started_)) dead_.store(true);
        }
        fired_.wake();
        if (grace_ < 0) return;
        pollfd what = {stop_, POLLIN, 0};
        const int64_t end = now_ns() + grace_;
        for (int64_t left = grace_; left > 0; left = end - now_ns())
            if (poll(&what, 1, int(left / 1'000'000 + 1)) > 0) return;
        if (getpgrp() == getpid()) kill(0, SIGKILL);  // with what it has started, if it has a process group of its own
        _exit(code_);
    }

    const int64_t pid_, started_, grace_;
    const int code_;
    int stop_ = -1, process_ = -1;
    std::atomic<bool> dead_{false};
    Event fired_;
    std::thread thread_;
};

}  // namespace echo_ipc
