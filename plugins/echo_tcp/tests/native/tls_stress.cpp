// Tests TlsSession's two threads and its lock under sanitizers, which cannot see into libssl.
//
//   g++ -std=c++20 -O1 -g -fsanitize=thread tls_stress.cpp -pthread
//   ./a.out [seconds, default 3]
//
// A cipher replaces libssl. Every call touches its state without a lock, as in libssl. Two calls at the same time
// are a race that ThreadSanitizer reports, and they make the bytes wrong. The cipher takes and gives any number of
// bytes, and may ask to be called again. Forbidden outcomes, each checked:
//   TORN    received bytes that differ from the sent ones
//   LOST    fewer received bytes than were flushed before the end
//   LATE    a call into the cipher after end() has returned
//   HANG    a call that does not return within a minute
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "../../src/echo_tcp/tls/session.hpp"

using namespace echo_tcp;

// One end: its encrypted bytes that are not yet written, and the state of its keystreams.
struct ssl_st {
    int fd = -1;
    std::minstd_rand random{1};
    unsigned char sent = 0, received = 0;  // the keystreams: each byte differs from its plain text by the number of bytes before it
    std::vector<char> out;
    std::size_t written = 0;
    int error = 0;
    std::atomic<bool> ended{false};
};

struct bio_st {
    ssl_st* of = nullptr;
};

namespace {

[[noreturn]] void forbidden(const char* outcome) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", outcome);
    std::_Exit(1);
}

constexpr int want_read = 2, want_write = 3, system_call = 5, zero_return = 6;
thread_local bio_st* made = nullptr;

bool drained(ssl_st* ssl) {
    while (ssl->written < ssl->out.size()) {
        const ssize_t n = ::send(ssl->fd, ssl->out.data() + ssl->written, ssl->out.size() - ssl->written, MSG_NOSIGNAL);
        if (n < 0) return false;
        ssl->written += static_cast<std::size_t>(n);
    }
    ssl->out.clear();
    ssl->written = 0;
    return true;
}

int failed(ssl_st* ssl, int waits) {
    ssl->error = errno == EAGAIN ? waits : system_call;
    return -1;
}

int encrypt(ssl_st* ssl, const void* data, std::size_t size, std::size_t* taken) {
    if (ssl->ended) forbidden("LATE");
    if (ssl->out.size() > (100 << 10) && !drained(ssl)) return failed(ssl, want_write);
    const std::size_t n = std::min<std::size_t>(size, 1 + ssl->random() % (96 << 10));
    for (std::size_t i = 0; i < n; ++i) ssl->out.push_back(static_cast<char>(static_cast<const unsigned char*>(data)[i] + ssl->sent++));
    *taken = n;
    return 1;
}

int decrypt(ssl_st* ssl, void* into, std::size_t room, std::size_t* taken) {
    if (ssl->ended) forbidden("LATE");
    const ssize_t n = ::recv(ssl->fd, into, std::min<std::size_t>(room, 1 + ssl->random() % (16 << 10)), 0);
    if (n < 0) return failed(ssl, want_read);
    if (n == 0) {
        ssl->error = zero_return;
        return 0;
    }
    for (ssize_t i = 0; i < n; ++i) static_cast<unsigned char*>(into)[i] -= ssl->received++;
    *taken = static_cast<std::size_t>(n);
    return 1;
}

Libssl cipher() {
    Libssl lib{};
    lib.up_ref = [](ssl_st*) { return 1; };
    lib.release = [](ssl_st*) {};
    lib.read = decrypt;
    lib.write = encrypt;
    lib.error_of = [](const ssl_st* ssl, int) { return ssl->error; };
    lib.rbio = [](const ssl_st* ssl) {
        made->of = const_cast<ssl_st*>(ssl);
        return made;
    };
    lib.set_bio = [](ssl_st*, bio_st*, bio_st*) {};
    lib.bio_new = [](const bio_method_st*) { return made; };
    lib.bio_up_ref = [](bio_st*) { return 1; };
    lib.bio_push = [](bio_st* first, bio_st*) { return first; };
    lib.bio_int_ctrl = [](bio_st*, int, long, int) { return 1L; };
    lib.bio_ctrl = [](bio_st* bio, int, long, void*) {
        if (bio->of->ended) forbidden("LATE");
        return drained(bio->of) ? 1L : -1L;
    };
    lib.bio_flags = [](const bio_st*, int flags) { return errno == EAGAIN ? flags : 0; };
    lib.buffering = []() -> const bio_method_st* { return nullptr; };
    lib.forget_errors = [] {};
    lib.next_error = [] { return 0UL; };
    lib.reason_of = [](unsigned long) -> const char* { return nullptr; };
    return lib;
}

