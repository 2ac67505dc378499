// Hammers both ends of samples over UCX from many sides, without UCX, under ThreadSanitizer or AddressSanitizer:
//
//     g++ -std=c++20 -O1 -g -fsanitize=thread -I echo_core/src/echo_core/include rdma_stress.cpp -pthread
//     ./a.out [seconds per scenario, default 2]
//
// Workers fill windows; connections break at any moment, and they dial again and resume; a consumer reads every batch, with pauses in which the
// store is full. FORBIDDEN, each ends the program:
//   torn       a sample whose bytes are not those of one sample that was sent
//   twice      a sample that is in two slots
//   ahead      a learner that has samples which were never sent
//   lost       a sample that was acknowledged and is in no batch and not in the store
//   stuck      a scenario that does not end
#include <chrono>
#include <cstdio>
#include <set>

#include "../../../../echo_core/src/echo_core/store/door/capi_table.hpp"
#include "../../../../echo_core/src/echo_core/store/stream/ring.hpp"
#include "loopback.hpp"

#include "../../src/echo_rdma/ucx/intake.hpp"

using namespace echo_rdma;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

[[noreturn]] static void forbidden(const char *outcome, const std::string &detail) {
    std::fprintf(stderr, "FORBIDDEN: %s: %s\n", outcome, detail.c_str());
    std::_Exit(1);
}

static char pattern(uint64_t worker, uint64_t number, uint64_t i) { return char(worker * 131 + number * 31 + i * 7 + (i >> 8)); }

struct Scenario {
    const char *title;
    uint64_t filler;                                          // bytes of the second leaf
    bool near;                                                // memory is shared
    uint64_t message_bytes;
    size_t rendezvous;                                        // messages from so many bytes on use rendezvous
    int breaks_ms;                                            // time between two breaks; 0: no breaks
    uint64_t credit_bytes = 1 << 20;
    uint64_t together = 16 << 10;                             // bytes of one message
};

static const Times TIMES{.spin = 20'000, .beat = 20'000'000, .silence = 5'000'000'000, .linger = 200'000'000};

// A learner: its store, the reader of the store, and the resume points of workers.
class Learner {
  public:
    Learner(const Scenario &scenario, int port)
        : scenario_(scenario), ring_(new echo::Ring({16, scenario.filler}, 8, 4)), door_(echo::open_door(ring_)), engine_(new Engine(nullptr, TIMES)) {
        sockaddr_in where{};
        where.sin_port = htons(uint16_t(port));
        engine_->listen(reinterpret_cast<sockaddr *>(&where), sizeof where);
        accepting_ = std::thread([this] {
            while (auto peer = engine_->accept()) serving_.emplace_back([this, peer] { serve(peer); });
        });
        consumer_ = std::thread([this] { consume(); });
    }

    // `wanted` holds the acknowledged numbers of every worker.
    void finish(const std::map<uint64_t, uint64_t> &wanted) {
        engine_->deafen();
        accepting_.join();
        engine_->stop();
        for (auto &thread : serving_) thread.join();
        auto until = Clock::now() + std::chrono::seconds(10);
        while (ring_->counters().stored >= ring_->batch_size())
            if (Clock::now() > until) forbidden("stuck", "full batches are not taken");
        over_ = true;
        ring_->close();
        consumer_.join();
        uint64_t taken = 0, acknowledged = 0;
        for (auto &[worker, numbers] : seen_) taken += numbers.size();
        for (auto &[worker, count] : wanted) acknowledged += count;
        if (taken + ring_->counters().stored < acknowledged) forbidden("lost", std::to_string(acknowledged - taken) + " samples or fewer");
        std::printf("  %llu taken, %llu acknowledged; shown %llu, straight %llu, again %llu, connections %llu\n", (unsigned long long)taken,
                    (unsigned long long)acknowledged, (unsigned long long)shown_.load(), (unsigned long long)direct_.load(),
                    (unsigned long long)again_.load(), (unsigned long long)connections_.load());
        engine_.reset();
        door_->release();
        ring_->release();
    }

  private:
    struct Session {
        std::mutex lock; // one connection of a worker at a time
        uint64_t committed = 0;
    };

    void serve(const std::shared_ptr<Peer> &peer) {
        std::string why;
        if (Piece hello = peer->inbox.take(why); hello.data) {
            uint64_t worker;
            memcpy(&worker, hello.data.get(), sizeof worker);
            std::unique_lock all(sessions_lock_);
            Session &session = sessions_[worker];
            all.unlock();
            std::lock_guard one(session.lock);
            auto intake = std::make_shared<Intake>(echo::capi_table(), reinterpret_cast<echo_store *>(door_), *engine_, session.committed, scenario_.credit_bytes, true);
            engine_->attach(*peer, intake);
            Memory reply = allocate(8);
            memcpy(reply.get(), &session.committed, 8);
            engine_->send(*peer, std::move(reply), 8, true, why);
            while (peer->inbox.take(why).data) {} // until the connection has ended
            stop_intake(*engine_, *intake, *peer);
            auto figures = intake->figures();
            session.committed = figures.committed;
            shown_ += figures.shown;
            direct_ += figures.direct;
            again_ += figures.duplicates;
            connections_++;
        }
        engine_->leave(*peer);
        engine_->release(*peer);
    }

    void consume() {
        std::minstd_rand dice(5);
        while (!over_) {
            ring_->wait_ready(20'000'000);
            int buffer = ring_->take();
            if (buffer < 0) continue;
            if (dice() % 200 == 0) std::this_thread::sleep_for(milliseconds(15)); // longer than a slot is held for parts
            for (uint64_t slot = 0; slot < ring_->batch_size(); slot++) check(buffer, slot);
            ring_->give_back(buffer);
        }
    }

