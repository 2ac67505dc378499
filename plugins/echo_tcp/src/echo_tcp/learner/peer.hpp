// The state of one connection. All of it except Figures belongs to the loop's thread alone.
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

// A counter with one writer and many readers: it costs a plain add, is never torn, and sanitizers accept it.
class Count {
public:
    void add(std::uint64_t n) noexcept { set(get() + n); }
    void set(std::uint64_t n) noexcept { value_.store(n, std::memory_order_relaxed); }
    std::uint64_t get() const noexcept { return value_.load(std::memory_order_relaxed); }

private:
    std::atomic<std::uint64_t> value_{0};
};

inline constexpr std::uint64_t least_held = 16 << 10;  // a connection for which fewer bytes are held does not count

// Figures of one connection, for people to look at while it runs.
struct Figures {
    Count samples;          // inserted, over all connections of this client
    Count bytes;            // received on this connection
    Count version, digest;  // of the weights it confirmed last
    Count partial;          // 1 if the last read ended inside a message
    Count read_at;          // clock_ns() of the last read that brought something; 0 before begin()
    Count parked_at;        // clock_ns() when it began to wait for space; 0 if it does not wait
    Count wanted_at;        // clock_ns() when a call of it began to wait for weights; 0 if none waits
    Count sampled_at;       // clock_ns() when samples of it were inserted last; 0 before the first
    Count held;             // bytes that lie here for it: unsent answers, and the beginning of a message
    Count sending, sending_bytes;  // the version of the weights that is on its way, and its size; 0 if none is

    bool count() const noexcept { return held.get() >= least_held || sending.get() != 0; }
};

// Figures of one loop since it started.
struct Totals {
    Count samples, duplicates, bytes_received, bytes_sent, frames, direct_frames;
    Count parked, evicted, staged_bytes, protocol_errors, acks, weights_sent, rounds;
    Count active, waiting;  // connections at this time; those of them that wait for space
    Count crowd;            // connections of this loop that brought samples lately
};

// One published version of the weights, shared by every connection that is being sent it.
struct Weights {
    std::uint64_t version = 0;
    std::uint64_t digest = 0;
    bool renumbered = false;  // a version before had this number or a higher one, because another learner counted
    std::string head;  // u32 m, m bytes of meta JSON
    const char *payload = nullptr;
    std::uint64_t payload_bytes = 0;
    std::uint64_t ticket = 0;  // identifies the owner of the memory `payload` to Python
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
    bool observer = false;  // may send no samples
    bool begun = false;    // Python knows of it
    std::int64_t beat_ns = 0;  // see NewPeer
    bool fresh = true;     // echo1: no bytes were taken from it yet
    bool undecided = false;  // echo1: `tail` begins with a whole sample that may also be the beginning of a HELLO
    std::int64_t decide_by = 0;  // then it is taken for a sample; meaningful while the loop's `undecided_` lists the peer
    Session *session = nullptr;
    std::shared_ptr<Figures> figures;

    // ---- input: the beginning of the next message lies in at most one of these ----------------
    std::vector<char> tail;            // bytes that were read and not parsed yet, from tail_at on
    std::size_t tail_at = 0;
    bool held_back = false;            // tail begins with a frame for which there was no space
    std::unique_ptr<Landing> landing;  // a large DATA frame
    FrameHeader message_header{};      // a large frame of another kind, whose payload ...
    std::string message;               // ... has this size and is filled up to message_have
    std::size_t message_have = 0;
    std::uint64_t discard = 0;         // bytes to come of a large frame that the store already has
    std::uint32_t frame_done = 0;      // samples inserted so far of the first DATA frame in `tail`
    int least = 1;                     // bytes that the socket must hold to count as readable
    bool large = false;                // the last frame was large: read no further than the next header
    bool slow = false;                 // it has stalled in slots, so its next frames are staged
    std::uint64_t census = 0;          // the last census that counted it

    // ---- waiting --------------------------------------------------------------------------------
    bool parked = false;     // it is in a queue for space and is not read meanwhile
    std::int64_t share = 0;  // samples it may still insert before the next peer's turn; negative if it took too many
    bool hung_up = false;    // the socket is dead and removed from epoll, but whole samples of it wait for space
    std::uint64_t queued = 0;  // its part of the store's gauge of waiting samples
    std::uint32_t asked = 0;   // CONTROL requests without an answer yet
    bool asks_much = false;    // so many that it is not read
    int open_at = -1;          // its place in the loop's list of peers whose landing holds slots

    std::int64_t heard_at = 0; // clock_ns() from which its silence counts, if it was not read later

    // ---- output ---------------------------------------------------------------------------------
    std::uint64_t bytes_out = 0, bytes_out_seen = 0;  // sent; and at the last look for silence
    std::string out;             // whole small frames; bytes before out_at are sent
    std::size_t out_at = 0;
    std::deque<std::string> answers;  // whole frames that are sent next, each in memory of its own
    std::size_t answer_bytes = 0;
    bool answered = false;            // an answer was sent last, so a chunk of weights comes next
    std::uint64_t acked = 0;     // the number in the last ACK
    bool ack_due = false;        // an ACK is sent even if `acked` is up to date (the resume point)
    bool ack_put_off = false;    // an ACK waits until there is nothing else to do (acknowledgement.hpp)
    bool deaf = false;           // a write failed; bytes that the peer sent may still be read
    bool subscribed = false;
    std::uint64_t held = 0;      // newest version that was sent whole; before that, the one that the peer says it holds
    std::uint64_t held_digest = 0;  // of that version, if `knows_digest`: not if the peer got it by an earlier connection
    bool knows_digest = false;
    std::uint64_t awaited = 0;   // newest version that was sent whole, if its receipt has not come yet
    std::uint64_t receipts = 0;  // that may still come: for each version that was sent whole, at most one
    std::uint64_t lowest_sent = UINT64_MAX, highest_sent = 0;  // numbers of versions that were sent whole
    std::shared_ptr<const Weights> sending;
    std::uint64_t sent = 0;      // bytes of `sending` that belong to chunks already begun
    FrameHeader chunk{};         // the chunk that is being written, if chunk_left is not zero
    std::uint64_t chunk_left = 0;  // unsent bytes of its header and payload

    // ---- the end --------------------------------------------------------------------------------
    std::string reason;        // why the connection ended, for people; empty after an orderly end
    bool broken = false;       // the peer broke the protocol, and `reason` says how
    bool leaving = false;      // BYE was sent; input is discarded until the peer closes
    bool dead = false;         // closed; the memory is freed at the end of the round
    std::int64_t leave_by = 0;
    std::uint32_t interest = 0;  // the events that epoll watches it for

    std::size_t out_left() const noexcept { return out.size() - out_at; }
    std::size_t unsent() const noexcept { return out_left() + answer_bytes; }
    // Shows the other threads how much memory lies here for this peer. Frames of samples have a limit of their own (staging).
    void show_held(Events &events) {
        const bool counted = figures->count();
        figures->held.set(unsent() + message.size() + tail.size());
        figures->sending.set(sending ? sending->version : 0);
        figures->sending_bytes.set(sending ? sending->size() : 0);
        if (!counted && figures->count()) events.holding();
    }
    bool mid_message() const noexcept {
        return landing || !message.empty() || discard != 0 || tail.size() != tail_at;
    }
};

}  // namespace echo_tcp::learner
