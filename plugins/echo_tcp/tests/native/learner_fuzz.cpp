// A libFuzzer target for the real loop and the real store: tries all kinds of bytes after the handshake, guided by coverage.
//
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined -I echo_core/src/echo_core/include \
//       plugins/echo_tcp/tests/native/learner_fuzz.cpp -o learner_fuzz -pthread && ./learner_fuzz -max_len=4096 corpus
//
// The first byte of an input says how its bytes are split into writes; the rest is written to a fresh connection. FORBIDDEN: a crash; a
// sample in the store that no frame of the input contains as a whole; a connection that does not end when its input has ended.
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstdlib>
#include <thread>

#include "../../../../echo_core/src/echo_core/store/door/capi_table.hpp"
#include "../../../../echo_core/src/echo_core/store/stream/ring.hpp"
#include "../../src/echo_tcp/learner/learner.hpp"

using namespace echo_tcp::learner;

namespace {

[[noreturn]] void forbidden(const char *claim) {
    std::fprintf(stderr, "FORBIDDEN: %s\n", claim);
    std::abort();
}

constexpr std::uint64_t leaf_sizes[] = {4, 0, 3, 17};

struct Rig {
    echo::Ring *ring = new echo::Ring({leaf_sizes[0], leaf_sizes[1], leaf_sizes[2], leaf_sizes[3]}, 8, 4);
    std::shared_ptr<Requests> requests = std::make_shared<Requests>();
    Learner learner{echo::capi_table(), reinterpret_cast<echo_store *>(echo::open_door(ring)), 1, 1 << 20, 30'000'000'000, requests, 0};
    // As a thread of Python does: every request gets an answer.
    std::thread answers{[this] {
        while (std::optional<Request> request = requests->take()) {
            learner.reply(request->client, std::string(24, '\0'));
            requests->done(request->group, request->client);
        }
    }};
    std::uint64_t number = 0;

    std::uint64_t inserted() { return ring->counters().inserted; }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static Rig *const rig = new Rig;
    if (size < 2) return 0;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, pair) != 0) return 0;
    NewPeer peer;
    peer.fd = pair[0];
    std::memset(peer.client.data(), 0, 16);
    std::memcpy(peer.client.data(), &++rig->number, sizeof rig->number);
    peer.base = 0;
    peer.echo1 = data[0] & 128;
    const std::uint64_t before = rig->inserted(), key = rig->learner.add(std::move(peer));
    const std::size_t piece = (data[0] & 127) ? (data[0] & 127) : 4096;
    std::size_t sent = 1;
    bool lost = false, hung_up = false;
    const std::int64_t give_up = clock_ns() + 300'000'000'000;
    while (!lost) {
        if (clock_ns() > give_up) {
            const TotalsRow t = rig->learner.totals();
            std::fprintf(stderr, "sent %zu of %zu, waiting %zu, staged %zu, active %zu, stored %zu\n", sent, size, std::size_t(t.waiting),
                         std::size_t(t.staged_bytes), std::size_t(t.active), std::size_t(rig->ring->counters().stored));
            forbidden("a connection ends when its input has");
        }
        for (Event &event : rig->learner.take_events()) {
            if (event.peer != key) continue;
            if (event.kind == Event::added) rig->learner.begin(key);
            if (event.kind == Event::lost) lost = true;
        }
        while (sent < size) {
            const ssize_t n = send(pair[1], data + sent, std::min(piece, size - sent), MSG_NOSIGNAL);
            if (n < 0) {
                if (errno != EAGAIN) sent = size;
                break;
            }
            sent += std::size_t(n);
        }
        if (sent >= size && !hung_up) {
            shutdown(pair[1], SHUT_WR);
            hung_up = true;
        }
        char answer[4096];
        while (recv(pair[1], answer, sizeof answer, 0) > 0) {}
        int buffer;
        while ((buffer = rig->ring->take()) >= 0) rig->ring->give_back(buffer);
        if (!lost) {
            pollfd waits[2] = {{rig->learner.events_fd(), POLLIN, 0}, {pair[1], POLLIN, 0}};
            poll(waits, 1, 1);
        }
    }
    rig->learner.forget(key);
    close(pair[1]);
    const std::uint64_t sample = leaf_sizes[0] + leaf_sizes[1] + leaf_sizes[2] + leaf_sizes[3];
    if (rig->inserted() - before > (size - 1) / sample) forbidden("a sample in the store came whole");
    return 0;
}

#include "replay_inputs.hpp"
