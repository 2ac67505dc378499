// Claims of tables/table.hpp as a program: writers that commit, abort and stall, learners that gather rows while they are overwritten,
// others that update, delete and change items, publish versions, acknowledge loans and copy the table for a checkpoint. Run plain, under ThreadSanitizer and under AddressSanitizer. Each FORBIDDEN outcome names
// the claim it breaks.
//
//   table_stress [seconds per scenario]
#include <cstdio>
#include <cstdlib>
#include <set>
#include <thread>
#include <vector>

#include <poll.h>
#include <sys/eventfd.h>

#include "../../echo_core/src/echo_core/store/door/capi_table.hpp"
#include "../../echo_replay/src/echo_replay/tables/table.hpp"

using namespace echo;
using replay::Batch;
using replay::Table;

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::_Exit(1);
}

// A sampler that checks what it is told: the table promises never to call it concurrently, nor with keys it may not name.
struct Checked {
    std::vector<uint32_t> held, place;
    bool oldest_first;
    std::atomic<int> inside{0};
    uint64_t random = 88172645463325252ull;

    Checked(uint32_t capacity, bool oldest) : place(capacity, UINT32_MAX), oldest_first(oldest) {}

    struct Alone {
        std::atomic<int> &inside;
        explicit Alone(std::atomic<int> &i) : inside(i) {
            if (inside.fetch_add(1) != 0) forbidden("a sampler is called by one thread at a time");
        }
        ~Alone() { inside.fetch_sub(1); }
    };
    static Checked &of(void *state) { return *static_cast<Checked *>(state); }
    static void insert(void *state, const uint32_t *keys, const double *, size_t n) {
        Checked &c = of(state);
        Alone alone(c.inside);
        for (size_t i = 0; i < n; ++i) {
            if (c.place[keys[i]] != UINT32_MAX) forbidden("no key is inserted twice");
            c.place[keys[i]] = uint32_t(c.held.size());
            c.held.push_back(keys[i]);
        }
    }
    static void remove(void *state, const uint32_t *keys, size_t n) {
        Checked &c = of(state);
        Alone alone(c.inside);
        for (size_t i = 0; i < n; ++i) {
            const uint32_t at = c.place[keys[i]];
            if (at == UINT32_MAX) forbidden("only keys that are held are removed");
            if (c.oldest_first) {
                c.held.erase(c.held.begin() + at);
                for (size_t j = at; j < c.held.size(); ++j) c.place[c.held[j]] = uint32_t(j);
            } else {
                c.place[c.held[at] = c.held.back()] = at;
                c.held.pop_back();
            }
            c.place[keys[i]] = UINT32_MAX;
        }
    }
    static void update(void *state, const uint32_t *keys, const double *, size_t n) {
        Checked &c = of(state);
        Alone alone(c.inside);
        for (size_t i = 0; i < n; ++i)
            if (c.place[keys[i]] == UINT32_MAX) forbidden("only keys that are held are updated");
    }
    static size_t sample(void *state, bitgen_t *, size_t n, uint32_t *keys, double *probabilities) {
        Checked &c = of(state);
        Alone alone(c.inside);
        if (c.held.empty() || (c.oldest_first && c.held.size() < n)) return 0;
        for (size_t i = 0; i < n; ++i) {
            c.random ^= c.random << 13, c.random ^= c.random >> 7, c.random ^= c.random << 17;
            keys[i] = c.oldest_first ? c.held[i] : c.held[c.random % c.held.size()];
            probabilities[i] = 1.0 / double(c.held.size());
        }
        return n;
    }
    static size_t count(const void *state) { return static_cast<const Checked *>(state)->held.size(); }
    static void priorities(const void *, const uint32_t *, double *out, size_t n) { std::fill_n(out, n, 1.0); }
    static size_t victims(const void *state, size_t n, uint32_t *keys) {
        const Checked &c = *static_cast<const Checked *>(state);
        if (c.held.size() < n) return 0;
        for (size_t i = 0; i < n; ++i) keys[i] = c.held[c.held.size() / 2 + i / 2];
        return n;
    }
    echo_sampler door() {
        return {ECHO_SAMPLER_VERSION, sizeof(echo_sampler), this, insert, remove, update, sample, count, priorities, victims};
    }
};

struct Scenario {
    const char *name;
    int writers, learners;
    uint64_t capacity;
    uint32_t batch, run;
    bool oldest_first;        // a sampler without replacement that gives the oldest; otherwise uniform with replacement
    int remover;              // 0: the oldest goes, 1: another sampler's draw, 2: the sampler's victims
    uint32_t max_times;
    replay::Limits limits;
    bool meddle;              // a thread that updates, deletes, changes items in place, and pauses the table
    bool eventfd;
    unsigned abort_in;
    uint64_t max_lag = 0;     // above 0: writers say versions, and a thread publishes new ones
    int64_t lease_ns = 0;     // above 0: learners acknowledge some of what they are given
    bool copies = false;      // a thread copies the table, again and again
};

