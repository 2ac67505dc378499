// Memory-model claims of ring.hpp as a program: writers that commit, abort and stall, learners that hold leases and release them
// out of order. Run plain, under ThreadSanitizer and under AddressSanitizer. Each FORBIDDEN outcome names the claim it breaks.
//
//   ring_stress [seconds per scenario]
#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <vector>

#include "../../echo_core/src/echo_core/store/stream/ring.hpp"
#define ECHO_TAP_PAUSE() std::this_thread::sleep_for(std::chrono::microseconds(20))
#include "../../echo_core/src/echo_core/store/stream/tap.hpp"

#include <sys/eventfd.h>

using echo::Ring;
using echo::now_ns;

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::_Exit(1);
}

struct Scenario {
    const char *name;
    int writers, learners;
    uint64_t batch, buffers;
    uint32_t run;        // samples a writer asks for at once
    unsigned abort_in;   // one claim in so many is aborted; 0: none
    size_t hold;         // leases a learner holds before it gives the oldest back
    bool eventfd;        // writers sleep on an armed eventfd instead of in wait_space
    bool polls = false;  // learners never sleep: they look while writers commit
    bool tapped = false; // somebody looks at the newest samples all the time
};

// A sample is three leaves: its number, its writer, and a filler whose every byte repeats the number.
constexpr uint64_t kFiller = 96;

void write_sample(Ring &ring, const echo_run &run, uint32_t i, uint64_t writer, uint64_t number, bool tapped) {
    if (tapped) {  // what is copied may be written meanwhile: ThreadSanitizer must know that the copy then counts for nothing
        char filler[kFiller];
        std::memset(filler, int((number * 31 + writer) & 0xff), kFiller);
        echo::copy_racing_out(ring.leaf(run, 0) + i * 8, reinterpret_cast<const char *>(&number), 8);
        echo::copy_racing_out(ring.leaf(run, 1) + i * 8, reinterpret_cast<const char *>(&writer), 8);
        echo::copy_racing_out(ring.leaf(run, 2) + i * kFiller, filler, kFiller);
        return;
    }
    std::memcpy(ring.leaf(run, 0) + i * 8, &number, 8);
    std::memcpy(ring.leaf(run, 1) + i * 8, &writer, 8);
    std::memset(ring.leaf(run, 2) + i * kFiller, int((number * 31 + writer) & 0xff), kFiller);
}

// Looks at the newest samples until told to stop, and counts what it has seen.
void look(const Ring &ring, const Scenario &s, const std::atomic<bool> &stop, std::atomic<uint64_t> &seen) {
    constexpr uint64_t kMost = 40;
    std::vector<uint64_t> numbers(kMost), writers(kMost);
    std::vector<char> filler(kMost * kFiller);
    char *const to[] = {reinterpret_cast<char *>(numbers.data()), reinterpret_cast<char *>(writers.data()), filler.data()};
    while (!stop.load(std::memory_order_relaxed)) {
        const uint64_t n = echo::Tap::newest(ring, kMost, to);
        for (uint64_t i = kMost - n; i < kMost; ++i) {
            if (writers[i] >= uint64_t(s.writers) || numbers[i] == 0) forbidden("a look shows no aborted and no unwritten sample");
            const char want = char((numbers[i] * 31 + writers[i]) & 0xff);
            for (uint64_t k = 0; k < kFiller; ++k)
                if (filler[i * kFiller + k] != want) forbidden("a look shows whole samples");
        }
        seen.fetch_add(n);
    }
}

