// Writers write values without a break; readers read them without a break and check every word.
//
//   ipc_cell_stress [seconds per scenario]
//
// Forbidden: a value that mixes two; a version that goes backwards; one version with two contents; no value to read after a writer was killed.
#include "../../src/echo_ipc/_native/cell.hpp"
#include "ipc_stress.hpp"

static uint64_t content(uint64_t writer, uint64_t count) { return (writer + 1) << 48 | count; }

static void write_until(Cell cell, uint64_t writer, const std::function<bool()> &over) {
    std::vector<uint64_t> value(cell.capacity() / 8);
    for (uint64_t count = uint64_t(getpid()) << 20; !over(); ++count) {
        value.assign(value.size(), content(writer, count));
        const Part parts[2] = {{reinterpret_cast<char *>(value.data()), 0, 64}, {reinterpret_cast<char *>(value.data() + 8), 64, value.size() * 8 - 64}};
        uint64_t version = 0;
        while (cell.write(parts, 2, cell.capacity(), &version) == kLater) {}
    }
}

struct Last {
    uint64_t version = 0, content = 0;
};

// Reads once and checks. False: nothing could be read just now.
static bool read_once(const Cell &cell, std::vector<uint64_t> &value, Last *last) {
    const Part parts[2] = {{reinterpret_cast<char *>(value.data()), 0, 64}, {reinterpret_cast<char *>(value.data() + 8), 64, value.size() * 8 - 64}};
    uint64_t version = 0, used = 0;
    const Outcome outcome = cell.read(parts, 2, &version, &used);
    if (outcome == kDamaged) forbidden("damaged");
    if (outcome != kDone) return false;
    for (const uint64_t word : value)
        if (word != value[0]) forbidden("torn", value[0], word);
    if (version < last->version) forbidden("backwards", version, last->version);
    if (version == last->version && value[0] != last->content) forbidden("one version, two contents", version);
    *last = {version, value[0]};
    return true;
}

constexpr double kPatience = 60;

static void read_until(Cell cell, const std::function<bool()> &over, std::atomic<uint64_t> &reads) {
    std::vector<uint64_t> value(cell.capacity() / 8);
    Last last;
    while (!over()) reads += read_once(cell, value, &last);
}

static void free_running(const Segment &where, double seconds) {
    Cell cell(where);
    const double end = now() + seconds;
    std::atomic<uint64_t> reads{0};
    // On a busy machine, the first read may take longer than the whole scenario.
    const auto over = [&, end] { return now() > end && (reads.load() > 0 || now() > end + kPatience); };
    std::vector<std::thread> threads;
    for (uint64_t i = 0; i < 2; ++i) threads.emplace_back([&, i] { write_until(cell, i, over); });
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { read_until(cell, over, reads); });
    for (auto &thread : threads) thread.join();
    printf("free-running, %llu bytes: %llu versions, %llu read, %llu by the lock\n", Number(cell.capacity()), Number(cell.version()), Number(reads.load()),
           Number(cell.locked()));
    if (reads.load() == 0) forbidden("nobody could read");
}

static void killed(const Segment &where, double seconds) {
    Cell cell(where);
    const auto never = [] { return false; };
    std::atomic<bool> over{false};
    std::atomic<uint64_t> reads{0}, others{0};
    std::thread reader([&] { read_until(cell, [&] { return over.load(); }, reads); });
    const uint64_t kills = slaughter(seconds, {[&] { write_until(cell, 2, never); }, [&] { write_until(cell, 3, never); }, [&] { read_until(cell, never, others); }});
    over = true;
    reader.join();
    std::vector<uint64_t> value(cell.capacity() / 8);
    Last last;
    if (cell.version() != 0 && !read_once(cell, value, &last)) forbidden("nothing to read after all writers were killed");
    printf("killed, %llu bytes: %llu kills, %llu repairs, %llu broken values, %llu versions, %llu read, %llu by the lock\n", Number(cell.capacity()), Number(kills),
           Number(cell.header()->lock.repairs()), Number(cell.broken()), Number(cell.version()), Number(reads.load()), Number(cell.locked()));
}

int main(int count, char **word) {
    const double seconds = count > 1 ? atof(word[1]) : 1.0;
    for (const uint64_t bytes : {uint64_t(4096), uint64_t(100'032), uint64_t(3 << 20)}) {
        for (const bool kills : {false, true}) {
            if (kills && !kProcesses) continue;
            const Segment where = segment(Cell::bytes(0, bytes), kCell, {bytes});
            kills ? killed(where, seconds) : free_running(where, seconds);
            unmap(where);
        }
    }
    printf("no forbidden outcome\n");
    return 0;
}
