// Tests the worker's engine against a learner that breaks the connection all the time, under sanitizers.
//
//   g++ -std=c++20 -O1 -g -fsanitize=thread worker_stress.cpp -pthread
//   ./a.out [seconds for each size of sample, default 3]
//
// Several threads send, one by one and in batches, small and large; others flush, wait, ask and
// subscribe. The learner reads in pieces of any size, acknowledges in the middle of frames, and
// hangs up at random points, often in the middle of a frame. Forbidden outcomes, each checked:
//   TORN       a sample whose leaves do not belong together
//   TWICE      a sample of a thread that was committed before
//   LOST       a skipped sample of a thread, or fewer committed samples than were taken over
//   EARLY      wait() returned before everything was committed
//   WEIGHTS    a version whose bytes are not its own
//   STRAY      bytes written to a descriptor after stop(), when it may belong to another file
//   HANG       a call that does not return within a minute
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <random>

#include "../../src/echo_tcp/worker/engine.hpp"

using namespace echo_tcp;
using worker::Engine;
using worker::Status;

namespace {

constexpr unsigned senders = 3;
constexpr std::int64_t slice = 100'000'000, forever = 60'000'000'000;

[[noreturn]] void forbidden(const char* outcome) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", outcome);
    std::_Exit(1);
}

// Tries again until it succeeds; a minute counts as a hang.
template <class Call>
Status until(Call call) {
    std::uint64_t start = worker::now_ns();
    for (;;) {
        Status status = call();
        if (status != Status::wait) return status;
        if (worker::now_ns() - start > forever) forbidden("HANG");
    }
}

// The learner's memory, which outlives links. A sample is {u32 sender, u64 number, fill of number}.
struct Learner {
    const std::size_t fill;
    std::mutex mutex;
    std::uint64_t committed = 0;
    std::uint64_t last[senders] = {};

    explicit Learner(std::size_t fill) : fill(fill) {}

    std::size_t sample_bytes() const { return 4 + 8 + fill; }

    void commit(std::uint32_t sender, std::uint64_t number, const std::byte* bytes) {
        if (sender >= senders) forbidden("TORN");
        for (std::size_t i = 0; i < fill; ++i) {
            if (bytes[i] != std::byte(number + sender)) forbidden("TORN");
        }
        if (number <= last[sender]) forbidden("TWICE");
        if (number != last[sender] + 1) forbidden("LOST");
        last[sender] = number;
        ++committed;
    }
};

class Link {
public:
    Link(Learner& learner, int fd, unsigned seed) : learner_(learner), fd_(fd), random_(seed) {}

    // Serves until the worker hangs up or the line "breaks".
    void serve() {
        // The number of bytes until the line breaks: sometimes 0, often some frames and a half.
        std::uint64_t budget = random_() % (200 * learner_.sample_bytes() + 50000);
        {
            std::lock_guard lock(learner_.mutex);
            acked_ = learner_.committed;
        }
        say(make_header(Kind::ack, acked_));
        std::vector<std::byte> piece(1 + random_() % 100000);
        for (;;) {
            ssize_t n = ::recv(fd_, piece.data(), 1 + random_() % piece.size(), 0);
            if (n <= 0) break;
            stream_.insert(stream_.end(), piece.begin(), piece.begin() + n);
            while (take_frame()) {}
            if (static_cast<std::uint64_t>(n) > budget) break;
            budget -= static_cast<std::uint64_t>(n);
        }
        ::close(fd_);
    }

private:
    void say(const FrameHeader& header, const void* payload = nullptr) {
        std::vector<std::byte> bytes(sizeof header + header.length);
        std::memcpy(bytes.data(), &header, sizeof header);
        if (header.length) std::memcpy(bytes.data() + sizeof header, payload, header.length);
        for (std::size_t at = 0; at < bytes.size();) {
            ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
            if (n <= 0) return;  // the next recv reports the error
            at += static_cast<std::size_t>(n);
        }
    }

    bool take_frame() {
        FrameHeader header;
        if (stream_.size() < sizeof header) return false;
        std::memcpy(&header, stream_.data(), sizeof header);
        if (stream_.size() < sizeof header + header.length) return false;
        const std::byte* payload = stream_.data() + sizeof header;
        switch (static_cast<Kind>(header.kind)) {
            case Kind::data: data(header, payload); break;
            case Kind::control: {
                FrameHeader reply = header;
                reply.flags = flag_reply;
                say(reply, payload);
                break;
            }
            case Kind::subscribe: weights(header.seq + 1); break;
            case Kind::receipt: weights(header.seq + 1 + random_() % 3); break;
            case Kind::ping:
            case Kind::bye: break;
            default: forbidden("TORN");
        }
        stream_.erase(stream_.begin(),
                      stream_.begin() + static_cast<std::ptrdiff_t>(sizeof header + header.length));
        return true;
    }

