// Tests the claims of lane.hpp: workers put samples one by one and in runs, threads wait until their samples are copied, and learners
// catch up, end in the middle, and meet a worker that writes impossible numbers. Run it plain, under ThreadSanitizer and under
// AddressSanitizer. Each FORBIDDEN outcome names the claim it breaks.
//
//   lane_stress [seconds per scenario]
//
// Two things differ from real processes. Both ends map a lane at the same address, because ThreadSanitizer follows addresses and not
// memory. And no long sleep ends by itself: otherwise a lost wake-up would only cost a quarter of a second, and the test would not notice it.
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "echo_huge_pages.h"

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::_Exit(1);
}

struct Mapping {
    int fd, ends;
};
std::mutex mappings_lock;
std::map<void *, Mapping> mappings;

int unmap_last(void *address, size_t length) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    if (--mappings.at(address).ends) return 0;
    mappings.erase(address);
    return ::munmap(address, length);
}

long sleep_till_woken(long number, uint32_t *word, int what, uint32_t value, const timespec *limit, void *, int) {
    constexpr long kLong = 100'000'000;
    const timespec ages = {30, 0};
    const bool sleeps = what == FUTEX_WAIT && (limit->tv_sec > 0 || limit->tv_nsec >= kLong);
    const long answer = ::syscall(number, word, what, value, sleeps ? &ages : limit, nullptr, 0);
    if (sleeps && answer != 0 && errno == ETIMEDOUT) forbidden("no wake-up is lost (30 s of sleep)");
    return answer;
}

}  // namespace

namespace echo {

static void *map_once(size_t length, int protection, int flags, int fd) {
    std::lock_guard<std::mutex> lock(mappings_lock);
    for (auto &[address, mapping] : mappings)
        if (mapping.fd == fd) return ++mapping.ends, address;
    void *address = map_aligned(length, protection, flags, fd);
    if (address != MAP_FAILED) mappings[address] = {fd, 1};
    return address;
}

}  // namespace echo

#include "store/door/capi_table.hpp"
#include "store/stream/ring.hpp"

#define map_aligned map_once
#define munmap unmap_last
#define syscall sleep_till_woken
#include "../../src/echo_shm/lane.hpp"
#undef map_aligned
#undef munmap
#undef syscall

using echo_shm::LaneReader;
using echo_shm::LaneWords;
using echo_shm::LaneWriter;

namespace {

struct Scenario {
    const char *name;
    unsigned lanes;
    uint64_t rows;           // rows of a lane
    uint64_t batch, buffers; // of the store
    unsigned run;            // most samples that a worker puts at once
    unsigned pause_in;       // after one put in so many, a worker pauses until all its samples are copied and the learner sleeps; 0: never
    bool flushed;            // another thread of the worker waits for its samples
    bool caught_up;          // a thread of the learner catches up with the lane
    bool cut;                // the lane ends while its worker sends, and the store is full: the rest is still in the lane
};

constexpr uint64_t kFiller = 96;
constexpr int64_t kAges = 60'000'000'000;
const std::vector<uint64_t> kLeaves = {8, 8, kFiller};

char fill_of(uint64_t lane, uint64_t number) { return char((number * 31 + lane) & 0xff); }

struct Samples {
    std::vector<uint64_t> numbers, lanes;
    std::vector<char> filler;

    Samples(uint64_t lane, uint64_t first, uint64_t n) : numbers(n), lanes(n, lane), filler(n * kFiller) {
        for (uint64_t i = 0; i < n; ++i) numbers[i] = first + i, std::memset(&filler[i * kFiller], fill_of(lane, first + i), kFiller);
    }
};

class Lane {
public:
    Lane(unsigned index, const Scenario &s, echo::Door *door)
        : index(index), scenario(s), fd_(memory(s.rows)), reader(fd_, kLeaves, s.rows, echo::capi_table(), reinterpret_cast<echo_store *>(door)),
          writer(fd_, kLeaves, s.rows) {
        copier_ = std::thread([this] { outcome = reader.run(); });
        threads_.emplace_back([this] { put(); });
        if (s.flushed) threads_.emplace_back([this] { flush(); });
        if (s.caught_up) threads_.emplace_back([this] { catch_up(); });
    }
    ~Lane() { close(fd_); }

