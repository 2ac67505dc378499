// Tests the numbers of samples at a learner's end, and which learner gets a key, without UCX: the test hands over every message itself, in any order.
//
//     g++ -std=c++20 -O1 -g -fsanitize=address,undefined -I echo_core/src/echo_core/include rdma_numbers.cpp -pthread
//     ./a.out [seconds, default 2]
//
// FORBIDDEN, each ends the program:
//   kept       a worker that sends a sample twice in a connection is not given up
//   refused    a worker that sends each sample once is given up because its messages overtake each other
//   leaked     a descriptor of UCX that is not given back
//   torn       a sample whose leaves are not those of one sample
//   twice      a sample that is in two slots
//   lost       a sample that was committed and is in no batch
//   given      a key to memory that went to a learner on another machine
#include <chrono>
#include <cstdio>
#include <set>

#include "../../../../echo_core/src/echo_core/store/door/capi_table.hpp"
#include "../../../../echo_core/src/echo_core/store/stream/ring.hpp"
#include "loopback.hpp"

#include "../../src/echo_rdma/ucx/intake.hpp"

using namespace echo_rdma;
using Clock = std::chrono::steady_clock;

[[noreturn]] static void forbidden(const char *outcome, const std::string &detail) {
    std::fprintf(stderr, "FORBIDDEN: %s: %s\n", outcome, detail.c_str());
    std::_Exit(1);
}

struct Offered { // a rendezvous that was announced
    std::vector<char> data;
};
struct Receive {
    Offered *from;
    std::vector<ucp::IoVec> to;
    ucp::ReceiveCallback done;
    void *argument;
};
static std::vector<Receive> receives;
static std::minstd_rand dice(7);
static long offered = 0;     // descriptors that are in use
static uint64_t limit = 0;   // of the newest acknowledgement
static int keys = 0;

static void put(const Receive &one) {
    const char *at = one.from->data.data();
    for (auto &part : one.to) memcpy(part.buffer, at, part.length), at += part.length;
}

static void install() {
    loopback::install();
    Library &ucx = library();
    ucx.am_send_nbx = [](ucp::Endpoint *, unsigned, const void *header, size_t, const void *, size_t, const ucp::RequestParam *) -> void * {
        Head head;
        memcpy(&head, header, sizeof head);
        if (head.kind == ACK) limit = head.limit;
        keys += head.kind == KEY;
        return nullptr;
    };
    ucx.am_data_release = [](ucp::Worker *, void *descriptor) {
        delete static_cast<Offered *>(descriptor);
        offered--;
    };
    ucx.am_recv_data_nbx = [](ucp::Worker *, void *descriptor, void *buffer, size_t count, const ucp::RequestParam *param) -> void * {
        Receive one{static_cast<Offered *>(descriptor), {}, param->callback.receive, param->user_data};
        if ((param->mask & param->DATATYPE) && param->datatype == ucp::IOV)
            one.to.assign(static_cast<ucp::IoVec *>(buffer), static_cast<ucp::IoVec *>(buffer) + count);
        else
            one.to.push_back({buffer, one.from->data.size()});
        if (dice() % 4 == 0) { // done at once
            put(one);
            library().am_data_release(nullptr, descriptor);
            return nullptr;
        }
        receives.push_back(one);
        return &loopback::request;
    };
}

// Completes one of the outstanding receives.
static void complete(ucp::status status) {
    size_t which = dice() % receives.size();
    Receive one = receives[which];
    receives.erase(receives.begin() + long(which));
    if (status == ucp::OK) put(one);
    library().am_data_release(nullptr, one.from);
    one.done(&loopback::request, status, one.to.size(), one.argument);
}

static constexpr uint64_t SIZE = 24; // size of a sample: its number three times, in two leaves

// A learner's store, with one connection of a worker after another.
struct Learner {
    echo::Ring *ring = new echo::Ring({8, 16}, 4, 4);
    echo::Door *door = echo::open_door(ring);
    Engine engine{nullptr, Times{}};
    std::unique_ptr<Peer> peer;
    std::shared_ptr<Intake> intake;
    std::set<uint64_t> seen;

