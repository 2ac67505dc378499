// Runs long random histories of every native sampler, with capacities around the sizes of the tree's nodes. test_native.py builds it with
// sanitizers. Forbidden outcomes:
// * A drawn row is not held or had weight 0.
// * A probability is outside (0, 1].
// * The count is not the number of held rows.
// * A row is drawn twice without replacement.
// * A restored sampler makes other draws than the saved one.
//
//   rows_stress [seconds]
#include <chrono>
#include <cstdio>
#include <functional>
#include <memory>

#include "hot_cold.hpp"
#include "random.hpp"
#include "uniform.hpp"

using namespace echo_samplers;

static Random random_;

static void fail(const char *what, const char *name, uint64_t capacity) {
    std::printf("FORBIDDEN: %s (%s of %llu rows)\n", what, name, static_cast<unsigned long long>(capacity));
    std::exit(1);
}

struct Subject {
    const char *name;
    bool replacement;
    bool weighs;  // a priority of 0 is never drawn
    std::function<std::unique_ptr<RowSampler>(uint64_t)> make;
};

static void history(const Subject &subject, uint64_t capacity, int steps) {
    std::unique_ptr<RowSampler> sampler = subject.make(capacity);
    std::vector<double> model(capacity, -1.0);  // priority of each row, -1: not held
    std::vector<Row> keys, out;
    std::vector<double> priorities, probabilities;
    size_t held = 0;
    for (int step = 0; step < steps; ++step) {
        keys.clear();
        priorities.clear();
        const uint64_t action = random_(10), start = random_(capacity), stride = random_(2) ? 1 : 1 + random_(capacity);
        const uint64_t most = 1 + random_(std::min<uint64_t>(capacity, 700));
        std::vector<bool> taken(capacity);
        for (uint64_t i = 0; i < most; ++i) {
            const Row row = static_cast<Row>((start + i * stride) % capacity);
            const bool fits = action < 4 ? model[row] < 0 : model[row] >= 0;
            if (!fits || (taken[row] && (action < 4 || action >= 8))) continue;
            taken[row] = true;
            keys.push_back(row);
            priorities.push_back(random_(4) ? std::pow(10.0, 40 * random_.real() - 20) : 0.0);
        }
        echo_sampler door = sampler->door(true);
        if (action < 4) {
            const bool given = random_(3);
            door.insert(door.state, keys.data(), given ? priorities.data() : nullptr, keys.size());
            for (size_t i = 0; i < keys.size(); ++i) model[keys[i]] = given ? priorities[i] : 1.0;
            held += keys.size();
        } else if (action < 8) {
            door.update(door.state, keys.data(), priorities.data(), keys.size());
            for (size_t i = 0; i < keys.size(); ++i) model[keys[i]] = priorities[i];
        } else {
            door.remove(door.state, keys.data(), keys.size());
            for (Row key : keys) model[key] = -1.0;
            held -= keys.size();
        }
        if (door.count(door.state) != held) fail("a count that is not the number of held rows", subject.name, capacity);

        const size_t n = 1 + random_(600);
        out.assign(n, 0);
        probabilities.assign(n, 0);
        const Random before = random_;
        bitgen_t generator = random_.door;
        const size_t got = door.sample(door.state, &generator, n, out.data(), probabilities.data());
        if (got != 0 && got != n) fail("part of a batch", subject.name, capacity);
        if (got == 0 && held >= n && !subject.weighs) fail("nothing drawn though there was enough", subject.name, capacity);
        std::vector<bool> seen(capacity);
        for (size_t i = 0; i < got; ++i) {
            if (out[i] >= capacity || model[out[i]] < 0) fail("a drawn row that is not held", subject.name, capacity);
            if (subject.weighs && model[out[i]] == 0) fail("a drawn row of weight 0", subject.name, capacity);
            if (!(probabilities[i] > 0 && probabilities[i] <= 1)) fail("a probability outside (0, 1]", subject.name, capacity);
            if (!subject.replacement && seen[out[i]]) fail("a row twice", subject.name, capacity);
            seen[out[i]] = true;
        }
        if (random_(16) == 0) {
            State state;
            sampler->save(state);
            if (!sampler->check(state).empty()) fail("an invalid state", subject.name, capacity);
            std::unique_ptr<RowSampler> again = subject.make(capacity);
            again->load(state);
            Random same;
            same.word = before.word;
            std::vector<Row> rows(n);
            std::vector<double> said(n);
            if (again->sample(&same.door, n, rows.data(), said.data()) != got) fail("another number after a restore", subject.name, capacity);
            for (size_t i = 0; i < got; ++i)
                if (rows[i] != out[i] || said[i] != probabilities[i]) fail("another draw after a restore", subject.name, capacity);
            if (random_(2)) sampler = std::move(again);
        }
        door = sampler->door(true);
        if (held) {
            const size_t some = 1 + random_(held);
            std::vector<Row> gone(some);
            const size_t victims = door.victims(door.state, some, gone.data());
            for (size_t i = 0; i < victims; ++i)
                if (model[gone[i]] < 0) fail("a victim that is not held", subject.name, capacity);
        }
    }
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1.0;
    std::vector<Subject> subjects = {
        {"fifo", false, false, [](uint64_t rows) { return std::make_unique<Ordered>(rows, false); }},
        {"lifo", false, false, [](uint64_t rows) { return std::make_unique<Ordered>(rows, true); }},
        {"uniform", true, false, [](uint64_t rows) { return std::make_unique<Uniform>(rows, true); }},
        {"uniform without replacement", false, false, [](uint64_t rows) { return std::make_unique<Uniform>(rows, false); }},
        {"min_heap", false, false, [](uint64_t rows) { return std::make_unique<Heap>(rows, false); }},
        {"max_heap", false, false, [](uint64_t rows) { return std::make_unique<Heap>(rows, true); }},
        {"prioritized", true, true, [](uint64_t rows) { return std::make_unique<Prioritized>(rows, 0.6, 0.0, false); }},
        {"prioritized in strata", true, true, [](uint64_t rows) { return std::make_unique<Prioritized>(rows, 1.0, 0.0, true); }},
    };
    for (int weighting = 0; weighting < 4; ++weighting)
        subjects.push_back({"hot_cold", true, false, [weighting](uint64_t rows) {
            return std::make_unique<HotCold>(HotColdOptions{rows, rows / 4 + 1, 0.7, 100, weighting, 0.6, 1e-6, 1.0, false, 0.8, 0.5});
        }});
    const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
    do {
        for (const Subject &subject : subjects)
            for (uint64_t capacity : {1, 2, 16, 17, 255, 256, 257, 4096, 4100}) history(subject, capacity, 40);
    } while (std::chrono::steady_clock::now() < end);
    std::printf("no forbidden outcome\n");
}
