// An adder adds rows without a break; samplers read random rows without a break and check every word. The table is small, so the adder goes round it
// many times a second.
//
//   ipc_rows_stress [seconds per scenario]
//
// Forbidden: a row that mixes two; a row that is not the one with its number.
#include "../../src/echo_ipc/_native/rows.hpp"
#include "ipc_stress.hpp"

constexpr uint64_t kWords = 55;  // of a row: 440 bytes, in three columns
constexpr uint64_t kSplit[3] = {1, 30, 24};

// One adder at a time, which therefore knows the numbers of its rows: every word of a row is its number.
static void add_until(Rows &rows, const std::function<bool()> &over) {
    std::mt19937 random{unsigned(getpid())};
    std::vector<uint64_t> columns[3];
    while (!over()) {
        const uint64_t count = 1 + random() % (rows.capacity() / 2), first = rows.committed();
        Part parts[3];
        uint64_t offset = 0;
        for (int c = 0; c < 3; ++c) {
            columns[c].resize(count * kSplit[c]);
            for (uint64_t i = 0; i < columns[c].size(); ++i) columns[c][i] = first + i / kSplit[c];
            parts[c] = {reinterpret_cast<char *>(columns[c].data()), offset, kSplit[c] * 8};
            offset += kSplit[c] * 8;
        }
        uint64_t number = 0;
        while (rows.add(parts, 3, count, &number) == kLater) {}
        if (number != first) forbidden("rows with other numbers", number, first);
    }
}

constexpr double kPatience = 60;

struct Read {
    std::atomic<uint64_t> whole{0}, stale{0};
};

static void sample_until(const Rows &rows, uint64_t seed, const std::function<bool()> &over, Read &read) {
    constexpr uint64_t kBatch = 64;
    std::mt19937_64 random(seed);
    std::vector<uint64_t> columns[3], numbers(kBatch), stale(kBatch);
    Part parts[3];
    uint64_t offset = 0;
    for (int c = 0; c < 3; ++c) {
        columns[c].resize(kBatch * kSplit[c]);
        parts[c] = {reinterpret_cast<char *>(columns[c].data()), offset, kSplit[c] * 8};
        offset += kSplit[c] * 8;
    }
    while (!over()) {
        const uint64_t end = rows.committed(), first = rows.first();
        if (first >= end) continue;
        for (uint64_t &number : numbers) number = first + random() % (end - first);
        const uint64_t bad = rows.gather(numbers.data(), kBatch, parts, 3, stale.data());
        for (uint64_t i = 0, skip = 0; i < kBatch; ++i) {
            if (skip < bad && stale[skip] == i) {
                ++skip;
                continue;
            }
            for (int c = 0; c < 3; ++c)
                for (uint64_t w = 0; w < kSplit[c]; ++w)
                    if (columns[c][i * kSplit[c] + w] != numbers[i]) forbidden("torn, or another row", numbers[i], columns[c][i * kSplit[c] + w]);
        }
        read.whole += kBatch - bad, read.stale += bad;
    }
}

static void play(uint64_t capacity, double seconds, bool kills) {
    const Segment where = segment(Rows::bytes(0, capacity, kWords * 8), kRows, {capacity, kWords * 8});
    Rows rows(where);
    std::atomic<bool> over{false};
    Read read;
    std::vector<std::thread> threads;
    const auto ends = [&] { return over.load(); };
    for (uint64_t i = 0; i < 2; ++i)
        threads.emplace_back([&, i] { sample_until(rows, i, ends, read); });
    uint64_t dead = 0;
    if (kills) {
        const auto never = [] { return false; };
        dead = slaughter(seconds, {[&] { add_until(rows, never); }});
    } else {
        threads.emplace_back([&] { add_until(rows, ends); });
        usleep(useconds_t(seconds * 1e6));
    }
    // On a busy machine, the first addition and the first read may take longer than the whole scenario. After kills there may be nothing to read.
    for (const double limit = now() + kPatience; read.whole.load() == 0 && (!kills || rows.first() < rows.committed()) && now() < limit;) usleep(1000);
    over = true;
    for (auto &thread : threads) thread.join();
    printf("%llu rows%s: %llu added, %llu read, %llu written over meanwhile, %llu kills, %llu broken additions\n", Number(capacity), kills ? ", killed" : "",
           Number(rows.committed()), Number(read.whole.load()), Number(read.stale.load()), Number(dead), Number(rows.broken()));
    if (read.whole.load() == 0 && rows.first() < rows.committed()) forbidden("nobody could read");
    unmap(where);
}

int main(int count, char **word) {
    const double seconds = count > 1 ? atof(word[1]) : 1.0;
    for (const bool kills : {false, true})
        for (const uint64_t capacity : {uint64_t(200), uint64_t(5000)})
            if (!kills || kProcesses) play(capacity, seconds, kills);
    printf("no forbidden outcome\n");
    return 0;
}