void play(const Scenario &s, double seconds) {
    Ring *ring = new Ring({8, 8, kFiller}, s.batch, s.buffers);
    std::atomic<uint64_t> committed{0}, taken{0}, batches{0};
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int w = 0; w < s.writers; ++w)
        threads.emplace_back([&, w] {
            ring->retain();
            const int fd = s.eventfd ? ::eventfd(0, 0) : -1;
            uint64_t number = 1, random = 88172645463325252ull + uint64_t(w);
            while (!stop.load(std::memory_order_relaxed)) {
                random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                echo_run run;
                const int status = ring->claim(1 + uint32_t(random % s.run), &run);
                if (status == ECHO_CLOSED) break;
                if (status == ECHO_FULL) {
                    if (fd < 0) {
                        ring->wait_space(-1);  // a lost wake-up hangs here, and the watchdog says so
                    } else if (ring->arm_space(fd) == ECHO_OK) {
                        uint64_t count;
                        if (read(fd, &count, 8) != 8) forbidden("an armed eventfd is written");
                    }
                    continue;
                }
                if (run.slot + run.count > s.batch) forbidden("a run stays inside its batch");
                if (s.abort_in && random % s.abort_in == 0) {
                    for (uint32_t i = 0; i < run.count; ++i) write_sample(*ring, run, i, 999, 0, s.tapped);  // half-written rubbish
                    ring->abort(run);
                    continue;
                }
                if (s.tapped && random % 8 == 0) std::this_thread::yield();  // others commit behind it
                for (uint32_t i = 0; i < run.count; ++i) write_sample(*ring, run, i, uint64_t(w), number + i, s.tapped);
                number += run.count;
                committed.fetch_add(run.count, std::memory_order_relaxed);
                if (run.count > 1 && random % 3 == 0) {  // a run may be split
                    echo_run tail = run;
                    tail.slot += 1, tail.count -= 1, run.count = 1;
                    ring->commit(tail);
                }
                ring->commit(run);
            }
            if (fd >= 0) {
                ring->disarm_space(fd);
                close(fd);
            }
            ring->release();
        });
    std::atomic<uint64_t> looked_at{0};
    if (s.tapped) threads.emplace_back([&] { look(*ring, s, stop, looked_at); });
    std::mutex seen_lock;
    std::vector<std::vector<bool>> seen(size_t(s.writers));
    for (int l = 0; l < s.learners; ++l)
        threads.emplace_back([&, l] {
            ring->retain();
            std::deque<std::pair<int, std::vector<char>>> held;
            std::vector<uint64_t> last(size_t(s.writers), 0);
            uint64_t random = 1 + uint64_t(l);
            for (;;) {
                const bool closing = ring->closed();
                const int b = ring->take();
                if (b < 0) {
                    if (closing) break;
                    if (!held.empty() && ring->leased() == s.buffers) {
                        ring->give_back(held.front().first), held.pop_front();
                        continue;
                    }
                    if (!s.polls) ring->wait_ready(held.empty() ? -1 : 1'000'000);
                    continue;
                }
                const char *numbers = ring->batch_leaf(b, 0), *writers = ring->batch_leaf(b, 1), *filler = ring->batch_leaf(b, 2);
                {
                    std::lock_guard<std::mutex> lock(seen_lock);
                    for (uint64_t i = 0; i < s.batch; ++i) {
                        uint64_t number, writer;
                        std::memcpy(&number, numbers + i * 8, 8);
                        std::memcpy(&writer, writers + i * 8, 8);
                        if (writer >= uint64_t(s.writers) || number == 0) forbidden("an aborted sample is never seen");
                        const char want = char((number * 31 + writer) & 0xff);
                        for (uint64_t k = 0; k < kFiller; ++k)
                            if (filler[i * kFiller + k] != want) forbidden("a sample is seen whole (torn sample)");
                        auto &mine = seen[writer];
                        if (mine.size() <= number) mine.resize(number + 1 + mine.size());
                        if (mine[number]) forbidden("a sample is seen once (doubled)");
                        mine[number] = true;
                        // Larger batches may overtake one that waits for a stalled writer.
                        if (s.batch == 1 && s.learners == 1 && number <= last[writer]) forbidden("batches come in the order of completion");
                        last[writer] = number;
                    }
                }
                taken.fetch_add(s.batch, std::memory_order_relaxed);
                batches.fetch_add(1, std::memory_order_relaxed);
                held.emplace_back(b, std::vector<char>(filler, filler + s.batch * kFiller));
                while (held.size() > s.hold) {
                    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                    const size_t which = random % held.size();  // in any order
                    if (std::memcmp(ring->batch_leaf(held[which].first, 2), held[which].second.data(), held[which].second.size()) != 0)
                        forbidden("a leased batch does not change");
                    if (s.tapped)  // a learner may write into its batch: no look may show that
                        for (uint64_t i = 0; i < s.batch * 8; ++i) echo::copy_racing_out(ring->batch_leaf(held[which].first, 0) + i, "\0", 1);
                    ring->give_back(held[which].first);
                    held.erase(held.begin() + long(which));
                }
            }
            for (auto &lease : held) ring->give_back(lease.first);
            ring->release();
        });
    // The watchdog: progress within ten seconds, else a wake-up was lost.
    const int64_t end = now_ns() + int64_t(seconds * 1e9);
    uint64_t before = 0;
    int64_t moved = now_ns();
    const auto unseen = [&] { return s.tapped && looked_at.load() == 0; };  // on a busy machine, the thread that looks may not have run yet
    while (now_ns() < end || (unseen() && now_ns() < end + 60'000'000'000)) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        const uint64_t now = batches.load();
        if (now != before) before = now, moved = now_ns();
        if (now_ns() - moved > 10'000'000'000) forbidden("no wake-up is lost (nothing moved for 10 s)");
    }
    stop.store(true);
    ring->close();
    for (auto &t : threads) t.join();
    const auto counters = ring->counters();
    if (s.writers == 1 && s.learners == 1 && counters.batches_out_of_order != 0) forbidden("batches of one writer leave in order, and none is counted");
    if (unseen()) forbidden("a look shows what is there");
    if (counters.inserted != committed.load()) forbidden("samples_inserted_total counts every commit");
    if (committed.load() - taken.load() != counters.stored) forbidden("what was committed was taken or is still stored");
    std::printf("%-28s %12llu samples %10llu batches %8llu aborted %8llu wake-ups\n", s.name, (unsigned long long)committed.load(),
                (unsigned long long)batches.load(), (unsigned long long)counters.aborted, (unsigned long long)counters.notified);
    std::fflush(stdout);
    ring->release();
}

}  // namespace

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 2.0;
    const Scenario scenarios[] = {
        {"batch of one", 2, 1, 1, 3, 1, 0, 0, false},
        {"batch of one, four writers", 4, 1, 1, 2, 1, 0, 0, false},
        {"batch of one, two learners", 2, 2, 1, 4, 1, 5, 1, false},
        {"batch of one, polling learner", 1, 1, 1, 3, 1, 0, 0, false, true},
        {"batch of one, one writer", 1, 1, 1, 16, 1, 0, 0, false},
        {"batches of 32", 2, 1, 32, 3, 1, 0, 1, false},
        {"runs and aborts", 3, 1, 32, 3, 7, 4, 1, false},
        {"runs across batches", 2, 2, 16, 5, 40, 9, 2, false},
        {"learner hoards", 2, 1, 8, 3, 3, 0, 3, false},
        {"writers on eventfds", 3, 1, 16, 2, 5, 6, 0, true},
        {"looked at", 2, 1, 8, 3, 3, 5, 1, false, false, true},
    };
    for (const Scenario &s : scenarios) play(s, seconds);
    std::puts("no forbidden outcome");
    return 0;
}
