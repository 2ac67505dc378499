// One thread that serves many connections: it waits with epoll and decides whose turn it is.
//
// * A readable connection is read up to its share and then comes after all others (epoll's own order).
// * A connection is parked when the store is full and its samples need space. A parked connection is not
//   read, so TCP slows down its worker and no other. When the store says that there is space, parked
//   connections are served in the order in which they were parked, and new ones queue up behind them.
// * A large frame that stalls in its slots is staged, so that no batch waits for one sender.
// * An idle loop costs little: it has timers for stalled frames, for farewells, for connections that wait for
//   space, and for signs of life, which both ends send every third of the option silence.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include <array>
#include <csignal>
#include <deque>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "acknowledgement.hpp"
#include "ingest.hpp"
#include "mailbox.hpp"
#include "../recycled_buffers.hpp"
#include "outbox.hpp"
#include "turns.hpp"

namespace echo_tcp::learner {

class Loop {
public:
    Loop(const echo_capi *api, echo_store *store, std::shared_ptr<Events> events, Requests &requests, std::uint64_t group, Turns &turns,
         std::uint64_t staging_limit, std::int64_t silence_ns, echo_store *labelled)
        : silence_ns_(silence_ns), store_(api, store, labelled), events_(std::move(events)), turns_(turns),
          ingest_(store_, *events_, requests, group, totals, staging_limit), outbox_(totals, recycled) {
        try {
            epoll_ = epoll_create1(EPOLL_CLOEXEC);
            if (epoll_ < 0) throw std::system_error(errno, std::generic_category(), "epoll_create1");
            space_ = new_eventfd();
            watch(mailbox.fd(), &mailbox);
            watch(space_, &space_);
        } catch (...) {
            close_descriptors();
            throw;
        }
    }
    ~Loop() { close_descriptors(); }
    Loop(const Loop &) = delete;
    Loop &operator=(const Loop &) = delete;

    void start() {
        // Python handles signals in its main thread. A signal delivered to this thread would not wake that one.
        sigset_t all, before;
        sigfillset(&all);
        pthread_sigmask(SIG_SETMASK, &all, &before);
        try {
            thread_ = std::thread([this] { run(); });
        } catch (...) {
            pthread_sigmask(SIG_SETMASK, &before, nullptr);
            throw;
        }
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        pthread_setname_np(thread_.native_handle(), "echo-tcp");
    }

    void join() {
        if (thread_.joinable()) thread_.join();
    }

    // Only these members may be used by other threads.
    Mailbox mailbox;
    Totals totals;
    RecycledBuffers recycled;  // for answers

private:
    static constexpr int most_events = 256;
    static constexpr const char *out_of_memory = "the learner is out of memory for a frame of this worker";
    static constexpr std::int64_t stall_ns = 5'000'000;     // a frame leaves its slots after so long without a byte, or ...
    static constexpr std::int64_t trickle_ns = 25'000'000;  // ... when it takes so long in total
                                                            // (a busy loop adds the time of its own rounds)
    static constexpr std::int64_t farewell_ns = 1'000'000'000;
    static constexpr std::int64_t probe_ns = 2'000'000'000;  // time between two probes of parked connections
    static constexpr std::int64_t first_offer_ns = 1'000'000, last_offer_ns = 500'000'000;  // shortest and longest time between two offers of weights
    static constexpr std::int64_t silent_ns = 3'000'000'000;  // a staged frame without a byte for so long may lose its memory to others
    static constexpr std::uint32_t most_asked = 16;         // a connection with so many unanswered CONTROL requests, or ...
    static constexpr std::size_t most_out = 1 << 20;        // ... so many unsent bytes is not read
    static constexpr std::int64_t hello_ns = 1'000'000'000;  // so long the rest of a HELLO is waited for
    static constexpr int last_turns = 16;                   // turns that each connection gets when the loop stops

