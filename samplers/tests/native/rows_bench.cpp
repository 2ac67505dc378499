// Nanoseconds per draw and per update of the native samplers, in batches of 256: python samplers/tests/test_native.py [rows ...]
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "hot_cold.hpp"
#include "random.hpp"
#include "uniform.hpp"

using namespace echo_samplers;

static Random random_;

static double now() {
    return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static double resident() {
    size_t total = 0, pages = 0;
    std::FILE *file = std::fopen("/proc/self/statm", "r");
    if (!file || std::fscanf(file, "%zu %zu", &total, &pages) != 2) pages = 0;
    if (file) std::fclose(file);
    return static_cast<double>(pages) * 4096;
}

template <class Sampler, class... Options>
static void measure(const char *name, size_t rows, Options... options) {
    constexpr size_t kBatch = 256, kBatches = 500;
    const double empty = resident();
    Sampler sampler(options...);
    std::vector<Row> keys(kBatch), out(kBatch);
    std::vector<double> priorities(kBatch), probabilities(kBatch);
    double begin = now();
    for (size_t row = 0; row + kBatch <= rows; row += kBatch) {
        for (size_t i = 0; i < kBatch; ++i) keys[i] = static_cast<Row>(row + i), priorities[i] = 0.01 + random_.real();
        sampler.insert(keys.data(), priorities.data(), kBatch);
    }
    const double insert = (now() - begin) / static_cast<double>(rows), bytes = (resident() - empty) / static_cast<double>(rows);
    std::vector<std::vector<Row>> some(kBatches, std::vector<Row>(kBatch));
    for (auto &batch : some)
        for (Row &row : batch) row = static_cast<Row>(random_(rows / kBatch * kBatch));
    double draw = 1e18, update = 1e18;
    for (int turn = 0; turn < 9; ++turn) {  // the best of several turns counts, because others use the machine too
        begin = now();
        for (size_t i = 0; i < kBatches; ++i) sampler.sample(&random_.door, kBatch, out.data(), probabilities.data());
        draw = std::min(draw, (now() - begin) / (kBatch * kBatches));
        begin = now();
        for (const auto &batch : some) sampler.update(batch.data(), priorities.data(), kBatch);
        update = std::min(update, (now() - begin) / (kBatch * kBatches));
    }
    std::printf("%-28s %9zu rows: insert %6.1f, draw %6.1f, update %6.1f ns; %5.2f bytes\n", name, rows, insert, draw, update, bytes);
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; ++i) {
        const size_t rows = std::strtoull(argv[i], nullptr, 10);
        measure<Prioritized>("prioritized, alpha 0.6", rows, rows, 0.6, 1e-6, false);
        measure<Prioritized>("prioritized, alpha 1", rows, rows, 1.0, 1e-6, false);
        measure<Prioritized>("stratified, alpha 0.6", rows, rows, 0.6, 1e-6, true);
        measure<Uniform>("uniform", rows, rows, true);
        measure<Uniform>("uniform, no replacement", rows, rows, false);
        measure<Ordered>("fifo", rows, rows, false);
        measure<Heap>("max_heap", rows, rows, true);
        const char *names[] = {"hot_cold", "hot_cold, softmax", "hot_cold, rank", "hot_cold, robust"};
        for (int weighting = 0; weighting < 4; ++weighting)
            measure<HotCold>(names[weighting], rows, HotColdOptions{rows, rows / 5, 0.7, 0, weighting, 0.6, 1e-6, 1.0, false, 0.8, 0.5});
    }
}