    void stop() { stop_ = true; }
    void join_worker() {
        for (std::thread &thread : threads_) thread.join();
    }
    void join_learner() { copier_.join(); }

    const unsigned index;
    const Scenario &scenario;

private:
    const int fd_;

public:
    LaneReader reader;
    LaneWriter writer;
    LaneReader::Outcome outcome = LaneReader::kBroken;

private:
    static int memory(uint64_t rows) {
        const int fd = memfd_create("lane", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, off_t(LaneReader::bytes(kLeaves, rows))) != 0) std::perror("memfd"), std::_Exit(2);
        return fd;
    }
    void put() {
        uint64_t random = 88172645463325252ull + index, number = 0;
        while (!stop_) {
            random ^= random << 13, random ^= random >> 7, random ^= random << 17;
            const uint64_t n = 1 + random % scenario.run;
            const Samples samples(index, number, n);
            const void *const leaves[] = {samples.numbers.data(), samples.lanes.data(), samples.filler.data()};
            uint64_t done = 0;
            while (writer.put(leaves, n, &done) == ECHO_FULL) {
                if (stop_ && scenario.cut) return;
                if (!writer.wait_room(scenario.cut ? 1'000'000 : kAges) && !scenario.cut) forbidden("there is room once the learner has copied");
            }
            number += n;
            if (scenario.pause_in && random % scenario.pause_in == 0) {
                if (random & 4) {  // without a call: the learner only has the wake-up of the last put
                    while (writer.under_way()) std::this_thread::yield();
                } else if (!writer.wait_copied(number, kAges)) {
                    forbidden("what is whole is copied");
                }
                std::this_thread::sleep_for(std::chrono::microseconds(random % 2 ? 20 : 400));  // shorter and longer than its naps
            }
        }
    }
    void flush() {
        while (!stop_) {
            const uint64_t target = writer.written();
            if (!writer.wait_copied(target, kAges)) forbidden("what is whole is copied");
            if (reader.copied() < target) forbidden("a wait ends when all is copied");
            std::this_thread::yield();
        }
    }
    void catch_up() {
        while (!stop_) {
            const uint64_t target = writer.written();
            if (!reader.catch_up(kAges)) forbidden("a learner catches up");
            if (reader.copied() < target) forbidden("catching up leaves nothing that was whole");
        }
    }

    std::atomic<bool> stop_{false};
    std::thread copier_;
    std::vector<std::thread> threads_;
};

// Checks the learner's store: every sample must be whole and come once.
class Taker {
public:
    Taker(echo::Ring *ring, const Scenario &s) : ring_(ring), scenario_(s), seen(s.lanes), counts(s.lanes) {
        thread_ = std::thread([this] {
            while (!over_) {
                ring_->wait_ready(20'000'000);
                if (!paused) take();
            }
            take();
        });
    }
    void end() {
        over_ = true;
        thread_.join();
    }

    std::atomic<bool> paused{false};

private:
    void take() {
        for (int b; (b = ring_->take()) >= 0; ring_->give_back(b)) {
            for (uint64_t i = 0; i < scenario_.batch; ++i) {
                uint64_t number, lane;
                std::memcpy(&number, ring_->batch_leaf(b, 0) + i * 8, 8);
                std::memcpy(&lane, ring_->batch_leaf(b, 1) + i * 8, 8);
                if (lane >= scenario_.lanes) forbidden("a sample is whole");
                for (uint64_t k = 0; k < kFiller; ++k)
                    if (ring_->batch_leaf(b, 2)[i * kFiller + k] != fill_of(lane, number)) forbidden("a sample is whole");
                if (seen[lane].size() <= number) seen[lane].resize(2 * number + 64);
                if (seen[lane][number]) forbidden("a sample comes once");
                seen[lane][number] = true, ++counts[lane];
            }
        }
    }

    echo::Ring *const ring_;
    const Scenario &scenario_;
    std::atomic<bool> over_{false};
    std::thread thread_;

public:
    std::vector<std::vector<bool>> seen;
    std::vector<uint64_t> counts;
};

