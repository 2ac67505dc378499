// What the machine itself can do of what shared memory asks of it, without any Echo: see copies.py.
//
//   copies copy COPIERS BYTES POOL RING PAGES HOW SECONDS   copiers that copy pieces of BYTES, POOL different ones each, into one ring of RING pieces;
//       PAGES 4k: processes and a memfd; 2m: threads and private memory, which gets large pages where shared memory does not. HOW plain (memcpy) or
//       stream (stores past the caches). Prints bytes per second, and per second of CPU time.
//   copies wake BYTES POOL RING PIECES SECONDS                 one process that copies, and wakes another, which sleeps in a futex, after every PIECES.
//       Prints the CPU time in seconds that a wake-up takes of the one who slept.
//   copies publish BYTES SLOTS HOW SECONDS   one process that copies BYTES into the next of SLOTS after pauses of 1 to 3 ms, and another, which sleeps in a
//       futex, and copies them out. Prints medians in seconds: of the copy in; from then until it is copied out; and p50, p90, p99 from beginning to end.
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string>
#include <thread>
#include <vector>

static double seconds_of(clockid_t clock) {
    timespec t;
    clock_gettime(clock, &t);
    return double(t.tv_sec) + double(t.tv_nsec) * 1e-9;
}
static double now() { return seconds_of(CLOCK_MONOTONIC); }

static void *must(void *memory) {
    if (memory == MAP_FAILED) perror("mmap"), exit(1);
    return memory;
}

static void stream(char *to, const char *from, size_t n) {
    const size_t head = -uintptr_t(to) & 15;
    memcpy(to, from, head < n ? head : n);
    if (head >= n) return;
    to += head, from += head, n -= head;
    for (; n >= 64; n -= 64, to += 64, from += 64)
        for (int i = 0; i < 64; i += 16)
            _mm_stream_si128(reinterpret_cast<__m128i *>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
    _mm_sfence();
    memcpy(to, from, n);
}

static char *mapped(int fd, size_t size) {
    char *memory = static_cast<char *>(must(mmap(nullptr, size, PROT_READ | PROT_WRITE, fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED, fd, 0)));
    madvise(memory, size, fd < 0 ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    for (size_t i = 0; i < size; i += 4096) static_cast<volatile char *>(memory)[i] = 1;
    return memory;
}

struct Shared {
    std::atomic<uint64_t> next{0}, bytes{0};
    alignas(64) std::atomic<uint32_t> turn{0};
    std::atomic<bool> over{false};
};

static char *pool_of(size_t bytes, size_t count) {
    char *pool = static_cast<char *>(malloc(bytes * count));
    for (size_t i = 0; i < bytes * count; ++i) pool[i] = char(i * 31);
    return pool;
}

static int copy(int copiers, size_t bytes, size_t pool, size_t ring, bool huge, bool past, double seconds, Shared *shared) {
    const size_t size = ((bytes * ring >> 21) + 1) << 21;
    const int fd = huge ? -1 : memfd_create("copies", 0);
    if (!huge && (fd < 0 || ftruncate(fd, off_t(size)) != 0)) return perror("memfd"), 1;
    char *common = mapped(fd, size);
    const auto run = [&] {
        char *to = huge ? common : mapped(fd, size);
        const char *from = pool_of(bytes, pool);
        uint64_t done = 0;
        for (const double end = now() + seconds; now() < end;)
            for (size_t i = 0; i < pool; ++i, done += bytes) {
                char *slot = to + shared->next.fetch_add(1) % ring * bytes;
                past ? stream(slot, from + i * bytes, bytes) : void(memcpy(slot, from + i * bytes, bytes));
            }
        shared->bytes.fetch_add(done);
    };
    rusage used;
    double own = 0;
    if (huge) {
        own = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        std::vector<std::thread> threads;
        for (int i = 0; i < copiers; ++i) threads.emplace_back(run);
        for (auto &thread : threads) thread.join();
        own = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - own;
    } else {
        for (int i = 0; i < copiers; ++i)
            if (fork() == 0) run(), _exit(0);
        while (wait(nullptr) > 0) {}
    }
    getrusage(RUSAGE_CHILDREN, &used);
    const double children = double(used.ru_utime.tv_sec + used.ru_stime.tv_sec) + double(used.ru_utime.tv_usec + used.ru_stime.tv_usec) * 1e-6;
    printf("%g %g\n", double(shared->bytes.load()) / seconds, double(shared->bytes.load()) / (huge ? own : children));
    return 0;
}

static int wake(size_t bytes, size_t pool, size_t ring, size_t pieces, double seconds, Shared *shared) {
    char *to = static_cast<char *>(must(mmap(nullptr, bytes * ring, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)));
    uint32_t *turn = reinterpret_cast<uint32_t *>(&shared->turn);
    if (fork() == 0) {
        const char *from = pool_of(bytes, pool);
        for (size_t done = 0; !shared->over.load(); shared->turn.fetch_add(1), syscall(SYS_futex, turn, FUTEX_WAKE, 1, nullptr, nullptr, 0))
            for (size_t i = 0; i < pieces; ++i, ++done) memcpy(to + done % ring * bytes, from + done % pool * bytes, bytes);
        _exit(0);
    }
    uint64_t wakes = 0;
    double used = 0;
    const double begin = now() + 0.2;
    for (uint32_t seen = shared->turn.load(); now() < begin + seconds;) {
        if (now() < begin) wakes = 0, used = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
        syscall(SYS_futex, turn, FUTEX_WAIT, seen, nullptr, nullptr, 0);
        const uint32_t found = shared->turn.load();
        wakes += found != seen;
        seen = found;
    }
    used = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - used;
    shared->over.store(true);
    wait(nullptr);
    printf("%g\n", used / double(wakes));
    return 0;
}

struct Post {
    alignas(64) std::atomic<uint32_t> turn{0}, answer{0};
    std::atomic<double> arrived{0};
};

static void set(std::atomic<uint32_t> &word, uint32_t value) {
    word.store(value);
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE, 1, nullptr, nullptr, 0);
}
static uint32_t changed(std::atomic<uint32_t> &word, uint32_t seen) {
    for (;;) {
        const uint32_t now = word.load();
        if (now != seen) return now;
        syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, seen, nullptr, nullptr, 0);
    }
}

