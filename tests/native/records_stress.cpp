// Claims of tables/records/records.hpp as a program: workers that send chunks, cut records off, lie about lengths and die, writers of this
// process, and learners that draw by number and by rows, in tables so small that everything waits or is overwritten all the time. Run plain, under
// ThreadSanitizer and under AddressSanitizer. Each FORBIDDEN outcome names the claim it breaks.
//
//   records_stress [seconds per scenario]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <thread>
#include <utility>
#include <vector>

#include "../../echo_replay/src/echo_replay/tables/records/records.hpp"

using namespace echo;
using namespace echo::replay;

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::_Exit(1);
}

// The oldest key first, or every key equally likely. It checks what it is told.
struct Keys {
    std::deque<uint32_t> held;
    std::vector<bool> there;
    bool oldest;
    Keys(uint32_t capacity, bool oldest_first) : there(capacity), oldest(oldest_first) {}
    static Keys &of(const void *state) { return *static_cast<Keys *>(const_cast<void *>(state)); }
    static void insert(void *state, const uint32_t *keys, const double *, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            if (of(state).there[keys[i]]) forbidden("no item is inserted twice");
            of(state).there[keys[i]] = true;
            of(state).held.push_back(keys[i]);
        }
    }
    static void remove(void *state, const uint32_t *keys, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            if (!of(state).there[keys[i]]) forbidden("only items that are there are removed");
            of(state).there[keys[i]] = false;
            auto &held = of(state).held;
            held.erase(std::find(held.begin(), held.end(), keys[i]));
        }
    }
    static void update(void *, const uint32_t *, const double *, size_t) {}
    static size_t sample(void *state, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities) {
        Keys &k = of(state);
        if (k.held.empty() || (k.oldest && k.held.size() < n)) return 0;
        for (size_t i = 0; i < n; ++i) {
            keys[i] = k.held[k.oldest ? i : size_t(random->next_double(random->state) * double(k.held.size()))];
            probabilities[i] = 1.0 / double(k.held.size());
        }
        return n;
    }
    static size_t count(const void *state) { return of(state).held.size(); }
    static void priorities(const void *, const uint32_t *, double *to, size_t n) { std::fill_n(to, n, 1.0); }
};

uint64_t next(uint64_t *state) {
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return *state;
}
double unit(void *state) { return double(next(static_cast<uint64_t *>(state)) >> 11) * 0x1p-53; }

constexpr uint32_t kMost = 900, kWorkers = 3, kLearners = 2;
const RecordLayout kLayout{{{8, 0}, {4, 1}, {8, -1}}, {kMost, 40}};

struct Scenario {
    const char *name;
    bool queue;
    int64_t lease_ns;
    uint64_t capacity, bytes;
};

struct Rig {
    const Scenario &scenario;
    Keys keys;
    echo_sampler sampler;
    uint64_t seed = 88172645463325252ull;
    bitgen_t random{};
    Table *items;
    Records *records;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> written[kWorkers + 1]{}, drawn[kLearners]{};

    explicit Rig(const Scenario &s) : scenario(s), keys(uint32_t(s.capacity), s.queue) {
        sampler = {ECHO_SAMPLER_VERSION, sizeof sampler, &keys, Keys::insert, Keys::remove, Keys::update, Keys::sample, Keys::count, Keys::priorities,
                   nullptr};
        random.state = &seed, random.next_double = unit;
        const Limits limits = s.queue ? Limits{1, 0, double(s.capacity), 1} : Limits{1, -1e300, 1e300, 1};
        items = new Table({sizeof(RecordRow)}, s.capacity, 2, limits, s.queue ? 1 : 0, &sampler, !s.queue, nullptr, &random, -1, {}, s.lease_ns,
                          {sizeof(RecordRow)});
        records = new Records(kLayout, s.bytes, items, -1);
    }
    ~Rig() {
        items->detach();
        records->release();
        items->release();
    }

    // A record's bytes say which one it is, and how long.
    static std::vector<char> bytes_of(uint64_t number, const uint32_t *lengths) {
        std::vector<char> out(kLayout.bytes_of(lengths));
        char *at = out.data();
        for (uint64_t i = 0; i < lengths[0]; ++i, at += 8) {
            const uint64_t word = number ^ i;
            std::memcpy(at, &word, 8);
        }
        for (uint32_t i = 0; i < lengths[1]; ++i, at += 4) {
            const uint32_t word = uint32_t(number) + i;
            std::memcpy(at, &word, 4);
        }
        std::memcpy(at, &number, 8);
        return out;
    }

