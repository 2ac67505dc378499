// One connection, as its loop sees it. Everything but Figures belongs to the loop's thread alone.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "../descriptors.hpp"
#include "events.hpp"
#include "../frame.hpp"
#include "landing.hpp"
#include "session.hpp"

namespace echo_tcp::learner {

// A counter with one writer and many readers: a plain add, but never torn and known to sanitizers.
class Count {
public:
    void add(std::uint64_t n) noexcept { set(get() + n); }
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

// Of one connection, for people to look at while it runs.
struct Figures {
    Count samples;          // inserted, over all connections of this client
    Count bytes;            // received on this connection
    Count version, digest;  // of the weights it confirmed last
    Count partial;          // 1: the last read ended inside a message
    Count read_at;          // clock_ns() of the last read that brought something
    Count parked_at;        // clock_ns() since when it waits for space; 0: it does not
};

// Of one loop, since it started.
struct Totals {
    Count samples, duplicates, bytes_received, bytes_sent, frames, direct_frames;
    Count parked, evicted, staged_bytes, protocol_errors, acks, weights_sent, rounds;
    Count active, waiting;  // connections now; those of them that wait for space
    Count crowd;            // those of this loop that brought samples lately
};

// One published version of the weights, shared by every connection that is being sent it.
struct Weights {
    std::uint64_t version = 0;
    std::string head;  // u32 m, m bytes of meta JSON
    const char *payload = nullptr;
    std::uint64_t payload_bytes = 0;
    std::uint64_t ticket = 0;  // by which Python knows whose memory `payload` is
    std::shared_ptr<Events> events;

    ~Weights() {
        if (events) events->push({Event::released, 0, ticket, 0, {}});
    }
    std::uint64_t size() const noexcept { return head.size() + payload_bytes; }
};

struct Peer {
    int fd = -1;
    std::uint64_t key = 0;
    bool echo1 = false;    // speaks the original protocol: samples without headers
    bool begun = false;    // Python knows of it
    bool fresh = true;     // echo1: nothing was taken from it yet
    Session *session = nullptr;
    std::shared_ptr<Figures> figures;

    // ---- input: at most one of these holds the beginning of the next message ------------------
    std::vector<char> tail;            // bytes read and not taken yet, from tail_at on
    std::size_t tail_at = 0;
    bool held_back = false;            // tail begins with a frame there was no space for
    std::unique_ptr<Landing> landing;  // a large DATA frame
    FrameHeader message_header{};      // a large frame of another kind, whose payload ...
    std::string message;               // ... has this size and is filled up to message_have
    std::size_t message_have = 0;
    std::uint64_t discard = 0;         // bytes still to come of a large frame the store has already
    std::uint32_t frame_done = 0;      // samples inserted of the DATA frame that `tail` begins with
    int least = 1;                     // bytes the socket must hold for it to be readable
    bool large = false;                // the last frame was: read no further than the next header
    bool slow = false;                 // it stalled in slots: its next frames are staged
    std::uint64_t census = 0;          // the last one it was counted in

    // ---- waiting --------------------------------------------------------------------------------
    bool parked = false;     // in a queue for space; not read meanwhile
    std::int64_t share = 0;  // samples it may still insert before it is the next one's turn; below 0: in debt
    bool hung_up = false;    // the socket is dead and out of epoll, but what it brought is whole
    std::uint64_t queued = 0;  // samples of it in the store's gauge of waiting samples
    std::uint32_t asked = 0;   // CONTROL requests without an answer yet
    int open_at = -1;          // place in the loop's list of peers whose landing holds slots

    // ---- output ---------------------------------------------------------------------------------
    std::string out;             // whole small frames, sent up to out_at
    std::size_t out_at = 0;
    std::deque<std::string> answers;  // whole frames that come next, each in memory of its own
    std::size_t answer_bytes = 0;
    bool answered = false;            // an answer went last: now a chunk of weights
    std::uint64_t acked = 0;     // what the last ACK said
    bool ack_due = false;        // says it even if `acked` is up to date (the resume point)
    bool ack_put_off = false;    // until there is nothing else to do: acknowledgement.hpp
    bool deaf = false;           // writing failed; what it sent may still be read
    bool subscribed = false;
    std::uint64_t held = 0;      // newest version it says it holds
    std::uint64_t awaited = 0;   // version sent whole, receipt not here yet
    std::shared_ptr<const Weights> sending;
    std::uint64_t sent = 0;      // bytes of `sending` in chunks that were begun
    FrameHeader chunk{};         // the chunk on its way, if chunk_left is not zero
    std::uint64_t chunk_left = 0;  // of header and payload

    // ---- the end --------------------------------------------------------------------------------
    std::string reason;        // of the end, for people; empty if it is an orderly one
    bool broken = false;       // reason is the peer's breach of the protocol
    bool leaving = false;      // BYE said; input is thrown away until it closes
    bool dead = false;         // closed; freed at the end of the round
    std::int64_t leave_by = 0;
    std::uint32_t interest = 0;  // what epoll watches it for

    std::size_t out_left() const noexcept { return out.size() - out_at; }
    std::size_t unsent() const noexcept { return out_left() + answer_bytes; }
    bool mid_message() const noexcept {
        return landing || !message.empty() || discard != 0 || tail.size() != tail_at;
    }
};

}  // namespace echo_tcp::learner
