// Hammers the learner's loops from many sides, under ThreadSanitizer or AddressSanitizer:
//
//     g++ -std=c++20 -O1 -g -fsanitize=thread -I echo_core/src/echo_core/include learner_stress.cpp -pthread
//     ./a.out [seconds per scenario, default 2]
//
// Workers write frames in pieces of random sizes, hang up in the middle of them, stall, come back and
// resume; a consumer reads every batch. FORBIDDEN, each ends the program:
//   torn       a sample whose bytes are not those of one sample that was sent
//   twice      a sample that is in two slots
//   lost       a sample that was acknowledged and is in no slot
//   ahead      an acknowledgement of samples that were never sent
//   mixed      weights whose chunks do not form one whole version
//   stuck      a scenario that does not end
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <cstdio>
#include <map>
#include <random>
#include <set>

#include "../../../../echo_core/src/echo_core/store/door/capi_table.hpp"
#include "../../../../echo_core/src/echo_core/store/stream/ring.hpp"
#include "../../src/echo_tcp/learner/learner.hpp"

using namespace echo_tcp;
using namespace echo_tcp::learner;
using Clock = std::chrono::steady_clock;

[[noreturn]] static void forbidden(const char *outcome, const std::string &detail) {
    std::fprintf(stderr, "FORBIDDEN: %s: %s\n", outcome, detail.c_str());
    std::_Exit(1);
}

// A sample: leaf 0 holds its worker and number, leaf 1 bytes that are computed from them, and leaf 2 the number again.
struct Shape {
    std::uint64_t filler;  // number of bytes of leaf 1
    std::uint64_t bytes() const { return 16 + filler + 8; }
};

static char pattern(std::uint64_t worker, std::uint64_t number, std::uint64_t i) {
    return char(worker * 131 + number * 31 + i * 7 + (i >> 8));
}
static void write_leaf(char *to, int leaf, std::uint64_t worker, std::uint64_t number, const Shape &shape) {
    if (leaf == 0) {
        std::memcpy(to, &worker, 8);
        std::memcpy(to + 8, &number, 8);
    } else if (leaf == 1) {
        for (std::uint64_t i = 0; i < shape.filler; ++i) to[i] = pattern(worker, number, i);
    } else {
        std::memcpy(to, &number, 8);
    }
}

class World {
public:
    World(Shape shape, std::uint64_t batch, std::uint64_t buffers, unsigned threads, std::uint64_t staging = 64 << 20)
        : shape(shape), ring_(new echo::Ring({16, shape.filler, 8}, batch, buffers)), door_(echo::open_door(ring_)),
          learner(new Learner(echo::capi_table(), reinterpret_cast<echo_store *>(door_), threads, staging, 30'000'000'000, std::make_shared<Requests>(), 0)) {
        consumer_ = std::thread([this] { consume(); });
    }
    // When the workers are done, every acknowledged sample must have been seen.
    void finish(const std::vector<std::uint64_t> &acknowledged) {
        learner->stop(clock_ns() + 2'000'000'000);
        const auto until = Clock::now() + std::chrono::seconds(5);
        // The last batch is not full, so its samples are committed but never taken.
        std::uint64_t total = 0, wanted = 0;
        while (Clock::now() < until) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            const auto c = ring_->counters();
            if (c.stored < ring_->batch_size()) break;
        }
        over_ = true;
        ring_->close();
        consumer_.join();
        const auto c = ring_->counters();
        for (std::uint64_t n : acknowledged) wanted += n;
        for (auto &[worker, seen] : seen_) total += seen.size();
        if (total + c.stored < wanted) forbidden("lost", std::to_string(wanted - total - c.stored) + " acknowledged samples");
        learner.reset();
        door_->release();
        ring_->release();
        std::printf("  %llu samples taken, %llu acknowledged, %llu aborted slots\n", (unsigned long long)total, (unsigned long long)wanted,
                    (unsigned long long)c.aborted);
    }

    const Shape shape;

private:
    echo::Ring *ring_;
    echo::Door *door_;

public:
    std::unique_ptr<Learner> learner;
    std::atomic<bool> pause{false};  // while true, the consumer takes nothing

private:
    void consume() {
        while (!over_) {
            if (pause) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                continue;
            }
            ring_->wait_ready(50'000'000);
            const int b = ring_->take();
            if (b < 0) continue;
            for (std::uint64_t s = 0; s < ring_->batch_size(); ++s) check(b, s);
            ring_->give_back(b);
        }
    }
    void check(int buffer, std::uint64_t slot) {
        std::uint64_t worker, number, again;
        std::memcpy(&worker, ring_->batch_leaf(buffer, 0) + slot * 16, 8);
        std::memcpy(&number, ring_->batch_leaf(buffer, 0) + slot * 16 + 8, 8);
        std::memcpy(&again, ring_->batch_leaf(buffer, 2) + slot * 8, 8);
        const char *filler = ring_->batch_leaf(buffer, 1) + slot * shape.filler;
        const std::string who = "worker " + std::to_string(worker) + " number " + std::to_string(number);
        if (number != again) forbidden("torn", who + " and " + std::to_string(again));
        for (std::uint64_t i = 0; i < shape.filler; i += shape.filler > 256 ? 37 : 1)
            if (filler[i] != pattern(worker, number, i)) forbidden("torn", who + " at byte " + std::to_string(i));
        if (!seen_[worker].insert(number).second) forbidden("twice", who);
    }