    // Hands chunks over as transports do: one at a time or many, by claims or from their own memory.
    bool put(const std::vector<char> &chunks, uint64_t *state) {
        const uint64_t way = next(state) % 3, n = chunks.size() / CHUNK_BYTES;
        for (uint64_t at = 0; at < n;) {
            const char *from = chunks.data() + at * CHUNK_BYTES;
            echo_run run{};
            const int status = way == 2 ? records->put(from, uint32_t(n - at), &run.count) : records->claim(way ? uint32_t(n - at) : 1, &run);
            if (status == ECHO_OK) {
                if (way != 2) std::memcpy(records->leaf(run, 0), from, run.count * CHUNK_BYTES), records->commit(run);
                if (run.count == 0 || run.count > n - at) forbidden("a call takes at least one chunk, and no more than there are");
                at += run.count;
            } else {
                if (status == ECHO_CLOSED || stop.load()) return false;
                records->wait_space(1'000'000);
            }
        }
        return true;
    }

    void work(uint32_t index) {
        const uint64_t client = index + 1;
        uint64_t state = 1234567 + client * 7919, count = 0;
        uint16_t chunk_number = 0;
        std::vector<char> unsent;
        while (!stop.load()) {
            const uint64_t number = client << 40 | ++count, dice = next(&state) % 40;
            const uint32_t n = uint32_t(dice % 4 == 0 ? next(&state) % (kMost + 1) : next(&state) % 60);
            RecordHeader header{{n, n % 41, 0, 0}, UNLABELLED, UNLABELLED};
            const std::vector<char> bytes = bytes_of(number, header.lengths);
            if (dice == 1) header.lengths[0] = uint32_t(next(&state));  // a lie
            std::vector<char> record(sizeof header);
            std::memcpy(record.data(), &header, sizeof header);
            record.insert(record.end(), bytes.begin(), bytes.end());
            const size_t chunks = (record.size() + CHUNK_PAYLOAD - 1) / CHUNK_PAYLOAD, cut = dice == 4 ? next(&state) % chunks : chunks;
            for (size_t i = 0; i < cut; ++i) {
                char chunk[CHUNK_BYTES] = {};
                const size_t used = std::min(CHUNK_PAYLOAD, record.size() - i * CHUNK_PAYLOAD);
                const ChunkHead head{uint32_t(used), (i == 0 ? RECORD_BEGINS : 0) | (i + 1 == chunks ? RECORD_ENDS : 0), client << 16 | chunk_number++};
                std::memcpy(chunk, &head, sizeof head);
                std::memcpy(chunk + sizeof head, record.data() + i * CHUNK_PAYLOAD, used);
                unsent.insert(unsent.end(), chunk, chunk + CHUNK_BYTES);
                if (next(&state) % 100 == 0 && !put(std::exchange(unsent, {}), &state)) return;
            }
            if (next(&state) % 4 && !put(std::exchange(unsent, {}), &state)) return;
            if (dice == 3) {  // a run that its transport gives back
                echo_run run;
                if (records->claim(3, &run) == ECHO_OK) records->abort(run);
            }
            if (next(&state) % 100 == 0) records->forget_client(client);
            written[index].fetch_add(1);
        }
    }

    void write_here() {
        uint64_t state = 4242, count = 0;
        while (!stop.load()) {
            const uint64_t number = uint64_t(99) << 40 | ++count;
            const uint32_t n = uint32_t(next(&state) % 200);
            const RecordHeader header{{n, n % 41, 0, 0}, UNLABELLED, UNLABELLED};
            const std::vector<char> bytes = bytes_of(number, header.lengths);
            const char *from[3] = {bytes.data(), bytes.data() + 8 * n, bytes.data() + 8 * n + 4 * (n % 41)};
            uint64_t key;
            const int status = records->insert(header, from, &key);
            if (status == ECHO_CLOSED) return;
            if (status != ECHO_OK) records->wait_room(header.lengths, 1'000'000);
            else written[kWorkers].fetch_add(1);
        }
    }

