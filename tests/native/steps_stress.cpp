// Claims of steps/steps.hpp as a program: workers whose episodes interleave, end, are aborted and die, in a table so small that everything
// is overwritten all the time, and learners that gather windows, transitions and slices meanwhile. Run plain, under ThreadSanitizer and
// under AddressSanitizer. Each FORBIDDEN outcome names the claim it breaks.
//
//   steps_stress [seconds per scenario]
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "../../echo_replay/src/echo_replay/steps/steps.hpp"

using namespace echo;
using namespace echo::replay;

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::_Exit(1);
}

// Every key equally likely. It checks what it is told.
struct Uniform {
    std::vector<uint32_t> held, place;
    explicit Uniform(uint32_t capacity) : place(capacity, UINT32_MAX) {}
    static Uniform &of(const void *state) { return *static_cast<Uniform *>(const_cast<void *>(state)); }
    static void insert(void *state, const uint32_t *keys, const double *, size_t n) {
        for (size_t i = 0; i < n; ++i) {
            if (of(state).place[keys[i]] != UINT32_MAX) forbidden("no item is inserted twice");
            of(state).place[keys[i]] = uint32_t(of(state).held.size());
            of(state).held.push_back(keys[i]);
        }
    }
    static void remove(void *state, const uint32_t *keys, size_t n) {
        Uniform &u = of(state);
        for (size_t i = 0; i < n; ++i) {
            const uint32_t at = u.place[keys[i]];
            if (at == UINT32_MAX) forbidden("only items that are there are removed");
            u.place[u.held.back()] = at;
            u.held[at] = u.held.back();
            u.held.pop_back();
            u.place[keys[i]] = UINT32_MAX;
        }
    }
    static void update(void *, const uint32_t *, const double *, size_t) {}
    static size_t sample(void *state, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities) {
        Uniform &u = of(state);
        if (u.held.empty()) return 0;
        for (size_t i = 0; i < n; ++i) {
            keys[i] = u.held[size_t(random->next_double(random->state) * double(u.held.size()))];
            probabilities[i] = 1.0 / double(u.held.size());
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

constexpr uint32_t kWords = 96;  // of a step: each says which step it is
constexpr uint32_t kStack = 3, kForward = 5;
constexpr uint32_t kWorkers = 2, kLearners = 2;

struct Scenario {
    const char *name;
    Cut cut;
    uint32_t burn_in, times;
    uint64_t ending = 3;  // of 24 steps, so many end their episode
};

struct Rig {
    Uniform uniform;
    echo_sampler sampler;
    uint64_t seed = 88172645463325252ull;
    bitgen_t random{};
    Table *items;
    Steps *steps;
    std::atomic<bool> stop{false};
    std::atomic<uint64_t> written[kWorkers]{}, drawn[kLearners]{};  // steps, items

    Rig(const Scenario &s, uint32_t capacity) : uniform(capacity) {
        sampler = {ECHO_SAMPLER_VERSION, sizeof sampler, &uniform, Uniform::insert, Uniform::remove, Uniform::update, Uniform::sample,
                   Uniform::count, Uniform::priorities, nullptr};
        random.state = &seed, random.next_double = unit;
        const uint64_t length = s.burn_in + s.cut.forward;
        std::vector<uint64_t> more;
        if (s.cut.transitions) more = {kWords * 8 * kStack, 4, kWords * 8 * kStack, 4, 4, 4, 1};
        else more = {kWords * 8 * kStack * length, 4 * length, length, length, sizeof(Span)};
        items = new Table({sizeof(Span)}, capacity, 8, {1, -1e300, 1e300, 1}, s.times, &sampler, true, nullptr, &random, -1, {}, 0, more);
        const View view{s.burn_in, {kStack, 1}, true, s.cut.transitions ? 1 : -1, false, 0.5, s.cut.slices ? uint32_t(more.size()) : 0};
        steps = new Steps({sizeof(Mark), kWords * 8, 4}, capacity, s.cut, view, items, -1);
    }
    ~Rig() {
        items->detach();
        steps->release();
        items->release();
    }

    // Wait until every worker has written and every learner has drawn. A sanitizer on a busy machine takes seconds for a batch.
    void wait_until_all_have_run() const {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        const auto idle = [](const std::atomic<uint64_t> &count) { return count.load() == 0; };
        while (std::any_of(std::begin(written), std::end(written), idle) || std::any_of(std::begin(drawn), std::end(drawn), idle)) {
            if (std::chrono::steady_clock::now() > end) forbidden("everybody gets their turn");
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }

    void work(uint32_t index, uint64_t ending) {
        const uint64_t client = index + 1;
        uint64_t state = 1234567 + client * 7919, at[3] = {}, words[kWords];
        while (!stop.load()) {
            echo_run run;
            const int status = steps->claim(1 + next(&state) % 6, &run);
            if (status == ECHO_CLOSED) return;
            if (status != ECHO_OK) {
                steps->wait_space(1'000'000);
                continue;
            }
            if (next(&state) % 32 == 0) {
                steps->abort(run);
                continue;
            }
            for (uint32_t i = 0; i < run.count; ++i) {
                const uint64_t stream = next(&state) % 3, dice = next(&state) % 24, number = at[stream]++;
                const Mark mark{client << 16 | stream, number << 8 | (dice < ending ? dice % 3 + 1 : dice == ending ? 4 | 2 : 0)};
                std::fill_n(words, kWords, client << 48 | stream << 40 | number);
                const float reward = 1;
                copy_racing_out(steps->leaf(run, 0) + i * sizeof mark, reinterpret_cast<const char *>(&mark), sizeof mark);
                copy_racing_out(steps->leaf(run, 1) + i * sizeof words, reinterpret_cast<const char *>(words), sizeof words);
                copy_racing_out(steps->leaf(run, 2) + i * 4, reinterpret_cast<const char *>(&reward), 4);
            }
            if (next(&state) % 64 == 0) std::this_thread::yield();
            steps->commit(run);
            written[index].fetch_add(run.count);
            if (next(&state) % 200 == 0) steps->end_streams(client);
        }
    }

    // The step that a row of a batch shows.
    static uint64_t step(const char *row) {
        uint64_t words[kWords];
        std::memcpy(words, row, sizeof words);
        for (uint64_t word : words)
            if (word != words[0]) forbidden("no batch has a torn step");
        return words[0];
    }
    // A stack's frames are steps that follow each other, or the first one again.
    static uint64_t stacked(const char *row) {
        uint64_t before = step(row);
        bool begun = false;
        for (uint32_t k = 1; k < kStack; ++k) {
            const uint64_t now = step(row + k * kWords * 8);
            if (now != before + 1 && (begun || now != before)) forbidden("the frames of a stack follow each other");
            begun = begun || now != before;
            before = now;
        }
        return before;
    }

    void learn(uint32_t index, const Scenario &s) {
        const uint32_t n = 8, length = s.burn_in + s.cut.forward;
        while (!stop.load()) {
            Batch *batch = items->take_batch(n);
            const Answer answer = items->sample(batch);
            if (answer == kDrawn) {
                drawn[index].fetch_add(n);
                for (uint32_t i = 0; i < n; ++i) s.cut.transitions ? transition(batch, i, s) : window(batch, i, length);
            }
            items->give_back(batch);
            if (answer != kDrawn) items->wait_ready(n, 1'000'000);
        }
    }
    static void window(const Batch *batch, uint32_t i, uint32_t length) {
        const char *const frames = batch->leaf[1] + uint64_t(i) * length * kStack * kWords * 8;
        const char *const mask = batch->leaf[3] + uint64_t(i) * length, *const ends = batch->leaf[4] + uint64_t(i) * length;
        uint64_t before = 0;
        bool any = false, over = false;
        for (uint32_t t = 0; t < length; ++t) {
            if (!mask[t]) {
                over = any;
                continue;
            }
            if (over) forbidden("what is masked lies at the ends of a window");
            const uint64_t now = stacked(frames + uint64_t(t) * kStack * kWords * 8);
            if (any && now != before + 1) forbidden("the steps of a window follow each other");
            if (any && ends[t - 1]) forbidden("no window reaches over the end of an episode");
            before = now, any = true;
        }
        if (!any) forbidden("every window has a step");
    }
    static void transition(const Batch *batch, uint32_t i, const Scenario &s) {
        const uint64_t from = stacked(batch->leaf[1] + uint64_t(i) * kStack * kWords * 8);
        const uint64_t to = stacked(batch->leaf[3] + uint64_t(i) * kStack * kWords * 8);
        const bool terminated = batch->leaf[7][i];
        const float discount = reinterpret_cast<const float *>(batch->leaf[6])[i];
        const uint64_t k = to - from + terminated;
        if (k < 1 || k > s.cut.forward - 1) forbidden("a transition leads one to n steps on in its stream");
        if (discount != float(1.0 / double(1 << k))) forbidden("the discount is gamma^k");
        if (reinterpret_cast<const float *>(batch->leaf[5])[i] != 2 - 2 * discount) forbidden("the return is that of k rewards");
    }
};

void play(const Scenario &s, double seconds) {
    Rig rig(s, 61);
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < kWorkers; ++i) threads.emplace_back([&, i] { rig.work(i, s.ending); });
    for (uint32_t i = 0; i < kLearners; ++i) threads.emplace_back([&, i] { rig.learn(i, s); });
    std::this_thread::sleep_for(std::chrono::milliseconds(int(seconds * 1000)));
    rig.wait_until_all_have_run();
    // A pause holds everything up, and nothing is lost by it.
    rig.items->pause();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    rig.items->resume();
    rig.steps->flush();
    std::this_thread::sleep_for(std::chrono::milliseconds(int(seconds * 100)));
    rig.stop = true;
    rig.items->close();
    for (std::thread &thread : threads) thread.join();
    const Counters c = rig.items->counters();
    if (uint64_t(c.size) != rig.uniform.held.size()) forbidden("the table and its sampler have the same items");
    std::printf("%s: %llu steps, %llu items drawn, %llu redrawn\n", s.name, (unsigned long long)rig.steps->counters().steps,
                (unsigned long long)(rig.drawn[0] + rig.drawn[1]), (unsigned long long)c.redrawn);
}

}  // namespace

int main(int argc, char **argv) {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // after a forbidden outcome it says which scenarios went well
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    const Scenario scenarios[] = {
        {"windows", {2 + kStack - 1, kForward, 2, true, false, false, false}, 2, 0},
        {"windows, each twice", {2 + kStack - 1, kForward, 2, true, false, false, false}, 2, 2},
        {"transitions", {kStack - 1, 4, 1, false, true, false, false}, 0, 0},
        {"slices by steps", {kStack - 1, kForward, 1, false, false, true, true}, 0, 0},
        {"slices by episodes", {kStack - 1, kForward, 1, true, false, true, false}, 0, 0},
        // Hardly any episode is long enough for a slice, so the last item often goes while it is gathered.
        {"slices of rare episodes", {kStack - 1, kForward, 1, false, false, true, false}, 0, 0, 12},
        {"slices of rare episodes by steps", {kStack - 1, kForward, 1, false, false, true, true}, 0, 0, 12},
    };
    for (const Scenario &s : scenarios) play(s, seconds);
    std::puts("no forbidden outcome");
}