    std::atomic<bool> over_{false};
    std::map<std::uint64_t, std::set<std::uint64_t>> seen_;
    std::thread consumer_;
};

struct Habits {
    std::uint32_t most_per_frame = 8;
    int hang_up_one_in = 0;   // hangs up after one piece in so many
    int stall_one_in = 0;     // stalls after one piece in so many
    std::size_t most_per_piece = 100'000;
    bool subscribe = false;
    bool again = false;       // send some acknowledged samples again when resuming
};

// One worker on a thread of its own, until `until`; returns how many samples were acknowledged.
class Worker {
public:
    Worker(World &world, std::uint64_t id, Habits habits) : world_(world), id_(id), habits_(habits), random_(unsigned(id) * 7919 + 1) {}
    ~Worker() {
        if (fd_ >= 0) close(fd_);
    }

    std::uint64_t run(Clock::time_point until) {
        connect();
        while (Clock::now() < until) {
            if (out_at_ == out_.size()) next_frame();
            if (!talk(true)) connect();
        }
        // At the end, all samples that were sent as a whole are acknowledged, or the learner says goodbye.
        const auto patience = Clock::now() + std::chrono::seconds(20);
        while (acked_ < next_ - 1 || out_at_ < out_.size()) {
            if (Clock::now() > patience) forbidden("stuck", "worker " + std::to_string(id_) + " waits for acknowledgements");
            if (!talk(out_at_ < out_.size())) connect();
        }
        return acked_;
    }

private:
    int roll(int n) { return int(random_() % unsigned(n)); }

