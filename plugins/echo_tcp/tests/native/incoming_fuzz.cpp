// A libFuzzer target for the worker's parser: tries all kinds of bytes that a learner may send, guided by coverage.
//
//   clang++ -std=c++20 -O1 -g -fsanitize=fuzzer,address,undefined plugins/echo_tcp/tests/native/incoming_fuzz.cpp -o incoming_fuzz -pthread
//   ./incoming_fuzz -max_len=4096 corpus
//
// FORBIDDEN: a crash; a result that depends on how the bytes were split into reads.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "../../src/echo_tcp/worker/incoming.hpp"

using echo_tcp::worker::Incoming;

namespace {

struct Seen {
    std::string wrong;
    std::uint64_t ack = 0;
    std::size_t messages = 0, byes = 0;
    // Messages before the mistake may have been handed over or not, because the connection ends.
    bool operator==(const Seen &other) const {
        return wrong == other.wrong && (!wrong.empty() || (ack == other.ack && messages == other.messages && byes == other.byes));
    }
};

Seen read(const std::uint8_t *data, std::size_t size, std::size_t piece, bool original) {
    Incoming incoming(original);
    Seen seen;
    while (size != 0) {
        const std::size_t n = std::min(piece, size);
        const char *wrong = incoming.feed(reinterpret_cast<const std::byte *>(data), n);
        if (incoming.ack) seen.ack = original ? seen.ack + *incoming.ack : *incoming.ack;
        seen.messages += incoming.messages.size();
        seen.byes = seen.byes || incoming.bye.has_value();
        incoming.taken();
        if (wrong != nullptr) {
            seen.wrong = wrong;
            break;
        }
        data += n;
        size -= n;
    }
    return seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    if (size < 1) return 0;
    const bool original = data[0] & 1;
    const Seen whole = read(data + 1, size - 1, size, original);
    for (const std::size_t piece : {std::size_t{1}, std::size_t{23}, std::size_t(data[0] | 1)}) {
        if (read(data + 1, size - 1, piece, original) != whole) {
            std::fprintf(stderr, "FORBIDDEN: what was read depends on how it was cut, in pieces of %zu\n", piece);
            std::abort();
        }
    }
    return 0;
}

#include "replay_inputs.hpp"
