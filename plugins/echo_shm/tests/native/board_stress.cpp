// A learner writes versions without a break; readers copy them without a break and check every word of their copy.
//
//   board_stress [seconds per scenario]
//
// Forbidden: a version whose bytes are not those of one version; a version older than one that was announced to the reader or that it had before;
// numbers that no learner writes; no readable version after the learner was killed while it wrote.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <thread>
#include <vector>

#include "../../src/echo_shm/board.hpp"

using namespace echo_shm;

static double now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}

[[noreturn]] static void forbidden(const char *what, uint64_t a = 0, uint64_t b = 0) {
    printf("FORBIDDEN: %s (%llu, %llu)\n", what, static_cast<unsigned long long>(a), static_cast<unsigned long long>(b));
    fflush(stdout);
    _exit(1);
}

// ThreadSanitizer watches one process only.
#if defined(__SANITIZE_THREAD__)
constexpr bool kProcesses = false;
#else
constexpr bool kProcesses = true;
#endif

using Told = std::atomic<uint64_t>;  // the version that was announced to readers

static uint64_t size_of(uint64_t version, uint64_t most) { return most / 64 * 64 - version % 5 * 64; }  // sizes differ a little

static void learner(char *memory, uint64_t length, uint64_t most, Told *told, double end) {
    Board board(memory, length);
    std::vector<uint64_t> source(most / 8);
    const auto *head = reinterpret_cast<const BoardHead *>(memory);
    while (now() < end) {
        const uint64_t newest = head->newest.load(), version = head->places[newest].version.load() + 1, size = size_of(version, most);
        source.assign(most / 8, version);
        const uint32_t place = uint32_t((newest + 1) % kPlaces);
        board.begin(place);
        char *to = memory + board.start(place);
        copy_out(to, reinterpret_cast<const char *>(source.data()), size);  // as weights are packed: large ones past the caches
        copy_out(to + Board::up(size), reinterpret_cast<const char *>(&version), sizeof version);
        board.finish(place, {version, ~version, size, sizeof version});
        told->store(version);
    }
}

// Returns how many versions were read: `wanted`, or fewer if the time is over.
static uint64_t reader(char *memory, uint64_t length, uint64_t most, const Told *told, double end, uint64_t wanted) {
    const Board board(memory, length);
    char *payload = static_cast<char *>(aligned_alloc(64, (most + 63) / 64 * 64));
    uint64_t last = 0, count = 0;
    while (now() < end && count < wanted) {
        const uint64_t least = told->load();
        Found found = {};
        const Board::Outcome outcome = board.look(&found);
        if (outcome == Board::kForeign) forbidden("numbers that no learner writes", found.payload, found.meta);
        if (outcome == Board::kAgain || found.version == 0) continue;
        if (found.version < least) forbidden("older than what was told of", found.version, least);
        if (found.version < last) forbidden("older than the one before", found.version, last);
        uint64_t meta;
        if (found.meta != sizeof meta) forbidden("a description of another size", found.meta);
        if (!board.copy(found, payload, reinterpret_cast<char *>(&meta))) continue;
        if (meta != found.version) forbidden("torn: the description of another version", meta, found.version);
        if (found.payload != size_of(found.version, most)) forbidden("torn: the size of another version", found.payload, found.version);
        if (found.digest != ~found.version) forbidden("torn: the digest of another version", found.version);
        const auto *words = reinterpret_cast<const uint64_t *>(payload);
        for (uint64_t i = 0; i < found.payload / 8; ++i)
            if (words[i] != found.version) forbidden("torn: a word of another version", found.version, words[i]);
        last = found.version, ++count;
    }
    free(payload);
    return count;
}

static void free_running(uint64_t most, double seconds, char *memory, uint64_t length) {
    Told told{0};
    std::atomic<uint64_t> read{0};
    const double patience = now() + 60;
    do {  // again if the readers have not run beside the learner, which happens on a busy machine
        const double end = now() + seconds;
        std::thread writer(learner, memory, length, most, &told, end);
        std::vector<std::thread> readers;
        for (int i = 0; i < 3; ++i) readers.emplace_back([&] { read += reader(memory, length, most, &told, end, UINT64_MAX); });
        writer.join();
        for (auto &thread : readers) thread.join();
    } while (read.load() == 0 && now() < patience);
    printf("free-running, %llu bytes: %llu versions, %llu read\n", static_cast<unsigned long long>(most), static_cast<unsigned long long>(told.load()),
           static_cast<unsigned long long>(read.load()));
    if (read.load() == 0) forbidden("nobody could read");
}

// Learners that are killed at any moment. Each successor goes on in the same memory, so there are many moments for a kill.
static void killed(uint64_t most, double seconds, char *memory, uint64_t length, Told *told) {
    uint64_t kills = 0, begun = 0;
    for (const double end = now() + seconds; now() < end; ++kills) {
        const pid_t child = fork();
        if (child == 0) learner(memory, length, most, told, now() + 60), _exit(0);
        usleep(useconds_t(2000 + rand() % 20000));
        kill(child, SIGKILL);
        waitpid(child, nullptr, 0);
        const uint64_t least = told->load();
        for (int i = 0; i < int(kPlaces); ++i) begun += reinterpret_cast<BoardHead *>(memory)->places[i].turn.load() % 2;
        if (least != 0 && reader(memory, length, most, told, now() + 30, 1) == 0) forbidden("nothing to read of a killed learner", least);
    }
    printf("killed: %llu learners, %llu of them while they wrote, %llu versions\n", static_cast<unsigned long long>(kills),
           static_cast<unsigned long long>(begun), static_cast<unsigned long long>(told->load()));
}

int main(int count, char **word) {
    const double seconds = count > 1 ? atof(word[1]) : 1.0;
    for (const uint64_t most : {uint64_t(4096), uint64_t(100'000), uint64_t(3 << 20)}) {
        const uint64_t length = kBoardPage + kPlaces * (Board::up(most) + kBoardPage);
        const auto shared = [](uint64_t size) {
            void *memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
            if (memory == MAP_FAILED) perror("mmap"), exit(2);
            return static_cast<char *>(memory);
        };
        char *memory = shared(length);
        free_running(most, seconds, memory, length);
        munmap(memory, length);
        if (!kProcesses) continue;
        memory = shared(length);
        char *words = shared(4096);
        killed(most, seconds, memory, length, new (words) Told{0});
        munmap(words, 4096);
        munmap(memory, length);
    }
    printf("no forbidden outcome\n");
    return 0;
}