const Libssl lib = cipher();

struct End {
    ssl_st ssl;
    bio_st bio;
    std::unique_ptr<TlsSession> session;

    End(int fd, unsigned seed) {
        ssl.fd = fd;
        ssl.random.seed(seed);
        made = &bio;
        session = std::make_unique<TlsSession>(lib, &ssl, fd);
    }
    ~End() { ::close(ssl.fd); }

    void end() {
        session->end();
        ssl.ended = true;
        ::shutdown(ssl.fd, SHUT_RDWR);
    }
};

unsigned char plain(std::uint64_t at) { return static_cast<unsigned char>(at * 7 + (at >> 8)); }

std::uint64_t send_all(End& end, unsigned seed, const std::atomic<bool>& enough) {
    std::minstd_rand random(seed);
    std::vector<char> data;
    std::uint64_t flushed = 0;
    while (!enough) {
        data.resize(1 + random() % (random() % 4 == 0 ? 300'000 : 300));
        for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(plain(flushed + i));
        std::size_t done = 0;
        if (end.session->send(data.data(), data.size(), done).how != How::done || end.session->flush().how != How::done) break;
        flushed += data.size();
    }
    return flushed;
}

std::uint64_t receive_all(End& end, unsigned seed) {
    std::minstd_rand random(seed);
    std::vector<char> data(400'000);
    for (std::uint64_t received = 0;;) {
        std::size_t taken = 0;
        const Outcome outcome = end.session->receive(data.data(), 1 + random() % data.size(), taken);
        if (outcome.how != How::done) return received;
        for (std::size_t i = 0; i < taken; ++i)
            if (static_cast<unsigned char>(data[i]) != plain(received + i)) forbidden("TORN");
        received += taken;
    }
}

// `hasty`: one end is shut down in the middle of the traffic; otherwise both ends first send all their bytes.
void connection(unsigned seed, bool hasty) {
    int fds[2];
    if (::socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0) std::abort();
    for (int fd : fds) ::fcntl(fd, F_SETFL, O_NONBLOCK);
    End a(fds[0], seed), b(fds[1], seed + 1);
    std::atomic<bool> enough{false};
    std::uint64_t sent[2] = {}, received[2] = {};
    std::thread senders[] = {std::thread([&] { sent[0] = send_all(a, seed + 2, enough); }), std::thread([&] { sent[1] = send_all(b, seed + 3, enough); })};
    std::thread receivers[] = {std::thread([&] { received[0] = receive_all(b, seed + 4); }), std::thread([&] { received[1] = receive_all(a, seed + 5); })};
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + seed % 30));
    if (hasty) a.end();
    enough = true;
    for (std::thread& sender : senders) sender.join();
    if (!hasty) {
        for (End* end : {&a, &b}) ::shutdown(end->ssl.fd, SHUT_WR);
        for (std::thread& receiver : receivers) receiver.join();
        if (received[0] < sent[0] || received[1] < sent[1]) forbidden("LOST");
        a.end();
    } else {
        for (std::thread& receiver : receivers) receiver.join();
    }
    b.end();
}

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 3;
    const auto began = std::chrono::steady_clock::now();
    std::atomic<unsigned> rounds{0};
    std::thread watch([&] {
        for (unsigned seen = 0;; seen = rounds) {
            for (int i = 0; i < 600 && seen == rounds; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(100));
            if (seen == rounds) forbidden("HANG");
        }
    });
    watch.detach();
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count() < seconds) {
        connection(10 * rounds, rounds % 2 == 1);
        ++rounds;
    }
    std::printf("tls: %u connections\nno forbidden outcome\n", rounds.load());
    std::fflush(stdout);
    std::_Exit(0);  // without joining the watchdog thread
}