    void check(int buffer, uint64_t slot) {
        uint64_t worker, number;
        memcpy(&worker, ring_->batch_leaf(buffer, 0) + slot * 16, 8);
        memcpy(&number, ring_->batch_leaf(buffer, 0) + slot * 16 + 8, 8);
        std::string who = "worker " + std::to_string(worker) + " number " + std::to_string(number);
        const char *filler = ring_->batch_leaf(buffer, 1) + slot * scenario_.filler;
        for (uint64_t i = 0; i < scenario_.filler; i += scenario_.filler > 256 ? 37 : 1)
            if (filler[i] != pattern(worker, number, i)) forbidden("torn", who + " at byte " + std::to_string(i));
        if (!seen_[worker].insert(number).second) forbidden("twice", who);
    }

    const Scenario &scenario_;
    echo::Ring *ring_;
    echo::Door *door_;
    std::unique_ptr<Engine> engine_;
    std::mutex sessions_lock_;
    std::map<uint64_t, Session> sessions_;
    std::map<uint64_t, std::set<uint64_t>> seen_; // used by the consumer
    std::atomic<uint64_t> shown_{0}, direct_{0}, again_{0}, connections_{0};
    std::atomic<bool> over_{false};
    std::deque<std::thread> serving_;
    std::thread accepting_, consumer_;
};

// One worker: a thread that takes samples, and one that dials, resumes and waits for the connection to end.
static uint64_t work(const Scenario &scenario, uint64_t worker, int port, Clock::time_point end) {
    auto window = std::make_shared<Window>(std::vector<uint64_t>{16, scenario.filler}, 64, scenario.together, 24'000);
    std::atomic<bool> over{false};
    std::thread dialling([&] {
        std::deque<std::unique_ptr<Engine>> engines;
        while (!over) {
            auto engine = std::make_unique<Engine>(nullptr, TIMES);
            sockaddr_in where{};
            where.sin_port = htons(uint16_t(port));
            auto peer = engine->connect(reinterpret_cast<sockaddr *>(&where), sizeof where);
            window->attach(engine.get());
            engine->attach(*peer, window);
            Memory hello = allocate(8);
            memcpy(hello.get(), &worker, 8);
            std::string why;
            engine->send(*peer, std::move(hello), 8, true, why);
            Piece reply = peer->inbox.take(why);
            if (reply.data) {
                uint64_t committed;
                memcpy(&committed, reply.data.get(), 8);
                if (!window->resume(committed, scenario.message_bytes, scenario.near)) forbidden("ahead", "the learner resumes from " + std::to_string(committed));
                while (!peer->inbox.over() && !over) std::this_thread::sleep_for(milliseconds(1));
            }
            window->detach();
            engine->leave(*peer);
            engine->release(*peer);
            engine->stop();
        }
    });
    std::minstd_rand dice{unsigned(worker)};
    std::vector<char> filler;
    std::vector<uint64_t> names;
    uint64_t number = 0;
    while (Clock::now() < end) {
        uint64_t count = 1 + dice() % 5;
        filler.resize(count * scenario.filler);
        names.resize(2 * count);
        for (uint64_t row = 0; row < count; row++) {
            names[2 * row] = worker, names[2 * row + 1] = number + row;
            for (uint64_t i = 0; i < scenario.filler; i++) filler[row * scenario.filler + i] = pattern(worker, number + row, i);
        }
        const void *columns[] = {names.data(), filler.data()};
        if (window->take(columns, count, 5'000'000) == Window::TAKEN) number += count;
    }
    auto until = Clock::now() + std::chrono::seconds(60);
    while (window->figures().acknowledged < number) {
        if (Clock::now() > until) forbidden("stuck", "worker " + std::to_string(worker) + " waits for " + std::to_string(number - window->figures().acknowledged));
        std::this_thread::sleep_for(milliseconds(1));
    }
    over = true;
    dialling.join();
    return number;
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 2;
    loopback::install();
    const Scenario scenarios[] = {
        {"small samples in messages", 24, false, 4096, SIZE_MAX, 10},
        {"samples in parts", 20'000, false, 4096, SIZE_MAX, 25},
        {"rendezvous into slots", 20'000, false, 1 << 20, 8192, 10},
        {"memory that is shared", 3'000, true, 4096, SIZE_MAX, 10},
        {"memory that is shared, and never breaks", 24, true, 4096, SIZE_MAX, 0},
        {"little credit", 3'000, true, 4096, SIZE_MAX, 10, 8'000},
        {"a message each", 24, false, 4096, SIZE_MAX, 10, 1 << 20, 1},
    };
    int port = 1;
    for (auto &scenario : scenarios) {
        std::printf("%s\n", scenario.title);
        std::fflush(stdout);
        loopback::rendezvous = scenario.rendezvous;
        Learner learner(scenario, ++port);
        auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
        std::map<uint64_t, uint64_t> sent;
        std::vector<std::thread> workers;
        for (uint64_t worker = 1; worker <= 3; worker++) {
            sent[worker];
            workers.emplace_back([&, worker] { sent.at(worker) = work(scenario, worker, port, end); });
        }
        for (std::minstd_rand dice(9); scenario.breaks_ms > 0 && Clock::now() < end; std::this_thread::sleep_for(milliseconds(scenario.breaks_ms))) loopback::cut_one(dice);
        for (auto &thread : workers) thread.join();
        learner.finish(sent);
    }
    std::puts("no forbidden outcome");
}