    void data(const FrameHeader& header, const std::byte* payload) {
        if (header.length != header.count * learner_.sample_bytes()) forbidden("TORN");
        std::uint64_t halfway = random_() % 2 ? random_() % header.count : header.count;
        for (std::uint64_t i = 0; i < header.count; ++i) {
            std::uint32_t sender;
            std::uint64_t number;
            std::memcpy(&sender, payload + i * 4, 4);
            std::memcpy(&number, payload + header.count * 4 + i * 8, 8);
            {
                std::lock_guard lock(learner_.mutex);
                std::uint64_t expected = learner_.committed + 1;
                if (header.seq + i > expected) forbidden("LOST");
                if (header.seq + i == expected) {
                    learner_.commit(sender, number,
                                    payload + header.count * 12 + i * learner_.fill);
                }
                acked_ = learner_.committed;
            }
            if (i == halfway) say(make_header(Kind::ack, acked_));
        }
        if (random_() % 8 == 0) say(make_header(Kind::ping, acked_));
        say(make_header(Kind::ack, acked_));
    }

    void weights(std::uint64_t version) {
        std::string body(random_() % 300000, static_cast<char>(version));
        std::uint32_t meta = 2;
        std::string whole(reinterpret_cast<const char*>(&meta), 4);
        whole += "{}" + body;
        for (std::size_t at = 0; at < whole.size(); at += 50000) {
            std::size_t n = std::min<std::size_t>(50000, whole.size() - at);
            std::uint8_t flags = (at ? 0 : flag_first_chunk);
            if (at + n == whole.size()) flags |= flag_last_chunk;
            say(make_header(Kind::weights, version, n, 0, flags), whole.data() + at);
        }
    }

    Learner& learner_;
    int fd_;
    std::mt19937 random_;
    std::uint64_t acked_ = 0;
    std::vector<std::byte> stream_;
};

// Dials again whenever the link is lost, and takes weights, as the Python helper thread does.
void keep_connected(Engine& engine, Learner& learner) {
    unsigned seed = 0;
    std::vector<std::thread> links;
    auto dial = [&] {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        links.emplace_back([&learner, fd = ends[1], seed] { Link(learner, fd, seed).serve(); });
        ++seed;
        engine.attach(ends[0], {}, 10000, seed % 5 == 0);
    };
    dial();
    for (;;) {
        unsigned events = engine.wait_event(slice);
        if (events & Engine::weights_here) {
            worker::WeightsBlob blob;
            if (engine.take_weights(blob)) {
                for (std::size_t i = 0; i < blob.payload.size(); ++i) {
                    if (blob.payload.data()[i] != std::byte(blob.version)) forbidden("WEIGHTS");
                }
                engine.hold(blob.version, blob.version * 7);
            }
        }
        if (events & Engine::over) break;
        if (events & Engine::link_lost) dial();
    }
    for (std::thread& link : links) link.join();
    std::printf("  %u links\n", seed);
}

void send_all(Engine& engine, Learner& learner, std::uint32_t sender, std::atomic<bool>& stop,
              std::uint64_t& taken) {
    std::mt19937 random(sender + 1);
    std::uint64_t number = 0;
    while (!stop) {
        std::uint64_t n = random() % 3 ? 1 : 1 + random() % 200;
        std::vector<std::uint32_t> who(n, sender);
        std::vector<std::uint64_t> numbers(n);
        std::vector<std::byte> fill(n * learner.fill);
        for (std::uint64_t i = 0; i < n; ++i) {
            numbers[i] = ++number;
            std::memset(fill.data() + i * learner.fill,
                        static_cast<int>((number + sender) & 255), learner.fill);
        }
        const void* leaves[] = {who.data(), numbers.data(), fill.data()};
        Status status = Status::wait;
        if (n == 1 && engine.small()) {
            status = engine.put_one(leaves);
            if (status == Status::due) engine.pump();
        }
        if (status == Status::wait) {
            bool again = false;
            until([&] {
                status = engine.put(leaves, n, slice, again);
                again = true;
                return status;
            });
        }
        if (status != Status::ok && status != Status::due) forbidden("LOST");
        taken = number;
        if (random() % 64 == 0) {
            until([&] { return engine.flushed(engine.appended(), slice); });
        }
    }
}