    void connect() {
        if (fd_ >= 0) close(fd_);
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) forbidden("stuck", "socketpair");
        fd_ = pair[0];
        NewPeer peer;
        peer.fd = pair[1];
        std::memcpy(peer.client.data(), &id_, 8);
        peer.base = acked_;
        in_.clear();
        out_.clear();
        out_at_ = 0;
        weights_at_ = 0;
        resumed_ = false;
        world_.learner->add(std::move(peer));
        const auto patience = Clock::now() + std::chrono::seconds(20);
        while (!resumed_) {
            if (Clock::now() > patience) forbidden("stuck", "worker " + std::to_string(id_) + " waits for its resume point");
            talk(false);
        }
        next_ = acked_ + 1;
        if (habits_.again && acked_ > 10) next_ -= std::uint64_t(roll(10));
        sent_ = next_ - 1;
        if (habits_.subscribe) {
            const FrameHeader h = make_header(Kind::subscribe, held_);
            out_.append(reinterpret_cast<const char *>(&h), sizeof h);
        }
    }

    void next_frame() {
        out_.clear();
        out_at_ = 0;
        const std::uint32_t n = 1 + std::uint32_t(roll(int(habits_.most_per_frame)));
        const FrameHeader h = make_header(Kind::data, next_, n * world_.shape.bytes(), n);
        out_.append(reinterpret_cast<const char *>(&h), sizeof h);
        const std::uint64_t sizes[3] = {16, world_.shape.filler, 8};
        for (int leaf = 0; leaf < 3; ++leaf)
            for (std::uint32_t i = 0; i < n; ++i) {
                const std::size_t at = out_.size();
                out_.resize(at + sizes[leaf]);
                write_leaf(out_.data() + at, leaf, id_, next_ + i, world_.shape);
            }
        next_ += n;
        sent_ = next_ - 1;
        if (roll(50) == 0) {
            const FrameHeader ping = make_header(Kind::ping, 77);
            out_.append(reinterpret_cast<const char *>(&ping), sizeof ping);
        }
    }

    // Waits a little for the socket, reads and writes. False if the connection has ended.
    bool talk(bool writing) {
        pollfd p{fd_, short(POLLIN | (writing ? POLLOUT : 0)), 0};
        poll(&p, 1, 20);
        if (p.revents & POLLIN) {
            char buffer[65536];
            const ssize_t got = recv(fd_, buffer, sizeof buffer, 0);
            if (got == 0) return false;
            if (got > 0) in_.append(buffer, std::size_t(got));
            take();
        }
        if (writing && p.revents & POLLOUT) {
            if (habits_.hang_up_one_in != 0 && roll(habits_.hang_up_one_in) == 0) return false;
            if (habits_.stall_one_in != 0 && roll(habits_.stall_one_in) == 0)
                std::this_thread::sleep_for(std::chrono::milliseconds(1 + roll(30)));
            const std::size_t piece = std::min(out_.size() - out_at_, std::size_t(1 + roll(int(habits_.most_per_piece))));
            const ssize_t gone = send(fd_, out_.data() + out_at_, piece, MSG_NOSIGNAL);
            if (gone > 0) out_at_ += std::size_t(gone);
            if (gone < 0 && errno != EAGAIN) return false;
        }
        return true;
    }

    void take() {
        std::size_t at = 0;
        while (in_.size() - at >= sizeof(FrameHeader)) {
            FrameHeader h;
            std::memcpy(&h, in_.data() + at, sizeof h);
            if (in_.size() - at - sizeof h < h.length) break;
            const char *payload = in_.data() + at + sizeof h;
            at += sizeof h + h.length;
            if (h.kind == std::uint8_t(Kind::ack)) {
                if (resumed_ && h.seq > sent_) forbidden("ahead", "worker " + std::to_string(id_) + " at " + std::to_string(h.seq));
                if (h.seq < acked_) forbidden("lost", "worker " + std::to_string(id_) + " is told less than before");
                acked_ = h.seq;
                resumed_ = true;
            } else if (h.kind == std::uint8_t(Kind::weights)) {
                weights(h, payload);
            } else if (h.kind == std::uint8_t(Kind::bye)) {
                // While the learner runs, only a breach of the protocol leads to a goodbye.
                forbidden("stuck", std::string(payload, h.length));
            }
        }
        in_.erase(0, at);
    }

    // Every byte of a version is its number; meta has one byte, which is the number too.
    void weights(const FrameHeader &h, const char *payload) {
        if ((h.flags & flag_first_chunk) != (weights_at_ == 0 ? flag_first_chunk : 0)) forbidden("mixed", "first chunk");
        for (std::uint64_t i = 0; i < h.length; ++i) {
            if (weights_at_ + i < 4) continue;  // the size of meta
            if (payload[i] != char(h.seq)) forbidden("mixed", "version " + std::to_string(h.seq));
        }
        weights_at_ += h.length;
        if (!(h.flags & flag_last_chunk)) return;
        if (weights_at_ != 5 + h.seq * 1000) forbidden("mixed", "size");
        weights_at_ = 0;
        held_ = h.seq;
        const FrameHeader receipt = make_header(Kind::receipt, h.seq, 8);
        std::string frame(reinterpret_cast<const char *>(&receipt), sizeof receipt);
        frame.append(8, '\0');
        // Between two frames, behind the bytes that are being sent.
        if (out_at_ == out_.size()) {
            out_ = frame;
            out_at_ = 0;
        } else {
            out_ += frame;
        }
    }

    World &world_;
    const std::uint64_t id_;
    const Habits habits_;
    std::mt19937 random_;
    int fd_ = -1;
    std::string in_, out_;
    std::size_t out_at_ = 0;
    std::uint64_t next_ = 1, sent_ = 0, acked_ = 0, held_ = 0, weights_at_ = 0;
    bool resumed_ = false;
};

static std::vector<std::uint64_t> run_workers(World &world, int count, Habits habits, double seconds, std::uint64_t first_id = 1) {
    const auto until = Clock::now() + std::chrono::milliseconds(int(seconds * 1000));
    std::vector<std::uint64_t> acknowledged(std::size_t(count), 0);
    std::vector<std::thread> threads;
    for (int i = 0; i < count; ++i)
        threads.emplace_back([&, i] { acknowledged[std::size_t(i)] = Worker(world, first_id + std::uint64_t(i), habits).run(until); });
    for (auto &t : threads) t.join();
    return acknowledged;
}

