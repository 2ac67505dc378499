// The worker's end of a TCP session: takes samples over, sends them, and keeps them until they are acknowledged.
//
// Threads. There are any number of callers and one I/O thread, which reads, and writes the rest that callers
// could not write. One mutex guards everything; it is never held during a system call or a large copy:
//   writing_    one thread at a time owns the outgoing side of the socket (compose, sendmsg) and
//               releases the mutex around sendmsg. A thread that finds it taken returns: the owner
//               looks again before it stops, so everything that became due meanwhile is sent too.
//   appending_  one thread at a time copies into free rows without the mutex; other threads wait for
//               it, so the samples of one batch have consecutive numbers.
//   the socket  is closed by the I/O thread, or by stop() after it, when no thread writes or reads; others
//               only shut it down. So a descriptor never names another file while a thread uses it.
//
// When to send. This is Nagle's idea with the learner's acknowledgements as the clock. A stretch of samples
// is sent when it fills its block, when no samples are in flight, or when flush or wait asked for it.
// Otherwise it grows until an acknowledgement comes, and then the I/O thread sends it. An idle link
// sends at once, a busy link sends full frames, and no timer is needed: samples wait only while others
// are in flight, and those will be acknowledged.
//
// Links. attach() gives the engine a socket after its handshake. When the link is lost, unacknowledged
// samples stay here, wait_event() reports the loss, and the thread that dials calls attach() again. The
// learner's first ACK then says which sample comes next.
//
// Errors are return values, never exceptions (except std::bad_alloc). A wait ends after its slice with
// Status::wait, so that the caller can look for signals and decide when to give up.
#pragma once

#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "fork.hpp"
#include "../frame.hpp"
#include "incoming.hpp"
#include "layout.hpp"
#include "link.hpp"
#include "meter.hpp"
#include "outbox.hpp"
#include "window.hpp"

namespace echo_tcp::worker {

enum class Status {
    ok,
    due,     // ok, and pump() has something to write
    wait,    // not done yet
    closed,  // close() was called
    failed,  // the session has ended; why() says what happened
    lost,    // the answer to this request will not come
};

struct EngineConfig {
    bool original = false;             // the protocol of the first Echo, which cannot resume and has no weights
    std::uint64_t block_bytes = 0;     // size of the samples of one frame
    std::uint64_t window_bytes = 0;    // size of the samples that are kept; 3 samples always have room
    std::uint64_t window_samples = 0;  // number of samples that are kept
    std::uint32_t silence_ms = 30000;  // a peer from which no byte comes for longer counts as gone
};

struct EngineStats {
    Counters counters;
    std::uint64_t appended, acked, window_bytes, version, holds, rtt_p50, rtt_p99;
    bool connected;
};

class Engine {
public:
    enum Event : unsigned { none = 0, link_lost = 1, weights_here = 2, over = 4 };

    Engine(const std::vector<std::uint64_t>& leaf_bytes, const EngineConfig& config);
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;
    ~Engine() { stop(); }

    // ---- samples
    bool small() const noexcept { return layout_.sample_bytes() < copy_without_lock; }
    // Takes one small sample and never waits: returns ok, due, wait (then use put), closed or failed.
    // `labels`: those of the sample, or null.
    Status put_one(const void* const* leaves, const void* labels = nullptr);
    // Takes n samples, all or none; waits for room at most `slice`. `again`: this call continues a wait.
    Status put(const void* const* leaves, std::uint64_t n, std::int64_t slice_ns, bool again, const void* labels = nullptr);
    void pump();
    std::uint64_t appended();
    Status flushed(std::uint64_t number, std::int64_t slice_ns);       // waits until the network has the samples
    Status acknowledged(std::uint64_t number, std::int64_t slice_ns);  // waits until the learner has committed them

    // ---- requests and weights
    std::uint64_t ask(std::string_view payload);
    Status answer(std::uint64_t id, std::int64_t slice_ns, std::string& payload);
    std::shared_ptr<RecycledBuffers> recycled() const { return incoming_.recycled; }  // takes the memory of answers that have been read
    void forget(std::uint64_t id);
    void subscribe();
    // A call begins to wait for weights, or has ended its wait. While one waits, the learner knows it.
    void waits_for_weights(bool begins);
    bool take_weights(WeightsBlob& out);
    // Version `number` has been verified, and callers can see it.
    void hold(std::uint64_t number, std::uint64_t digest);
    std::uint64_t holds();  // number of calls of hold() so far
    Status held(std::uint64_t holds_before, std::int64_t slice_ns);