    // ---- the thread -------------------------------------------------------------------------------
    void run() {
        epoll_event events[most_events];
        while (!(stop_by_ != 0 && peers_.empty())) {
            const int n = epoll_wait(epoll_, events, most_events, put_off_.empty() ? patience() : 0);
            const std::int64_t began = now_ = ingest_.now = clock_ns();
            read_something_ = false;
            if (put_off_.must_be_written(n == 0, now_)) write_put_off();
            for (int i = 0; i < n; ++i) {
                void *what = events[i].data.ptr;
                if (what == &mailbox) {
                    obey();
                } else if (what == &space_) {
                    clear_eventfd(space_);
                    armed_ = false;
                } else if (Peer &p = *static_cast<Peer *>(what); !p.dead) {
                    ready(p, events[i].events);
                }
            }
            if (parked_.empty() ? in_turns_ : !armed_) serve_parked();
            if (!open_.empty()) evict_stalled();
            if (!undecided_.empty()) decide();
            if (somebody_parked() && now_ >= next_probe_) probe_parked();
            if (now_ >= next_offer_) offer_again();
            if (now_ >= next_beat_) look_for_silence();
            if (std::exchange(ingest_.staging_freed, false)) serve_staging();  // any step above may have set it
            if (stop_by_ != 0 || !leaving_.empty()) hurry_leavers();
            graveyard_.clear();
            if (read_something_) {
                const std::int64_t took = clock_ns() - began;
                totals.rounds.add(1);
                store_.round_took(took);
                ingest_.round_ns = std::max(took, ingest_.round_ns - ingest_.round_ns / 8);
            }
        }
        if (armed_) store_.disarm_space(space_);
        turns_.leave(space_);
    }

    // Milliseconds until the next timer; -1 if no timer is set.
    int patience() const {
        if (serve_again_) return 0;
        std::int64_t until = INT64_MAX;
        if (next_beat_ != INT64_MAX) until = next_beat_ - clock_ns();
        if (somebody_parked()) until = std::min(until, next_probe_ - clock_ns());
        if (next_offer_ != INT64_MAX) until = std::min(until, next_offer_ - clock_ns());
        if (!open_.empty()) until = std::min(until, stall_ns);
        if (!undecided_.empty()) until = std::min(until, undecided_.front()->decide_by - clock_ns());
        if (!leaving_.empty() || stop_by_ != 0) until = std::min(until, next_farewell_ - clock_ns());
        return until == INT64_MAX ? -1 : int(std::max<std::int64_t>(until, 0) / 1'000'000 + 1);
    }

    void obey() {
        Commands commands = mailbox.take();
        for (NewPeer &peer : commands.added) welcome(peer);
        for (const std::uint64_t key : commands.begun)
            if (Peer *p = find(key)) begin(*p);
        for (const std::uint64_t key : commands.parked)
            if (Peer *p = find(key)) {
                --p->asked;  // it may wait for long, and its worker's samples and other requests must not
                write(*p);
            }
        for (Reply &reply : commands.replies) {
            if (Peer *p = find(reply.key)) {
                if (!reply.late) --p->asked;
                outbox_.answer(*p, std::move(reply.frame));
                write(*p);
            }
        }
        for (auto &[key, reason] : commands.refused)
            if (Peer *p = find(key)) {
                p->reason = std::move(reason);
                p->broken = true;
                leave(*p, p->reason);
            }
        for (auto &[key, reason] : commands.evicted)
            if (Peer *p = find(key)) {
                p->reason = std::move(reason);
                leave(*p, p->reason);
            }
        for (const std::uint64_t key : commands.pinged)
            if (Peer *p = find(key); p && !p->echo1) ping(*p, 0);
        if (commands.withdrawn) outbox_.latest.reset();
        if (commands.weights) {
            outbox_.latest = std::move(commands.weights);
            offer_pause_ = 0;
            for (auto &[key, p] : peers_)
                if (p->subscribed && !p->sending && !p->leaving) write(*p);
        }
        if (commands.stop_by != 0 && stop_by_ == 0) {
            if (!commands.stop_reason.empty()) closing_ = std::move(commands.stop_reason);
            closing_flags_ = commands.stop_flags;
            begin_to_stop(commands.stop_by);
        }
    }