constexpr int64_t kPatience = 60'000'000'000;  // ns
constexpr uint64_t kFiller = 200;
uint64_t filler_bytes = kFiller;  // bytes of the filler: few make rows small enough to be packed as records
constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr replay::Limits kFree = {1, -kInf, kInf, 1};

// A sample is its number, its writer, and a filler whose every byte repeats what the two give.
void write_sample(Table &table, const echo_run &run, uint32_t i, uint64_t writer, uint64_t number) {
    char filler[kFiller];
    std::memset(filler, int((number * 31 + writer) & 0xff), filler_bytes);
    copy_racing_out(table.leaf(run, 0) + i * 8, reinterpret_cast<const char *>(&number), 8);
    copy_racing_out(table.leaf(run, 1) + i * 8, reinterpret_cast<const char *>(&writer), 8);
    copy_racing_out(table.leaf(run, 2) + i * filler_bytes, filler, filler_bytes);
}

void check_batch(const Batch *batch) {
    for (uint64_t i = 0; i < batch->n; ++i) {
        uint64_t number, writer;
        std::memcpy(&number, batch->leaf[0] + i * 8, 8);
        std::memcpy(&writer, batch->leaf[1] + i * 8, 8);
        const char expected = char((number * 31 + writer) & 0xff);
        for (uint64_t b = 0; b < filler_bytes; ++b)
            if (batch->leaf[2][i * filler_bytes + b] != expected) forbidden("no batch has a torn row");
        if (!(batch->probabilities[i] > 0 && batch->probabilities[i] <= 1)) forbidden("probabilities are from 0 to 1");
    }
}

// One copy of the table as a checkpoint makes it: every item of the moment once, whole, and as it was.
void copy_table(Table *table, bool same) {
    const uint64_t capacity = table->capacity();
    std::vector<uint64_t> keys(capacity);
    std::vector<uint32_t> rows(capacity);
    std::unique_ptr<char[]> put_aside;
    const uint64_t bytes = 16 + filler_bytes;
    table->pause();
    const size_t n = table->items(keys.data(), nullptr, rows.data(), capacity);
    table->begin_copy(rows.data(), n);
    std::vector<uint64_t> numbers(capacity);
    for (size_t i = 0; i < n; ++i)
        copy_racing(reinterpret_cast<char *>(&numbers[rows[i]]), table->rows().at(0, rows[i]), 8);
    table->resume();
    std::vector<int> copied(capacity);
    const auto settle = [&](uint32_t row, const char *number) {
        if (++copied[row] != 1) forbidden("a checkpoint has every item once");
        if (same && std::memcmp(number, &numbers[row], 8) != 0) forbidden("a checkpoint is of one moment");
    };
    for (size_t first = 0; first < n; first += 16) {
        Batch *batch = table->take_batch(16);
        const size_t kept = table->copy_some(rows.data() + first, std::min<size_t>(16, n - first), batch);
        for (size_t i = 0; i < kept; ++i) settle(batch->rows[i], batch->leaf[0] + i * 8);
        const uint64_t all = batch->n;
        batch->n = kept;
        std::fill_n(batch->probabilities, kept, 1.0);
        check_batch(batch);
        batch->n = all;
        table->give_back(batch);
        std::vector<uint32_t> aside;
        while (table->take_preserved(&aside, &put_aside)) for (size_t i = 0; i < aside.size(); ++i) {
            const char *record = put_aside.get() + i * bytes;
            uint64_t number, writer;
            std::memcpy(&number, record, 8), std::memcpy(&writer, record + 8, 8);
            settle(aside[i], record);
            for (uint64_t b = 0; b < filler_bytes; ++b)
                if (record[16 + b] != char((number * 31 + writer) & 0xff)) forbidden("no checkpoint has a torn row");
        }
        std::this_thread::yield();
    }
    table->end_copy();
    for (size_t i = 0; i < n; ++i)
        if (copied[rows[i]] != 1) forbidden("a checkpoint misses no item");
}