static double part(std::vector<double> &values, double share) {
    std::sort(values.begin(), values.end());
    return values[size_t(share * double(values.size() - 1))];
}

static int publish(size_t bytes, size_t slots, bool past, double seconds) {
    auto *post = new (must(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) Post;
    const size_t step = (bytes + 4095) & ~size_t(4095);
    const int fd = memfd_create("copies", 0);
    if (fd < 0 || ftruncate(fd, off_t(step * slots)) != 0) return perror("memfd"), 1;
    char *board = mapped(fd, step * slots);
    const auto move = [&](char *to, const char *from) { past ? stream(to, from, bytes) : void(memcpy(to, from, bytes)); };
    if (fork() == 0) {
        char *own = mapped(-1, step);
        char *there = mapped(fd, step * slots);
        for (uint32_t seen = 0;;) {
            seen = changed(post->turn, seen);
            if (seen == UINT32_MAX) _exit(0);
            move(own, there + seen % slots * step);
            post->arrived.store(now());
            set(post->answer, seen);
        }
    }
    const char *source = pool_of(bytes, 1);
    std::vector<double> in, out, whole;
    srand(7);
    const double begin = now() + 0.2;
    for (uint32_t turn = 1; now() < begin + seconds || in.empty(); ++turn) {
        usleep(useconds_t(1000 + rand() % 2000));
        const double start = now();
        move(board + turn % slots * step, source);
        const double done = now();
        set(post->turn, turn);
        changed(post->answer, turn - 1);
        if (start < begin) continue;
        const double arrived = post->arrived.load();
        in.push_back(done - start), out.push_back(arrived - done), whole.push_back(arrived - start);
    }
    set(post->turn, UINT32_MAX);
    wait(nullptr);
    printf("%g %g %g %g %g\n", part(in, 0.5), part(out, 0.5), part(whole, 0.5), part(whole, 0.9), part(whole, 0.99));
    return 0;
}

int main(int count, char **word) {
    void *memory = must(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    auto *shared = new (memory) Shared;
    const auto number = [&](int i) { return size_t(atoll(word[i])); };
    if (count == 9 && std::string(word[1]) == "copy")
        return copy(int(number(2)), number(3), number(4), number(5), std::string(word[6]) == "2m", std::string(word[7]) == "stream", atof(word[8]), shared);
    if (count == 7 && std::string(word[1]) == "wake") return wake(number(2), number(3), number(4), number(5), atof(word[6]), shared);
    if (count == 6 && std::string(word[1]) == "publish") return publish(number(2), number(3), std::string(word[4]) == "stream", atof(word[5]));
    fprintf(stderr, "see the top of copies.cpp\n");
    return 2;
}