void play(const Scenario &s, double seconds) {
    echo::Ring *ring = new echo::Ring(kLeaves, s.batch, s.buffers);
    echo::Door *door = echo::open_door(ring);
    uint64_t copied = 0, rest = 0;
    {
        Taker taker(ring, s);
        std::vector<std::unique_ptr<Lane>> lanes;
        for (unsigned i = 0; i < s.lanes; ++i) lanes.push_back(std::make_unique<Lane>(i, s, door));
        std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
        // On a busy machine, not all threads have run yet.
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        for (auto &lane : lanes)
            while (lane->reader.copied() == 0) {
                if (std::chrono::steady_clock::now() > end) forbidden("everybody gets on");
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
        if (s.cut) {
            taker.paused = true;
            for (auto &lane : lanes) lane->reader.finish();
            for (auto &lane : lanes) lane->join_learner();
        }
        for (auto &lane : lanes) lane->stop();
        for (auto &lane : lanes) lane->join_worker();
        for (auto &lane : lanes) {
            const uint64_t written = lane->writer.written();
            if (!s.cut) {
                lane->reader.finish();
                lane->join_learner();
            }
            if (lane->outcome != LaneReader::kEnded) forbidden("a worker that keeps to the rules is believed");
            const uint64_t left = lane->writer.under_way();
            std::vector<char> bytes(s.rows * (16 + kFiller));
            lane->writer.copy_rest(bytes.data(), left);
            if (lane->reader.copied() + left != written || lane->writer.under_way() != left) forbidden("what is not copied is the rest");
            const Samples wanted(lane->index, lane->reader.copied(), left);
            if (left && (std::memcmp(&bytes[0], wanted.numbers.data(), left * 8) || std::memcmp(&bytes[left * 8], wanted.lanes.data(), left * 8) ||
                         std::memcmp(&bytes[left * 16], wanted.filler.data(), left * kFiller)))
                forbidden("the rest is what was not copied, in order");
            copied += lane->reader.copied(), rest += left;
        }
        taker.paused = false;
        taker.end();
        uint64_t taken = 0;
        for (uint64_t count : taker.counts) taken += count;
        if (taken + ring->counters().stored != copied) forbidden("what was copied is in the store, or was");
    }
    std::printf("%-34s %9llu copied %6llu left in the lane\n", s.name, (unsigned long long)copied, (unsigned long long)rest);
    ring->close();
    door->release();
    ring->release();
}

// A worker may write any number into `written` of its lane. An impossible one ends the lane, and nothing is copied for it.
void lie() {
    const Scenario s = {"lies", 1, 8, 4, 2, 1, 1, false, false, false};
    for (const uint64_t lie : {s.rows + 1, uint64_t(1) << 40, UINT64_MAX, UINT64_MAX - s.rows}) {
        echo::Ring *ring = new echo::Ring(kLeaves, s.batch, s.buffers);
        echo::Door *door = echo::open_door(ring);
        const int fd = memfd_create("lane", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, off_t(LaneReader::bytes(kLeaves, s.rows))) != 0) std::perror("memfd"), std::_Exit(2);
        {
            LaneReader reader(fd, kLeaves, s.rows, echo::capi_table(), reinterpret_cast<echo_store *>(door));
            void *words = echo::map_once(LaneReader::bytes(kLeaves, s.rows), PROT_READ | PROT_WRITE, MAP_SHARED, fd);
            std::thread vandal([&] {
                static_cast<LaneWords *>(words)->written.store(lie);
                static_cast<LaneWords *>(words)->wake_at.store(lie);
                reader.finish();
            });
            const LaneReader::Outcome outcome = reader.run();
            vandal.join();
            if (outcome != LaneReader::kBroken || reader.copied() || ring->counters().inserted) forbidden("what cannot be is not believed");
            unmap_last(words, LaneReader::bytes(kLeaves, s.rows));
        }
        close(fd);
        ring->close();
        door->release();
        ring->release();
    }
}

}  // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    const Scenario scenarios[] = {
        {"one by one", 2, 64, 16, 3, 1, 0, false, false, false},
        {"runs larger than the lane", 2, 7, 32, 3, 40, 0, false, false, false},
        {"a lane of one row", 1, 1, 1, 3, 3, 5, false, false, false},
        {"stop and go", 2, 256, 1, 8, 9, 2, false, false, false},
        {"flushed and caught up", 2, 100, 1, 64, 30, 7, true, true, false},
        {"cut, into a full store", 2, 50, 16, 2, 20, 0, false, false, true},
    };
    for (const Scenario &s : scenarios) play(s, seconds);
    lie();
    std::puts("no forbidden outcome");
}
