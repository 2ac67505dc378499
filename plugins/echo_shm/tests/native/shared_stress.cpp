// Memory-model and crash-safety claims of remote_writer.hpp and reaper.hpp as a program: writers that are killed and stopped at any
// instruction (processes), and the same writers as threads, which ThreadSanitizer can follow. Each FORBIDDEN outcome names the claim it
// breaks.
//
//   shared_stress threads|processes [seconds per scenario]
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>
#include <vector>

#include "../../src/echo_shm/reaper.hpp"
#include "../../src/echo_shm/remote_writer.hpp"
#include "store/door/capi_table.hpp"
#include "store/stream/ring.hpp"

using echo::now_ns;
using echo::Ring;
using echo_shm::Reaper;
using echo_shm::Remote;

namespace {

[[noreturn]] void forbidden(const char *claim, uint64_t a = 0, uint64_t b = 0, uint64_t c = 0) {
    std::fprintf(stderr, "FORBIDDEN: %s (%llu, %llu, %llu)\n", claim, (unsigned long long)a, (unsigned long long)b, (unsigned long long)c);
    std::_Exit(1);
}

struct Scenario {
    const char *name;
    int writers, local;  // other processes, and threads of the learner's own
    uint64_t batch, buffers, spares;
    uint32_t run;        // samples a writer asks for at once
    int kill_in_us;      // a writer is killed about so often; 0: never
    int stop_in_us;      // ... stopped, for a while longer than claims may take
};

constexpr uint64_t kFiller = 96, kMakers = 1 << 20;
constexpr int64_t kTimeout = 20'000'000;

struct Random {
    uint64_t state;
    uint64_t operator()() {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        return state;
    }
};

template <class Store>
void write_samples(Store &store, const echo_run &run, uint64_t maker, uint64_t number) {
    for (uint32_t i = 0; i < run.count; ++i, ++number) {
        std::memcpy(store.leaf(run, 0) + i * 8, &number, 8);
        std::memcpy(store.leaf(run, 1) + i * 8, &maker, 8);
        std::memset(store.leaf(run, 2) + i * kFiller, int((number * 31 + maker) & 0xff), kFiller);
    }
}

// Samples 1, 2, 3 ... of `maker`; `acknowledged` follows what commit() has answered for.
void write_for_ever(Remote &remote, uint32_t id, uint64_t maker, uint32_t most, std::atomic<uint64_t> &acknowledged, const std::atomic<bool> *stop,
                    uint64_t dawdle_ns, uint64_t dawdle_in) {
    Random random{maker * 2654435761u + 1};
    uint64_t number = 1;
    while (!stop || !stop->load(std::memory_order_relaxed)) {
        echo_run run;
        const int status = remote.claim(id, 1 + uint32_t(random() % most), &run);
        if (status == ECHO_CLOSED) return;
        if (status == ECHO_FULL) {
            remote.wait_space(id, 1'000'000'000);
            continue;
        }
        write_samples(remote, run, maker, number);
        if (random() % dawdle_in == 0) {  // where most kills and stops would otherwise never hit
            for (const int64_t until = now_ns() + int64_t(random() % dawdle_ns); now_ns() < until;) {}
            write_samples(remote, run, maker, number);  // also when the claim was revoked meanwhile
        }
        if (remote.commit(id, run) == ECHO_OK) {
            number += run.count;
            acknowledged.store(number - 1, std::memory_order_release);
        }
    }
}

// Takes batches and looks at every byte.
struct Learner {
    Ring &ring;
    std::map<uint64_t, std::vector<bool>> seen;
    uint64_t samples = 0;

    bool take(int64_t timeout) {
        int b = ring.take();
        if (b < 0) {
            ring.wait_ready(timeout);
            b = ring.take();
        }
        if (b < 0) return false;
        const char *numbers = ring.batch_leaf(b, 0), *makers = ring.batch_leaf(b, 1), *filler = ring.batch_leaf(b, 2);
        for (uint64_t i = 0; i < ring.batch_size(); ++i) {
            uint64_t number, maker;
            std::memcpy(&number, numbers + i * 8, 8);
            std::memcpy(&maker, makers + i * 8, 8);
            const char want = char((number * 31 + maker) & 0xff);
            for (uint64_t k = 0; k < kFiller; ++k)
                if (filler[i * kFiller + k] != want) forbidden("a sample is seen whole (torn sample)", maker, number, k);
            std::vector<bool> &mine = seen[maker];
            if (mine.size() <= number) mine.resize(number + 1 + mine.size());
            if (mine[number]) forbidden("a sample is seen once (doubled)", maker, number, mine.size());
            mine[number] = true;
        }
        samples += ring.batch_size();
        ring.give_back(b);
        return true;
    }

    // What is still in buffers that are not full.
    void check(const std::atomic<uint64_t> *acknowledged, uint64_t makers, uint64_t most) {
        uint64_t missing = 0;
        for (uint64_t maker = 0; maker < makers; ++maker) {
            const std::vector<bool> &mine = seen[maker];
            const uint64_t told = acknowledged[maker].load();
            for (uint64_t number = 1; number <= told; ++number) missing += number >= mine.size() || !mine[number];
            for (uint64_t number = told + most + 1; number < mine.size(); ++number)
                if (mine[number]) forbidden("a sample is seen that was not sent", maker, number, told);
        }
        const uint64_t stored = ring.counters().stored;
        if (missing > stored) forbidden("nothing acknowledged is lost", missing, stored, samples);
    }
};

Reaper reaper_of(Ring *ring, uint64_t length, const std::vector<uint64_t> &leaves, int64_t timeout) {
    echo::Door *door = echo::open_door(ring);
    struct Drop {
        echo::Door *door;
        ~Drop() { door->release(); }
    } drop{door};
    return Reaper(echo::capi_table(), reinterpret_cast<echo_store *>(door), ring->base(), length, leaves, timeout);
}

struct Worker {
    pid_t pid;
    uint32_t id;
    uint64_t maker;
    int64_t wakes = 0;  // when it is continued, while it is stopped
};

void play_processes(const Scenario &s, double seconds) {
    const std::vector<uint64_t> leaves = {8, 8, kFiller};
    const uint64_t length = Ring::bytes(leaves, s.batch, s.buffers, s.spares, true);
    const int fd = memfd_create("shared_stress", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(length)) != 0) forbidden("a memfd can be made");
    Ring *ring = new Ring(leaves, s.batch, s.buffers, s.spares, fd);
    Reaper reaper = reaper_of(ring, length, leaves, kTimeout);
    auto *acknowledged = static_cast<std::atomic<uint64_t> *>(
        mmap(nullptr, kMakers * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    Learner learner{*ring, {}};
    std::vector<Worker> workers;
    uint64_t makers = 0, kills = 0, stops = 0, moved = 0;
    Random random{uint64_t(now_ns()) | 1};
    const auto spawn = [&] {
        const uint64_t maker = makers++;
        const uint32_t id = reaper.enlist();
        if (id == 0 || maker >= kMakers) forbidden("a record is free again when its writer is gone");
        const pid_t parent = getpid(), pid = fork();
        if (pid == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) std::_Exit(0);
            Remote remote(fd, length, leaves);
            write_for_ever(remote, id, maker, s.run, acknowledged[maker], nullptr, s.stop_in_us ? 300'000 : 30'000, s.stop_in_us ? 2 : 8);
            std::_Exit(0);
        }
        workers.push_back({pid, id, maker});
    };
    const auto bury = [&](size_t i) {
        kill(workers[i].pid, SIGKILL);
        waitpid(workers[i].pid, nullptr, 0);
        reaper.reap(workers[i].id);
        workers.erase(workers.begin() + long(i));
    };
    const int64_t end = now_ns() + int64_t(seconds * 1e9);
    int64_t moved_at = now_ns(), next_kill = now_ns(), next_stop = now_ns(), next_tick = 0;
    for (int64_t now = now_ns(); now < end; now = now_ns()) {
        while (int(workers.size()) < s.writers) spawn();
        if (learner.take(200'000)) moved_at = now_ns();
        now = now_ns();
        if (now - moved_at > 10'000'000'000) forbidden("the learner never stops (no batch for 10 s)", kills, stops, makers);
        if (s.kill_in_us && now >= next_kill) {
            next_kill = now + int64_t(random() % uint64_t(s.kill_in_us * 2)) * 1000;
            const size_t which = random() % workers.size();
            if (acknowledged[workers[which].maker].load() != 0 || random() % 8 == 0) {  // most have begun
                bury(which);
                ++kills;
            }
        }
        if (s.stop_in_us && now >= next_stop) {
            next_stop = now + int64_t(random() % uint64_t(s.stop_in_us * 2)) * 1000;
            Worker &one = workers[random() % workers.size()];
            if (!one.wakes) {
                kill(one.pid, SIGSTOP);
                one.wakes = now + int64_t(random() % uint64_t(3 * kTimeout));
                ++stops;
            }
        }
        for (Worker &one : workers)
            if (one.wakes && now >= one.wakes) kill(one.pid, SIGCONT), one.wakes = 0;
        if (now >= next_tick) {
            int stuck;
            moved += uint64_t(reaper.tick(&stuck));
            next_tick = now + 2'000'000;
        }
    }
    while (!workers.empty()) bury(workers.size() - 1);
    while (learner.take(1'000'000)) {}
    learner.check(acknowledged, makers, s.run);
    const uint32_t waiters = ring->writers_waiting();
    std::printf("%-34s %12llu samples %8llu killed %6llu stopped %6llu moved %6llu aborted, %u waiters left\n", s.name,
                (unsigned long long)learner.samples, (unsigned long long)kills, (unsigned long long)stops, (unsigned long long)moved,
                (unsigned long long)ring->counters().aborted, waiters);
    std::fflush(stdout);
    munmap(acknowledged, kMakers * 8);
    ring->release();
    close(fd);
}

void play_threads(const Scenario &s, double seconds) {
    const std::vector<uint64_t> leaves = {8, 8, kFiller};
    const uint64_t length = Ring::bytes(leaves, s.batch, s.buffers, s.spares, true);
    const int fd = memfd_create("shared_stress", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, off_t(length)) != 0) forbidden("a memfd can be made");
    Ring *ring = new Ring(leaves, s.batch, s.buffers, s.spares, fd);
    Reaper reaper = reaper_of(ring, length, leaves, 1'000'000);  // short, so that live writers lose claims
    std::vector<std::atomic<uint64_t>> acknowledged(size_t(s.writers + s.local));
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int w = 0; w < s.writers; ++w)
        threads.emplace_back([&, w, id = reaper.enlist()] {
            Remote remote(ring->base(), length, leaves);
            write_for_ever(remote, id, uint64_t(w), s.run, acknowledged[size_t(w)], &stop, 4'000'000, 256);
        });
    for (int w = s.writers; w < s.writers + s.local; ++w)
        threads.emplace_back([&, w] {
            Random random{uint64_t(w) + 99};
            uint64_t number = 1;
            while (!stop.load(std::memory_order_relaxed)) {
                echo_run run;
                const int status = ring->claim(1 + uint32_t(random() % s.run), &run);
                if (status == ECHO_CLOSED) return;
                if (status == ECHO_FULL) {
                    ring->wait_space(1'000'000'000);
                } else if (random() % 16 == 0) {
                    ring->abort(run);
                } else {
                    write_samples(*ring, run, uint64_t(w), number);
                    number += run.count;
                    ring->commit(run);
                    acknowledged[size_t(w)].store(number - 1);
                }
            }
        });
    std::thread keeper([&] {
        int stuck;
        while (!stop.load(std::memory_order_relaxed)) {
            reaper.tick(&stuck);
            std::this_thread::sleep_for(std::chrono::microseconds(300));
        }
    });
    Learner learner{*ring, {}};
    const int64_t end = now_ns() + int64_t(seconds * 1e9);
    int64_t moved_at = now_ns();
    while (now_ns() < end) {
        if (learner.take(20'000'000)) moved_at = now_ns();
        if (now_ns() - moved_at > 10'000'000'000) forbidden("no wake-up is lost (nothing moved for 10 s)");
    }
    stop.store(true);
    ring->close();
    for (std::thread &thread : threads) thread.join();
    keeper.join();
    while (learner.take(0)) {}
    learner.check(acknowledged.data(), acknowledged.size(), s.run);
    uint64_t revoked = 0;
    for (uint32_t id = 1; id <= uint32_t(s.writers); ++id) revoked += reaper.revoked(id);
    std::printf("%-34s %12llu samples %8llu revoked %8llu aborted\n", s.name, (unsigned long long)learner.samples, (unsigned long long)revoked,
                (unsigned long long)ring->counters().aborted);
    std::fflush(stdout);
    ring->release();
    close(fd);
}

}  // namespace

int main(int argc, char **argv) {
    const bool processes = argc > 1 && std::strcmp(argv[1], "processes") == 0;
    const double seconds = argc > 2 ? std::atof(argv[2]) : 2.0;
    if (processes) {
        const Scenario scenarios[] = {
            {"kills, batch of one", 3, 0, 1, 200, 1, 1, 300, 0},
            {"kills, batches of 32", 3, 0, 32, 30, 1, 1, 300, 0},
            {"kills, runs across batches", 4, 0, 16, 3, 1, 40, 300, 0},
            {"stops, batch of one", 3, 0, 1, 4, 2, 1, 0, 2000},
            {"stops, runs", 3, 0, 16, 3, 2, 7, 0, 2000},
            {"kills and stops", 4, 0, 8, 16, 3, 5, 500, 2000},
        };
        for (const Scenario &s : scenarios) play_processes(s, seconds);
    } else {
        const Scenario scenarios[] = {
            {"threads, batch of one", 3, 0, 1, 3, 1, 1, 0, 0},
            {"threads, batches of 32", 3, 0, 32, 3, 1, 1, 0, 0},
            {"threads beside local writers", 2, 2, 16, 3, 2, 7, 0, 0},
            {"threads, runs across batches", 3, 1, 8, 3, 2, 20, 0, 0},
        };
        for (const Scenario &s : scenarios) play_threads(s, seconds);
    }
    std::puts("no forbidden outcome");
    return 0;
}