    // ---- links
    // Takes `fd` over, no matter what it returns. `rest`: bytes that came after the handshake. `restarted`:
    // the learner is not the one of the previous link, and its versions of weights begin anew.
    // `beat_ms`: each end sends something at least so often.
    bool attach(int fd, std::string_view rest, std::uint32_t beat_ms, bool restarted);
    unsigned wait_event(std::int64_t slice_ns);  // a set of Event; empty when the slice is over
    Status linked(std::int64_t slice_ns);        // waits for the learner's resume point
    void fail(std::string_view why, bool broken_format);
    void end_job();  // the learner has said, in a handshake, that the job has ended; it may also say so in its goodbye
    void damaged(std::string_view why);  // what has come over this link is damaged: ends the link
    std::uint64_t base();  // the number of committed samples for the next handshake

    // ---- the end
    void begin_close();                   // takes no more samples; those that are here can still be delivered
    void part(std::string_view reason);   // says goodbye, then ends the link
    Status parted(std::int64_t slice_ns);
    void stop();
    // After stop(): some of the samples that are not acknowledged, as the payload of a frame. `from`: how many of them to leave out.
    struct Leftover {
        std::uint32_t count = 0;  // 0: there are no more
        bool labelled = false;
        std::string payload;
    };
    Leftover leftover(std::uint64_t from);
    void leave_to_parent() noexcept;  // in a forked child: closes its copies of the descriptors

    Status state();  // ok, or the reason why no call can succeed any more
    bool forked() const noexcept {
        return fork_generation.load(std::memory_order_relaxed) != generation_;
    }
    bool broken_format();   // whether the last link, or the session, has ended because the peer broke the wire format
    bool broken_weights();  // the same, and what it broke were weights
    bool job_ended();       // after Status::failed: whether the learner has ended the job
    std::string why();     // why the link or the session was lost
    EngineStats stats();

private:
    using Lock = std::unique_lock<std::mutex>;
    enum class Link { down, resuming, up };
    enum class By { caller, io_thread };
    static constexpr std::uint64_t copy_without_lock = 32u << 10;
    static constexpr std::size_t read_bytes = 64u << 10;
    static constexpr std::uint64_t least_frames = 4;  // in a window: a small one has smaller frames, so that one is filled while others travel
    static constexpr int patience_ms = 5;  // how long a caller waits for a full socket
    // If one acknowledgement covers more than this, the link is in full flow; see callers_do_it().
    static constexpr std::uint64_t full_flow_samples = 32, full_flow_bytes = 64u << 10;
    static constexpr long linger_ns = 1'000'000;
    static constexpr std::uint64_t few_bytes = 32u << 10;  // size of the samples in the first frames
    static constexpr std::uint64_t prompt_ns = 10'000'000, unhurried_ns = 50'000'000;  // acknowledgements

    // The threads that wait for one kind of event. To wake them costs a system call and a context switch, even if
    // they need not wake. So it happens only when `least`, the smallest number that is waited for, is reached.
    struct Gate {
        std::condition_variable changed;
        unsigned waiting = 0;
        std::uint64_t least = 0;
        void open() {
            if (waiting) changed.notify_all();
        }
        void reached(std::uint64_t number) {
            if (waiting && number >= least) changed.notify_all();
        }
    };

    struct Flight {  // a frame that was sent and is not acknowledged
        std::uint64_t last;
        std::uint64_t since_ns;
    };

    template <class Ready>
    Status await(Lock& lock, Gate& gate, std::uint64_t number, std::int64_t slice_ns, bool closing,
                 Ready ready);
    Status ended() const noexcept;
    void open_all();
    void wake() const noexcept;
    void lose(std::string_view why);
    void retire(std::string_view why);
    void break_off(std::string_view why, bool weights);