// The part of Python: takes events and reads the figures meanwhile.
class Onlooker {
public:
    explicit Onlooker(Learner &learner) : thread_([this, &learner] {
        while (!over_) {
            for (const Event &e : learner.take_events()) {
                if (e.kind == Event::added) learner.begin(e.peer);
                if (e.kind == Event::lost) learner.forget(e.peer);
            }
            learner.peers();
            learner.held();
            learner.tell_when_holding();
            learner.totals();
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
    }) {}
    ~Onlooker() {
        over_ = true;
        thread_.join();
    }

private:
    std::atomic<bool> over_{false};
    std::thread thread_;
};

static void scenario(const char *name, Shape shape, std::uint64_t batch, std::uint64_t buffers, unsigned threads, int workers, Habits habits,
                     double seconds, std::uint64_t staging = 64 << 20) {
    std::printf("%s\n", name);
    World world(shape, batch, buffers, threads, staging);
    std::vector<std::uint64_t> acknowledged;
    {
        Onlooker onlooker(*world.learner);
        acknowledged = run_workers(world, workers, habits, seconds);
    }
    world.finish(acknowledged);
}

static void weights_meanwhile(double seconds) {
    std::printf("weights while experience streams\n");
    World world({24}, 64, 3, 2);
    std::vector<std::string> versions;
    for (int v = 1; v <= 900; ++v) versions.emplace_back(std::size_t(v) * 1000, char(v));
    std::atomic<bool> over{false};
    std::vector<std::uint64_t> acknowledged;
    {
        Onlooker onlooker(*world.learner);
        std::thread publisher([&] {
            for (std::uint64_t v = 1; v <= versions.size() && !over; ++v) {
                const std::string &w = versions[v - 1];
                world.learner->publish(v, 0, std::string("\1\0\0\0", 4) + char(v), w.data(), w.size(), v);
                std::this_thread::sleep_for(std::chrono::milliseconds(3));
            }
        });
        Habits habits;
        habits.subscribe = true;
        habits.hang_up_one_in = 500;
        acknowledged = run_workers(world, 3, habits, seconds);
        over = true;
        publisher.join();
    }
    world.finish(acknowledged);
}

// The learner is closed under full load. All samples that were acknowledged until then must have come.
static void closing(double seconds) {
    std::printf("closing under load\n");
    const auto until = Clock::now() + std::chrono::milliseconds(int(seconds * 1000));
    while (Clock::now() < until) {
        auto *ring = new echo::Ring({16, 20000, 8}, 4, 2);
        auto *door = echo::open_door(ring);
        {
            Learner learner(echo::capi_table(), reinterpret_cast<echo_store *>(door), 2, 1 << 20, 30'000'000'000, std::make_shared<Requests>(), 0);
            std::vector<int> ends;
            std::atomic<bool> over{false};
            for (std::uint64_t i = 0; i < 6; ++i) {
                int pair[2];
                if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) != 0) forbidden("stuck", "socketpair");
                NewPeer peer;
                peer.fd = pair[1];
                std::memcpy(peer.client.data(), &i, 8);
                learner.add(std::move(peer));
                ends.push_back(pair[0]);
            }
            Onlooker onlooker(learner);
            std::thread flood([&] {
                std::string frame(24 + 20024, 'x');
                std::vector<std::uint64_t> number(ends.size(), 1);
                std::vector<std::size_t> at(ends.size(), 0);
                while (!over)
                    for (std::size_t i = 0; i < ends.size(); ++i) {
                        const FrameHeader h = make_header(Kind::data, number[i], 20024, 1);
                        std::memcpy(frame.data(), &h, sizeof h);
                        const ssize_t gone = send(ends[i], frame.data() + at[i], frame.size() - at[i], MSG_NOSIGNAL);
                        if (gone <= 0) continue;
                        at[i] += std::size_t(gone);
                        if (at[i] == frame.size()) {
                            at[i] = 0;
                            ++number[i];
                        }
                    }
            });
            std::this_thread::sleep_for(std::chrono::milliseconds(15));
            const auto began = Clock::now();
            learner.stop(clock_ns() + 20'000'000);
            if (Clock::now() - began > std::chrono::seconds(10)) forbidden("stuck", "stop()");
            over = true;
            flood.join();
            for (int fd : ends) close(fd);
        }
        ring->close();
        door->release();
        ring->release();
    }
}

int main(int argc, char **argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 2.0;
    setvbuf(stdout, nullptr, _IONBF, 0);
    Habits plain;
    scenario("small frames, one loop", {24}, 64, 3, 1, 4, plain, seconds);
    scenario("large frames, one loop", {30'000}, 8, 3, 1, 4, plain, seconds);
    scenario("frames larger than the store", {3'000}, 4, 2, 1, 3, {.most_per_frame = 40}, seconds);
    scenario("little staging memory", {30'000}, 4, 2, 2, 6, {.most_per_frame = 16}, seconds, 1 << 20);
    Habits rude{.most_per_frame = 20, .hang_up_one_in = 100, .stall_one_in = 100, .again = true};
    scenario("small frames, hanging up and stalling", {24}, 16, 2, 2, 6, rude, seconds);
    rude.most_per_piece = 60'000;
    scenario("large frames, hanging up and stalling", {20'000}, 8, 2, 2, 6, rude, seconds);
    scenario("crumbs", {20'000}, 8, 3, 1, 3, {.most_per_frame = 3, .most_per_piece = 700}, seconds);
    scenario("batches of one", {24}, 1, 3, 1, 4, plain, seconds);
    scenario("batches of one, loops that take turns", {24}, 1, 3, 3, 6, rude, seconds);
    weights_meanwhile(seconds);
    closing(seconds);
    std::puts("no forbidden outcome");
}