    Learner() { engine.stop(); } // its thread is not needed, because the test takes its place
    ~Learner() {
        leave();
        ring->close();
        door->release();
        ring->release();
    }

    void connect(uint64_t committed, bool direct = true, uint64_t credit = 1000 * SIZE) {
        peer = std::make_unique<Peer>(&engine);
        intake = std::make_shared<Intake>(echo::capi_table(), reinterpret_cast<echo_store *>(door), engine, committed, credit, direct);
        peer->flow = intake;
        intake->turn(*peer);
    }

    // Returns an error text, or nothing.
    std::string say(uint64_t first, uint32_t count, bool rendezvous = false) {
        std::vector<char> rows;
        for (uint64_t number = first; number < first + count; number++)
            for (int i = 0; i < 3; i++) rows.insert(rows.end(), reinterpret_cast<char *>(&number), reinterpret_cast<char *>(&number) + 8);
        return say(Head{.kind = SAMPLES, .count = count, .number = first}, rows.data(), rows.size(), rendezvous);
    }

    std::string say(const Head &head, char *data, size_t size, bool rendezvous = false) {
        std::string broken;
        if (!rendezvous) {
            intake->message(*peer, head, data, size, 0, broken);
        } else {
            auto *one = new Offered{{data, data + size}};
            offered++;
            if (intake->message(*peer, head, one, size, ucp::MessageParam::RENDEZVOUS, broken) == ucp::OK) library().am_data_release(nullptr, one);
        }
        return broken;
    }

    void leave() {
        if (!peer) return;
        intake->lost(*peer);
        while (!receives.empty()) complete(dice() % 2 ? ucp::OK : ucp::ERR_CANCELED);
        if (peer->in_flight != 0 || offered != 0) forbidden("leaked", std::to_string(offered) + " descriptors");
        intake.reset();
        peer.reset();
    }

    void take() {
        for (int buffer; (buffer = ring->take()) >= 0; ring->give_back(buffer))
            for (uint64_t slot = 0; slot < ring->batch_size(); slot++) {
                uint64_t number;
                memcpy(&number, ring->batch_leaf(buffer, 0) + slot * 8, 8);
                if (memcmp(ring->batch_leaf(buffer, 1) + slot * 16, &number, 8) != 0) forbidden("torn", std::to_string(number));
                if (!seen.insert(number).second) forbidden("twice", std::to_string(number));
            }
    }
};

static void expect(const char *title, const std::string &broken, const char *word) {
    if (word == nullptr ? !broken.empty() : broken.find(word) == std::string::npos) forbidden(word ? "kept" : "refused", std::string(title) + ": \"" + broken + "\"");
}

// 16 samples fill the store; later ones are parked.
static void repeats() {
    for (bool rendezvous : {false, true}) {
        Learner one;
        one.connect(0);
        expect("a full store", one.say(1, 16, rendezvous), nullptr);
        for (int i = 0; i < 50; i++) {
            if (!receives.empty()) complete(ucp::OK);
            one.intake->turn(*one.peer);
        }
        expect("parked", one.say(17, 4, rendezvous), nullptr);
        expect("committed ones", one.say(3, 2, rendezvous), nullptr); // they are not kept
        expect("parked ones", one.say(17, 4, rendezvous), "again");
        expect("some of them", one.say(19, 4, rendezvous), "again");
        expect("from committed ones on", one.say(10, 8, rendezvous), "again");
        expect("early", one.say(30, 4, rendezvous), nullptr);
        expect("the same", one.say(30, 4, rendezvous), "overlapping");
        expect("into it", one.say(28, 3, rendezvous), "overlapping");
        expect("out of it", one.say(33, 3, rendezvous), "overlapping");
        expect("in it", one.say(31, 1, rendezvous), "overlapping");
        expect("around it", one.say(21, 20, rendezvous), "overlapping");
        expect("up to it", one.say(27, 3, rendezvous), nullptr);
        expect("behind it", one.say(34, 3, rendezvous), nullptr);
        expect("what was missing", one.say(21, 6, rendezvous), nullptr);
        expect("what was early", one.say(34, 3, rendezvous), "again");
        if (one.intake->figures().committed != 16) forbidden("kept", "committed");
    }
    Learner one; // in parts
    one.connect(0);
    auto part = [&](uint64_t number, uint64_t from) {
        char data[8] = {};
        memcpy(data, &number, 8);
        return one.say(Head{.kind = PART, .count = 1, .number = number, .limit = from}, data, 8);
    };
    for (uint64_t number = 1; number <= 18; number++)
        for (uint64_t from = 0; from < SIZE; from += 8) expect("parts", part(number, from), nullptr);
    for (uint64_t from = 0; from < SIZE; from += 8) expect("parts of a committed one", part(16, from), nullptr);
    expect("parts of one that is parked", part(17, 0), "again");
}