    Peer *find(std::uint64_t key) {
        const auto found = peers_.find(key);
        return found == peers_.end() || found->second->leaving ? nullptr : found->second.get();
    }

    // ---- connections come, talk and wait: loop_serving.hpp ---------------------------------------
    void welcome(NewPeer &fresh);
    void begin(Peer &p);
    void ready(Peer &p, std::uint32_t events);
    Step serve(Peer &p, bool first = false);
    void write(Peer &p);
    bool put_off(Peer &p);
    void write_put_off();
    void asks_much(Peer &p, bool now);
    void watch_for(Peer &p, std::uint32_t interest);
    void park(Peer &p, std::deque<Peer *> &queue, bool in_front = false);
    void unpark(Peer &p);
    bool somebody_parked() const { return !parked_.empty() || !staging_.empty(); }
    void probe_parked();
    void offer_again();
    void give_up_staged();
    Step serve_waiting(Peer &p, bool first);
    void serve_parked();
    void serve_staging();
    void keep_open_list(Peer &p);
    void evict_stalled();
    void ping(Peer &p, std::uint8_t flags);
    void look_for_silence();
    void decide();

    // ---- connections go: loop_leaving.hpp ---------------------------------------------------------
    void leave(Peer &p, std::string_view farewell, std::uint8_t flags = 0);
    void swallow(Peer &p);
    void drop(Peer &p);
    void end_of(Peer &p);
    void begin_to_stop(std::int64_t deadline);
    void hurry_leavers();

    void watch(int fd, void *tag) {
        epoll_event event{};
        event.events = EPOLLIN;
        event.data.ptr = tag;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0)
            throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
    void close_descriptors() {
        for (int fd : {epoll_, space_})
            if (fd >= 0) close(fd);
    }

    const std::int64_t silence_ns_;
    Store store_;
    const std::shared_ptr<Events> events_;
    Turns &turns_;
    Ingest ingest_;
    Outbox outbox_;
    Sessions sessions_;
    int epoll_ = -1, space_ = -1;
    std::thread thread_;

    std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;
    std::vector<std::unique_ptr<Peer>> graveyard_;  // closed peers that events of this round may still name
    std::deque<Peer *> parked_, staging_;           // peers that wait for slots, and for staging memory
    std::vector<Peer *> open_, leaving_;
    std::deque<Peer *> undecided_;                  // peers that were once undecided; the one that is decided first comes first
    PutOff put_off_{store_.sample_bytes()};         // acknowledgements that are put off
    std::int64_t now_ = 0;            // time at the beginning of the round
    std::int64_t stop_by_ = 0;        // not zero while the loop is stopping
    std::string closing_ = "the learner is closing";
    std::uint8_t closing_flags_ = 0;  // of the BYE frames
    std::int64_t beat_ns_ = 0;        // the shortest of the peers that were here since there was none
    std::int64_t next_beat_ = INT64_MAX;  // when to look for silence, and to send signs of life
    std::int64_t next_probe_ = 0;     // meaningful while a peer is parked
    std::int64_t next_offer_ = INT64_MAX;  // when to look whether parked peers can be sent the newest weights
    std::int64_t offer_pause_ = 0;    // before the last such look, since the last publish
    std::int64_t next_farewell_ = 0;  // the earliest leave_by; meaningful while a peer is leaving
    std::size_t asking_much_ = 0;     // peers that ask so much that they are not read
    std::size_t shares_left_ = 0;     // shares left in this loop's turn
    bool in_turns_ = false;           // this loop is in the queue of turns_
    bool armed_ = false;              // the store will write to space_
    bool serve_again_ = false;        // there is space, but a peer may still be parked
    bool read_something_ = false;
};

}  // namespace echo_tcp::learner

#include "loop_leaving.hpp"
#include "loop_serving.hpp"
