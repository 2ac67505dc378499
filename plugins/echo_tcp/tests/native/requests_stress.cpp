// Stress test of learner/requests.hpp: loops that put requests, and threads that carry them out. Every request must be carried out once, those of one
// client in order and never two at a time, and short requests must not wait for ever behind one that takes long. The argument is seconds.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include "../../src/echo_tcp/learner/requests.hpp"

using namespace echo_tcp::learner;
using Clock = std::chrono::steady_clock;

static constexpr unsigned clients = 7, threads = 4, putters = 2;

#define CHECK(condition)                                             \
    do {                                                             \
        if (!(condition)) {                                          \
            std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
            std::abort();                                            \
        }                                                            \
    } while (0)

struct Client {
    std::atomic<bool> busy{false};
    std::atomic<std::uint64_t> done{0};
};

static void carry_out(Requests &requests, Client *all, std::uint64_t key, std::uint64_t number, std::chrono::microseconds time) {
    Client &client = all[key];
    CHECK(!client.busy.exchange(true));
    CHECK(client.done.load() + 1 == number);
    const auto until = Clock::now() + time;
    while (Clock::now() < until) std::this_thread::yield();
    client.done.store(number);
    client.busy.store(false);
    requests.done(key % 2, key);
}

// Random requests, of which some take long, until `seconds` have passed.
static std::uint64_t in_order(double seconds) {
    Requests requests;
    Client all[clients];
    std::uint64_t put[clients] = {};
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
            std::minstd_rand random(i + 1);
            while (auto request = requests.take())
                carry_out(requests, all, request->client, request->number, std::chrono::microseconds(random() % 64 == 0 ? 500 : random() % 4));
        });
    std::vector<std::thread> putting;
    for (unsigned i = 0; i < putters; ++i)
        putting.emplace_back([&, i] {
            std::minstd_rand random(i + 100);
            const auto until = Clock::now() + std::chrono::duration<double>(seconds);
            while (Clock::now() < until) {
                const std::uint64_t key = random() % clients / putters * putters + i;  // each client has one loop
                if (key >= clients) continue;
                requests.put({key % 2, key, ++put[key], "payload"});
                if (random() % 16 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
            }
        });
    for (std::thread &thread : putting) thread.join();
    requests.end();
    for (std::thread &thread : running) thread.join();
    std::uint64_t total = 0;
    for (unsigned key = 0; key < clients; ++key) {
        CHECK(all[key].done.load() == put[key]);
        CHECK(!requests.has(key % 2, key));
        total += put[key];
    }
    return total;
}

// All threads but one are held up, each by one request. The last one must carry out all others, however they come.
static void beside_slow_ones() {
    Requests requests;
    std::atomic<bool> go{false};
    std::atomic<unsigned> held{0}, done{0};
    std::vector<std::thread> running;
    for (unsigned i = 0; i < threads; ++i)
        running.emplace_back([&] {
            while (auto request = requests.take()) {
                if (request->client < threads - 1) {
                    held.fetch_add(1);
                    while (!go.load()) std::this_thread::yield();
                } else {
                    done.fetch_add(1);
                }
                requests.done(request->group, request->client);
            }
        });
    const auto wait = [](auto ready) {
        const auto until = Clock::now() + std::chrono::seconds(60);
        while (!ready()) {
            CHECK(Clock::now() < until);
            std::this_thread::yield();
        }
    };
    for (unsigned i = 0; i < threads - 1; ++i) requests.put({0, i, 1, ""});
    wait([&] { return held.load() == threads - 1; });
    for (unsigned i = 0; i < 100; ++i) requests.put({0, threads + i, 1, ""});  // at once, and behind a thread that is at work
    wait([&] { return done.load() == 100; });
    for (unsigned i = 0; i < 100; ++i) {  // one at a time
        requests.put({0, threads, 2 + i, ""});
        wait([&] { return done.load() == 101 + i; });
    }
    go.store(true);
    requests.end();
    for (std::thread &thread : running) thread.join();
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
    std::uint64_t total = 0, rounds = 0;
    const auto until = Clock::now() + std::chrono::duration<double>(seconds);
    do {
        total += in_order(seconds / 5);
        beside_slow_ones();
        ++rounds;
    } while (Clock::now() < until);
    CHECK(total > 0);
    std::printf("%llu requests in %llu rounds, no forbidden outcome\n", static_cast<unsigned long long>(total), static_cast<unsigned long long>(rounds));
}