    void learn(uint32_t index) {
        uint64_t state = 777 + index;
        while (!stop.load()) {
            records->settle();
            const bool by_rows = next(&state) % 2;
            const uint64_t count = by_rows ? 64 : 1 + next(&state) % 2;
            const uint64_t room[MOST_AXES] = {by_rows ? 1000 : count * kMost, count * 40, 0, 0};
            PackedBatch *packed = records->take_packed(count, room);
            Batch *batch = items->take_batch(count);
            batch->packed = packed, batch->borrower = index;
            const Answer answer = by_rows ? records->sample_units(batch, 0, 1000) : items->sample(batch);
            if (answer == kDrawn) {
                drawn[index].fetch_add(batch->n);
                check(batch, packed);
                if (scenario.lease_ns && next(&state) % 8) items->acknowledge(batch->keys, batch->n);
                else if (next(&state) % 16 == 0) items->erase(batch->keys, batch->n);
                if (scenario.lease_ns && next(&state) % 32 == 0) items->take_back(index);
            }
            batch->packed = nullptr;
            items->give_back(batch);
            records->give_back(packed);
            if (answer != kDrawn) items->wait_ready(1, 1'000'000), std::this_thread::yield();
        }
    }
    static void check(const Batch *batch, const PackedBatch *packed) {
        for (uint64_t i = 0; i < batch->n; ++i) {
            uint64_t number;
            std::memcpy(&number, packed->leaf[2] + 8 * i, 8);
            const int32_t *const long_ = packed->offsets[0], *const short_ = packed->offsets[1];
            const uint32_t n = uint32_t(long_[i + 1] - long_[i]);
            if (uint32_t(short_[i + 1] - short_[i]) != n % 41) forbidden("the lengths of an item are those of its record");
            for (uint32_t k = 0; k < n; ++k) {
                uint64_t word;
                std::memcpy(&word, packed->leaf[0] + 8 * (uint64_t(long_[i]) + k), 8);
                if (word != (number ^ k)) forbidden("no batch has a torn record");
            }
            for (uint32_t k = 0; k < n % 41; ++k) {
                uint32_t word;
                std::memcpy(&word, packed->leaf[1] + 4 * (uint64_t(short_[i]) + k), 4);
                if (word != uint32_t(number) + k) forbidden("no batch has a torn record");
            }
        }
    }
    // Checkpoints pause the table.
    void pause() {
        while (!stop.load()) {
            items->pause();
            std::this_thread::yield();
            items->resume();
            std::this_thread::sleep_for(std::chrono::milliseconds(3));
        }
    }
    void wait_until_all_have_run() const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
        const auto idle = [](const std::atomic<uint64_t> &count) { return count.load() == 0; };
        while (std::any_of(std::begin(written), std::end(written), idle) || std::any_of(std::begin(drawn), std::end(drawn), idle)) {
            if (std::chrono::steady_clock::now() > end) forbidden("everybody gets their turn");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }
};

void run(const Scenario &scenario, double seconds) {
    Rig rig(scenario);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kWorkers; ++i) threads.emplace_back([&rig, i] { rig.work(i); });
    threads.emplace_back([&rig] { rig.write_here(); });
    for (uint32_t i = 0; i < kLearners; ++i) threads.emplace_back([&rig, i] { rig.learn(i); });
    threads.emplace_back([&rig] { rig.pause(); });
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    rig.wait_until_all_have_run();
    rig.stop.store(true);
    for (std::thread &thread : threads) thread.join();
    for (uint32_t i = 0; i < kWorkers; ++i) rig.records->forget_client(i + 1);
    // What is left is removed: all pages come back. What waited for them enters meanwhile, and is removed as well.
    std::vector<uint64_t> keys(scenario.capacity);
    std::vector<uint32_t> rows(scenario.capacity);
    for (bool left = true; left;) {
        rig.records->settle(), rig.items->take_back(0), rig.items->take_back(1);
        const size_t n = rig.items->items(keys.data(), nullptr, rows.data(), keys.size());
        rig.items->erase(keys.data(), n);
        const size_t given_out = rig.items->unacknowledged().size();
        for (size_t i = 0; i < given_out; ++i) {
            const uint64_t room[MOST_AXES] = {kMost, 40, 0, 0};
            PackedBatch *packed = rig.records->take_packed(1, room);
            Batch *batch = rig.items->take_batch(1);
            batch->packed = packed, batch->borrower = 7;
            if (rig.items->sample(batch) == kDrawn) rig.items->acknowledge(batch->keys, 1);
            batch->packed = nullptr;
            rig.items->give_back(batch), rig.records->give_back(packed);
        }
        left = n || given_out;
    }
    const RecordCounters c = rig.records->counters();
    const Counters t = rig.items->counters();
    if (c.pages_free != c.pages) forbidden("pages are free when their items are gone");
    if (c.half_sent || c.half_sent_bytes || c.waiting) forbidden("nothing is left of a client that is gone");
    if (scenario.queue && t.evicted) forbidden("a queue evicts nothing");
    if (!scenario.lease_ns && (c.rows[0] || c.rows[1])) forbidden("the rows of items that are gone do not count");
    std::printf("%s: %llu inserted, %llu sampled, %llu evicted, %llu redrawn, %llu incomplete, %llu refused\n", scenario.name,
                (unsigned long long)t.inserts, (unsigned long long)t.samples, (unsigned long long)t.evicted, (unsigned long long)t.redrawn,
                (unsigned long long)c.incomplete, (unsigned long long)c.refused);
}

}  // namespace

int main(int count, char **arguments) {
    const double seconds = count > 1 ? std::atof(arguments[1]) : 1.0;
    const uint64_t longest = kMost * 8 + 40 * 4 + 8;
    for (const Scenario &scenario : {Scenario{"queue", true, 0, 50, 8 * longest}, Scenario{"queue with leases", true, 5'000'000, 50, 8 * longest},
                                     Scenario{"uniform", false, 0, 50, 6 * longest}, Scenario{"few rows", false, 0, 4, 40 * longest}})
        run(scenario, seconds);
    std::puts("no forbidden outcome");
    return 0;
}