void play(const Scenario &s, double seconds) {
    Checked sampling(uint32_t(s.capacity), s.oldest_first), removing(uint32_t(s.capacity), false);
    const echo_sampler sampler = sampling.door(), other = removing.door();
    const echo_sampler *remover = s.remover == 0 ? nullptr : s.remover == 1 ? &other : &sampler;
    replay::LagLimits lags;
    if (s.max_lag) lags.kept = true, lags.max_lag = s.max_lag;
    Table *table = new Table({8, 8, filler_bytes}, s.capacity, s.batch, s.limits, s.max_times, &sampler, !s.oldest_first, remover, nullptr, -1,
                             lags, s.lease_ns, {}, 1);  // all rows but one get their memory as they are claimed
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> committed{0}, drawn{0}, batches{0};
    std::mutex seen_lock;
    std::set<std::pair<uint64_t, uint64_t>> seen;
    std::vector<std::thread> threads;
    for (int w = 0; w < s.writers; ++w)
        threads.emplace_back([&, w] {
            const int fd = s.eventfd ? ::eventfd(0, 0) : -1;
            uint64_t number = 1, random = 88172645463325252ull + uint64_t(w);
            while (!stop.load(std::memory_order_relaxed)) {
                random ^= random << 13, random ^= random >> 7, random ^= random << 17;
                echo_run run;
                const int status = table->claim(1 + uint32_t(random % s.run), &run);
                if (status == ECHO_CLOSED) break;
                if (status == ECHO_FULL) {
                    if (!s.eventfd) {
                        table->wait_space(20'000'000);
                    } else if (table->arm_space(fd) == ECHO_OK) {
                        uint64_t value;
                        [[maybe_unused]] const auto got = read(fd, &value, sizeof value);
                    }
                    continue;
                }
                for (uint32_t i = 0; i < run.count; ++i) write_sample(*table, run, i, uint64_t(w), number + i);
                if (s.abort_in && random % s.abort_in == 0) {
                    table->abort(run);
                    continue;
                }
                Labels labels;
                if (s.max_lag) labels.version = table->policy_version() - std::min<uint64_t>(table->policy_version(), random % (2 * s.max_lag));
                table->commit(run, labels);
                number += run.count;
                committed.fetch_add(run.count);
            }
            if (fd >= 0) close(fd);
        });
    for (int l = 0; l < s.learners; ++l)
        threads.emplace_back([&, l] {
            const int fd = l % 2 ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1;  // every second learner sleeps in poll
            while (!stop.load(std::memory_order_relaxed)) {
                Batch *batch = table->take_batch(s.batch);
                const uint64_t newest = table->policy_version();
                const replay::Answer answer = table->sample(batch);
                if (answer == replay::kDrawn) {
                    check_batch(batch);
                    for (uint64_t i = 0; s.max_lag && i < batch->n; ++i)
                        if (batch->versions[i] + s.max_lag < newest) forbidden("no batch has a row whose policy lags too far");
                    drawn.fetch_add(s.batch);
                    batches.fetch_add(1);
                    if (s.max_times == 1) {
                        std::lock_guard<std::mutex> lock(seen_lock);
                        for (uint64_t i = 0; i < batch->n; ++i) {
                            uint64_t number, writer;
                            std::memcpy(&number, batch->leaf[0] + i * 8, 8);
                            std::memcpy(&writer, batch->leaf[1] + i * 8, 8);
                            if (s.lease_ns && ((number + batches.load()) % 3 == 0 || table->acknowledge(&batch->keys[i], 1) == 0)) continue;
                            if (!seen.insert({writer, number}).second) forbidden("an item of max_times_sampled = 1 comes out once");
                        }
                    }
                    const double ones[1] = {1};
                    table->update(batch->keys, ones, 1);
                }
                table->give_back(batch);
                if (answer == replay::kClosed) break;
                if (answer != replay::kWait) continue;
                if (fd < 0) {
                    table->wait_ready(s.batch, 20'000'000);
                } else if (!table->arm_ready(fd, s.batch)) {
                    pollfd woken{fd, POLLIN, 0};
                    const bool silent = poll(&woken, 1, s.lease_ns ? 20 : 10'000) == 0;  // nobody signals that a lease is over
                    if (silent && !s.lease_ns && table->can_sample(s.batch)) forbidden("an armed eventfd is written when a batch can be drawn");
                    table->disarm_ready(fd, s.batch);
                    uint64_t count;
                    [[maybe_unused]] const auto got = read(fd, &count, sizeof count);
                }
            }
            if (fd >= 0) close(fd);
        });
    if (s.meddle)
        threads.emplace_back([&] {
            std::vector<uint64_t> keys(s.capacity);
            std::vector<uint32_t> rows(s.capacity);
            uint64_t turn = 0;
            while (!stop.load(std::memory_order_relaxed)) {
                const size_t n = table->items(keys.data(), nullptr, rows.data(), s.capacity);
                if (n == 0) continue;
                const uint64_t key = keys[turn * 7919 % n], writer = 99, number = turn;
                uint8_t here;
                if (turn % 3 == 0) {
                    table->erase(&key, 1);
                    if (table->erase(&key, 1) != 0) forbidden("a deleted key is gone");
                } else if (turn % 3 == 1) {
                    char filler[kFiller];
                    std::memset(filler, int((number * 31 + writer) & 0xff), filler_bytes);
                    const char *const from[3] = {reinterpret_cast<const char *>(&number), reinterpret_cast<const char *>(&writer), filler};
                    if (s.max_times == 0) table->overwrite(&key, 1, from, &here);
                } else if (turn % 61 == 2) {
                    table->pause();
                    const uint64_t before = table->counters().size;
                    std::this_thread::yield();
                    if (table->counters().size != before) forbidden("a paused table changes nothing");
                    table->resume();
                } else {
                    Batch *batch = table->take_batch(1);
                    table->find(&key, 1, batch, &here);
                    table->gather_known(batch, &here);
                    batch->probabilities[0] = 1;
                    if (here) check_batch(batch);
                    table->give_back(batch);
                }
                ++turn;
                std::this_thread::yield();
            }
        });
    if (s.max_lag)
        threads.emplace_back([&] {
            for (uint64_t version = 1; !stop.load(std::memory_order_relaxed); ++version) {
                table->set_policy_version(version);
                std::this_thread::yield();
            }
        });
    if (s.copies)
        threads.emplace_back([&] {
            while (!stop.load(std::memory_order_relaxed)) copy_table(table, !s.meddle);
        });
    const int64_t end = now_ns() + int64_t(seconds * 1e9);
    const auto idle = [&] { return committed.load() == 0 || batches.load() == 0; };  // not all threads have run yet on a busy machine
    while (now_ns() < end || (idle() && now_ns() < end + kPatience)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (idle()) forbidden("everybody gets on");
    stop = true;
    table->close();
    for (auto &thread : threads) thread.join();
    const replay::Counters c = table->counters();
    if (c.inserts != committed.load()) forbidden("every commit is counted once");
    if (c.samples + c.redelivered != drawn.load()) forbidden("every draw is counted once");
    if (c.size > s.capacity || (!s.lease_ns && c.size != sampling.held.size())) forbidden("the sampler holds what the table holds");
    if (s.limits.min_diff == 0 && c.evicted != 0) forbidden("a queue evicts nothing");
    if (c.pending != 0) forbidden("nothing is under way when nobody writes");
    const double diff = double(c.inserts) * s.limits.samples_per_insert - double(c.samples);
    if (c.inserts > uint64_t(s.limits.min_size) && (diff > s.limits.max_diff || (c.samples && diff < s.limits.min_diff)))
        forbidden("inserts and samples stay within the limiter's bounds");
    std::printf("%-34s %9lu inserts %9lu batches %7lu redrawn\n", s.name, (unsigned long)committed.load(), (unsigned long)batches.load(),
                (unsigned long)c.redrawn);
    table->detach();
    table->release();
}

}  // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    const Scenario scenarios[] = {
        {"tiny, overwritten all the time", 2, 2, 64, 32, 8, false, 0, 0, kFree, false, false, 0},
        {"runs, aborts", 3, 1, 1000, 64, 300, false, 0, 0, kFree, false, false, 5},
        {"oldest first, without replacement", 2, 1, 256, 64, 16, true, 0, 0, kFree, false, false, 0},
        {"another sampler removes", 2, 1, 128, 16, 4, false, 1, 0, kFree, false, false, 7},
        {"the sampler's victims", 2, 1, 128, 16, 4, false, 2, 0, kFree, false, false, 7},
        {"meddlers", 2, 1, 200, 32, 8, false, 0, 0, kFree, true, false, 9},
        {"queue", 2, 2, 64, 8, 5, true, 0, 1, {1, 0, 64, 1}, false, false, 6},
        {"queue, eventfd", 3, 1, 100, 10, 7, true, 0, 1, {1, 0, 100, 1}, false, true, 6},
        {"three samples, then gone", 2, 2, 128, 16, 4, false, 0, 3, kFree, true, false, 8},
        {"ratio of 4", 2, 1, 500, 25, 10, false, 0, 0, {4, 350, 450, 100}, false, true, 4},
        {"versions that lag", 2, 1, 300, 16, 8, false, 0, 0, kFree, true, false, 9, 3},
        {"loans", 2, 2, 64, 8, 5, true, 0, 1, {1, 0, 64, 1}, false, false, 6, 0, 1'000'000},
        {"copied", 2, 1, 300, 16, 8, false, 0, 0, kFree, false, false, 6, 0, 0, true},
        {"copied, versions, meddlers", 2, 1, 300, 16, 8, false, 0, 0, kFree, true, false, 6, 3, 0, true},
    };
    for (uint64_t filler : {kFiller, uint64_t(41)}) {
        filler_bytes = filler;
        std::printf("rows of %lu bytes\n", (unsigned long)(16 + filler));
        for (const Scenario &s : scenarios) play(s, seconds);
    }
    std::puts("no forbidden outcome");
}