    // engine_io.hpp
    void write_due(Lock& lock, By by);
    void await_turn(Lock& lock);
    bool offer(Lock& lock, int& error);
    bool wait_writable(Lock& lock);
    void read_now(Lock& lock);
    template <class Ready>
    bool work_for_room(Lock& lock, std::int64_t slice_ns, Ready ready);
    bool callers_do_it(bool look = true) noexcept;
    bool compose(By by);
    std::uint32_t few_rows() const noexcept {
        const std::uint64_t rows = few_bytes / std::max<std::uint64_t>(1, layout_.sample_bytes());
        return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(rows, 1, layout_.capacity()));
    }
    bool composed() const noexcept { return next_piece_ < pieces_.size(); }
    void wrote(std::size_t n);
    void offer_room();
    bool anybody_waits() const noexcept;
    void run();
    void begin_link();
    void end_link();
    const char* read_some(int fd, std::string& gone);
    const char* digest();
    const char* resume(std::uint64_t number);
    const char* acknowledge(std::uint64_t number);
    static std::string refused_request();

    const Layout layout_;
    const EngineConfig config_;
    const unsigned generation_ = fork_generation.load(std::memory_order_relaxed);

    std::mutex mutex_;
    Window window_;
    bool appending_ = false;
    bool closing_ = false;  // close() has begun
    bool closed_ = false;
    bool failed_ = false;  // there will be no further link
    bool job_ended_ = false;
    bool broken_format_ = false, broken_weights_ = false;
    bool served_ = false;  // a link has been up
    std::string why_ = "it has not been connected yet";
    Counters counters_;
    Latency rtt_;

    // The outgoing side. Only the owner of writing_ touches pieces_.
    Outbox outbox_;
    bool writing_ = false;
    bool blocked_ = false;  // the socket takes no more; the I/O thread waits until it does
    std::vector<iovec> pieces_;
    std::size_t next_piece_ = 0;
    bool piece_is_data_ = false;
    std::string message_;  // the message of the outbox that is being written
    std::byte* pinned_ = nullptr;  // the block that pieces_ points into
    FrameHeader header_{};
    std::deque<Flight> flights_;
    std::uint32_t most_rows_ = few_rows();  // most rows of the next frame
    std::uint64_t flush_to_ = 0;  // samples up to here are to be sent without waiting for more
    std::uint64_t written_ = 0;   // samples that the socket has taken as a whole
    // The learner's sample numbers count all samples of this client id, perhaps also those of an earlier process.
    std::uint64_t number_shift_ = 0;

    // The link.
    Link link_ = Link::down;
    int fd_ = -1;
    bool near_ = false;        // the learner is on this machine
    bool fd_is_lost_ = false;  // shut down, to be closed by the I/O thread
    bool fresh_ = false;       // attached, but the I/O thread has not seen it yet
    bool parting_ = false, said_all_ = false;
    std::string rest_;

    // Weights.
    bool subscribed_ = false;
    unsigned weights_waits_ = 0;  // calls that wait for weights
    std::optional<WeightsBlob> arrived_;
    std::uint64_t version_ = 0;  // the version that this worker holds
    std::uint64_t holds_ = 0;

    unsigned events_ = Event::none;
    Gate turn_, room_, flush_gate_, ack_gate_, answer_gate_, held_gate_, event_gate_, link_gate_;

    // Members of the I/O thread.
    Incoming incoming_;
    std::vector<std::byte> buffer_;
    std::uint64_t received_ = 0;  // bytes not yet counted
    std::atomic<std::uint64_t> heard_ns_{0};  // when the last byte came
    std::uint64_t beat_ms_ = 10000, bytes_sent_seen_ = 0;
    int wake_fd_;
    bool stop_ = false;
    bool reading_ = false;             // a thread reads from the socket; it owns incoming_, buffer_ and received_
    bool working_ = false;             // a caller that waits for room does the I/O thread's work
    bool lingering_ = false;           // the I/O thread leaves the socket to the callers
    bool in_full_flow_ = false;
    std::uint64_t appended_seen_ = 0;  // window_.appended() when the I/O thread looked last
    std::thread thread_;
};

}  // namespace echo_tcp::worker

#include "engine_calls.hpp"
#include "engine_io.hpp"