void wait_and_ask(Engine& engine, Learner& learner, std::atomic<bool>& stop) {
    engine.subscribe();
    std::uint64_t answers = 0, lost = 0;
    while (!stop) {
        std::uint64_t number = engine.appended();
        if (until([&] { return engine.acknowledged(number, slice); }) != Status::ok) {
            forbidden("LOST");
        }
        {
            std::lock_guard lock(learner.mutex);
            if (learner.committed < number) forbidden("EARLY");
        }
        std::uint64_t id = engine.ask({"\2\0\0\0{}", 6});
        std::string payload;
        Status status = until([&] { return engine.answer(id, slice, payload); });
        (status == Status::ok ? answers : lost) += 1;
        engine.forget(id);
        engine.stats();
    }
    std::printf("  %llu answers, %llu lost\n", static_cast<unsigned long long>(answers),
                static_cast<unsigned long long>(lost));
}

void round(std::size_t fill, double seconds, std::uint64_t window) {
    std::printf("samples of %zu bytes\n", fill + 12);
    Learner learner(fill);
    Engine engine({4, 8, fill}, {.block_bytes = 8192,
                                 .window_bytes = window,
                                 .window_samples = 100000});
    std::atomic<bool> stop{false};
    std::uint64_t taken[senders] = {};
    std::thread helper([&] { keep_connected(engine, learner); });
    std::vector<std::thread> threads;
    for (std::uint32_t i = 0; i < senders; ++i) {
        threads.emplace_back([&, i] { send_all(engine, learner, i, stop, taken[i]); });
    }
    threads.emplace_back([&] { wait_and_ask(engine, learner, stop); });
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
    stop = true;
    for (std::thread& thread : threads) thread.join();
    engine.begin_close();
    until([&] { return engine.acknowledged(engine.appended(), slice); });
    engine.part("done");
    until([&] { return engine.parted(slice); });
    engine.stop();
    helper.join();
    for (unsigned i = 0; i < senders; ++i) {
        if (taken[i] != learner.last[i]) forbidden("LOST");
    }
    std::printf("  %llu samples\n", static_cast<unsigned long long>(learner.committed));
}

// Calls stop() while other threads are in the middle of a send. When it returns, no thread may use the socket's descriptor any more.
void stopped_in_the_middle(double seconds) {
    std::printf("stopped in the middle\n");
    const std::uint64_t end = worker::now_ns() + static_cast<std::uint64_t>(seconds * 1e9);
    constexpr std::uint64_t n = 30, fill = 100000;
    const std::vector<std::uint32_t> who(n);
    const std::vector<std::uint64_t> numbers(n);
    const std::vector<std::byte> bytes(n * fill);
    const void* leaves[] = {who.data(), numbers.data(), bytes.data()};
    std::mt19937 random(1);
    unsigned rounds = 0;
    for (; worker::now_ns() < end; ++rounds) {
        int ends[2];
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) std::abort();
        std::thread reader([fd = ends[1]] {
            const FrameHeader resume = make_header(Kind::ack, 0);
            if (::send(fd, &resume, sizeof resume, MSG_NOSIGNAL) != sizeof resume) std::abort();
            std::vector<char> waste(50000);
            while (::recv(fd, waste.data(), waste.size(), 0) > 0) {}
            ::close(fd);
        });
        Engine engine({4, 8, fill}, {.block_bytes = 8192, .window_bytes = 64 << 20, .window_samples = 100000});
        engine.attach(ends[0], {}, 10000, false);
        if (until([&] { return engine.linked(slice); }) != Status::ok) forbidden("HANG");
        std::vector<std::thread> threads;
        for (int i = 0; i < 2; ++i) {
            threads.emplace_back([&] {
                if (until([&] { return engine.put(leaves, n, slice, false); }) == Status::ok) engine.pump();
            });
        }
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 3000));
        engine.stop();
        int others[2];  // one of them gets the number that is free now
        if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, others) != 0) std::abort();
        pollfd strays[2] = {{others[0], POLLIN, 0}, {others[1], POLLIN, 0}};
        for (std::thread& thread : threads) thread.join();
        if (::poll(strays, 2, 0) != 0) forbidden("STRAY");
        reader.join();
        for (int fd : others) ::close(fd);
    }
    std::printf("  %u rounds\n", rounds);
}

}  // namespace

int main(int argc, char** argv) {
    double seconds = argc > 1 ? std::atof(argv[1]) : 3;
    round(8, seconds, 64 << 10);
    round(3000, seconds, 64 << 10);
    round(100000, seconds, 1 << 20);
    stopped_in_the_middle(seconds);
    std::puts("no forbidden outcome");
}