// Messages of a worker that sends each sample once, in random order, over many connections.
static uint64_t honest(Clock::time_point end) {
    Learner one;
    uint64_t committed = 0, connections = 0;
    while (Clock::now() < end) {
        // Sometimes the worker gets an earlier resume point than the number from which the learner goes on.
        uint64_t next = committed + 1 - (dice() % 4 == 0 ? std::min<uint64_t>(dice() % 9, committed) : 0);
        one.connect(committed, dice() % 2, (2 + dice() % 40) * SIZE);
        std::deque<std::pair<uint64_t, uint32_t>> wire;
        for (int step = int(dice() % 400); step > 0; step--) {
            uint32_t count = 1 + dice() % 6;
            if (wire.size() < 8 && next + count - 1 <= limit) {
                wire.push_back({next, count});
                next += count;
            }
            if (!wire.empty() && dice() % 2) {
                auto at = wire.begin() + long(dice() % wire.size());
                std::string broken = one.say(at->first, at->second, dice() % 2);
                if (!broken.empty()) forbidden("refused", broken + ", committed before " + std::to_string(committed));
                wire.erase(at);
            }
            if (!receives.empty() && dice() % 2) complete(ucp::OK);
            one.intake->turn(*one.peer);
            if (one.peer->failed) forbidden("refused", "in a turn");
            if (dice() % 8 == 0) one.take();
        }
        auto intake = one.intake;
        one.leave();
        committed = intake->figures().committed;
        connections++;
    }
    one.take();
    for (uint64_t number = 1; number + 16 <= committed; number++) // the last ones may still be in the store
        if (!one.seen.contains(number)) forbidden("lost", std::to_string(number));
    std::printf("  %llu samples over %llu connections\n", (unsigned long long)committed, (unsigned long long)connections);
    return committed;
}

// A worker whose learner was near and is not near any longer, or the other way round.
static void key() {
    auto window = std::make_shared<Window>(std::vector<uint64_t>{8, 16}, 64, 4096);
    Engine engine(nullptr, Times{});
    engine.stop();
    for (bool near : {true, false, true, false}) {
        Peer peer(&engine);
        window->attach(&engine);
        std::string broken;
        window->resume(0, 4096, near);
        window->message(peer, Head{.kind = ACK, .number = 0, .limit = 8}, nullptr, 0, 0, broken);
        keys = 0;
        for (int i = 0; i < 3; i++) window->turn(peer);
        if (keys != near) forbidden("given", std::to_string(keys) + (near ? " keys to one that is near" : " keys"));
        window->detach();
    }
}

int main(int count, char **words) {
    double seconds = count > 1 ? atof(words[1]) : 2;
    install();
    std::puts("what is said again");
    repeats();
    std::puts("what overtakes");
    if (honest(Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds))) < 1000) forbidden("lost", "nearly all");
    std::puts("keys");
    key();
    std::puts("no forbidden outcome");
}
