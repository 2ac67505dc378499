// One thread that serves many connections: epoll, and whose turn it is.
//
// * A readable connection reads its share and is then behind all others (epoll's own order).
// * A connection whose samples find the store full is parked: not read, so that TCP holds its worker
//   back and nobody else's. Parked connections are served first come, first served when the store
//   says that there is space, and newcomers queue up behind them.
// * A large frame that stalls in its slots is staged, so that no batch waits for one sender.
// * Asleep, the loop costs nothing: the only timers are for stalled frames and for farewells.
#pragma once

#include <pthread.h>
#include <sys/epoll.h>

#include <array>
#include <csignal>
#include <deque>
#include <stdexcept>
#include <thread>
#include <unordered_map>

#include "ingest.hpp"
#include "mailbox.hpp"
#include "outbox.hpp"

namespace echo_tcp::learner {

class Loop {
public:
    Loop(const echo_capi *api, echo_store *store, std::shared_ptr<Events> events, std::uint64_t staging_limit)
        : store_(api, store), events_(std::move(events)), ingest_(store_, *events_, totals, staging_limit), outbox_(totals) {
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
        // Signals are Python's: delivered to a thread of ours they would not wake the one that sleeps.
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

    // The two things that other threads may use.
    Mailbox mailbox;
    Totals totals;

private:
    static constexpr int most_events = 256;
    static constexpr const char *closing = "the learner is closing";
    static constexpr const char *out_of_memory = "the learner is out of memory for a frame of this worker";
    static constexpr std::int64_t stall_ns = 5'000'000;     // without a byte, or ...
    static constexpr std::int64_t trickle_ns = 25'000'000;  // ... altogether: a frame leaves its slots
                                                            // (a busy loop allows for its own rounds)
    static constexpr std::int64_t farewell_ns = 1'000'000'000;
    static constexpr std::uint32_t most_asked = 16;         // CONTROL requests without an answer, and ...
    static constexpr std::size_t most_out = 1 << 20;        // ... bytes not sent: then it is not read

    // ---- the thread -------------------------------------------------------------------------------
    void run() {
        epoll_event events[most_events];
        while (!(stop_by_ != 0 && peers_.empty())) {
            const int n = epoll_wait(epoll_, events, most_events, patience());
            const std::int64_t began = now_ = ingest_.now = clock_ns();
            read_something_ = false;
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
            if (!parked_.empty() && !armed_) serve_parked();
            if (std::exchange(ingest_.staging_freed, false)) serve_staging();
            if (!open_.empty()) evict_stalled();
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
    }

    // Milliseconds until a timer; -1 for none.
    int patience() const {
        if (serve_again_) return 0;
        std::int64_t until = -1;
        if (!open_.empty()) until = stall_ns;
        if (!leaving_.empty() || stop_by_ != 0) {
            const std::int64_t left = std::max<std::int64_t>(next_farewell_ - clock_ns(), 0);
            if (until < 0 || left < until) until = left;
        }
        return until < 0 ? -1 : int(until / 1'000'000 + 1);
    }

    void obey() {
        Commands commands = mailbox.take();
        for (NewPeer &peer : commands.added) welcome(peer);
        for (auto &[key, frame] : commands.replies)
            if (Peer *p = find(key)) {
                --p->asked;
                p->out += frame;
                write(*p);
            }
        for (auto &[key, reason] : commands.refused)
            if (Peer *p = find(key)) {
                p->reason = std::move(reason);
                p->broken = true;
                leave(*p, p->reason);
            }
        if (commands.weights) {
            outbox_.latest = std::move(commands.weights);
            for (auto &[key, p] : peers_)
                if (p->subscribed && !p->sending && !p->leaving) write(*p);
        }
        if (commands.stop_by != 0 && stop_by_ == 0) begin_to_stop(commands.stop_by);
    }

    Peer *find(std::uint64_t key) {
        const auto found = peers_.find(key);
        return found == peers_.end() || found->second->leaving ? nullptr : found->second.get();
    }

    // ---- connections come -------------------------------------------------------------------------
    void welcome(NewPeer &fresh) {
        auto owned = std::make_unique<Peer>();
        Peer &p = *owned;
        p.fd = fresh.fd;
        p.key = fresh.key;
        p.echo1 = fresh.echo1;
        p.figures = std::move(fresh.figures);
        Session &session = sessions_.open(fresh.client, fresh.base);
        // The older connection first: what it holds is given back, and nothing of it is committed
        // after the resume point has been told to the new one.
        if (session.live != nullptr) {
            Peer &older = *session.live;
            older.reason = "replaced by a newer connection of the same worker";
            older.session = nullptr;
            drop(older);
        }
        session.live = &p;
        p.session = &session;
        p.acked = session.committed;
        p.ack_due = !p.echo1;
        p.out = std::move(fresh.unsent);
        p.figures->samples.set(session.inserted);
        p.figures->read_at.set(std::uint64_t(now_));
        if (!fresh.leftover.empty()) {
            p.tail.assign(fresh.leftover.begin(), fresh.leftover.end());
            p.held_back = true;
        }
        peers_.emplace(p.key, std::move(owned));
        totals.active.set(peers_.size());
        events_->push({Event::added, p.key, 0, 0, {}});
        epoll_event event{};
        event.events = p.interest = EPOLLIN;
        event.data.ptr = &p;
        if (epoll_ctl(epoll_, EPOLL_CTL_ADD, p.fd, &event) != 0) {
            p.reason = std::string("cannot be watched: ") + std::strerror(errno);
            return drop(p);
        }
        if (stop_by_ != 0) {
            return leave(p, closing);
        }
        write(p);
        if (!p.dead && p.held_back) serve(p);
    }

    // ---- connections talk -------------------------------------------------------------------------
    void ready(Peer &p, std::uint32_t events) {
        if (p.leaving) return swallow(p);
        if (events & EPOLLOUT) write(p);
        if (p.dead || p.leaving) return;
        if (p.parked && events & (EPOLLERR | EPOLLHUP)) {
            // Dead while it waits for space. A worker of protocol 2 sends again what was not
            // acknowledged; one of the original protocol cannot, so what it sent is still taken.
            if (!p.echo1) {
                p.reason = "connection lost while waiting for space";
                return drop(p);
            }
            epoll_ctl(epoll_, EPOLL_CTL_DEL, p.fd, nullptr);
            p.hung_up = true;
        } else if (events & (EPOLLIN | EPOLLERR | EPOLLHUP) && !p.parked) {
            serve(p);
        }
    }

    // One turn of reading, and the acknowledgement of what came of it. `first`: it was first in the
    // queue for space, and is again if it gets less than its share.
    Step serve(Peer &p, bool first = false) {
        const bool others = !parked_.empty();
        read_something_ = true;
        Step step;
        try {
            step = ingest_.turn(p, first || !others, others);
        } catch (const std::bad_alloc &) {
            p.reason = out_of_memory;
            step = Step::ended;
        }
        keep_open_list(p);
        if (step == Step::ended) {
            write(p);
            if (p.broken || store_.closed()) {
                leave(p, p.broken ? p.reason : closing);
            } else {
                drop(p);
            }
            return step;
        }
        if (step == Step::staging) {
            park(p, staging_);
        } else if (step == Step::space || step == Step::share) {
            park(p, parked_, first && step == Step::space);
        }
        write(p);
        return step;
    }

    void write(Peer &p) {
        if (p.dead) return;
        const bool done = outbox_.pump(p);
        const bool full = p.asked >= most_asked || p.out_left() >= most_out;
        watch_for(p, (p.parked || full ? 0u : std::uint32_t(EPOLLIN)) | (done ? 0u : std::uint32_t(EPOLLOUT)));
    }

    void watch_for(Peer &p, std::uint32_t interest) {
        if (interest == p.interest || p.hung_up) return;
        p.interest = interest;
        epoll_event event{};
        event.events = interest;
        event.data.ptr = &p;
        epoll_ctl(epoll_, EPOLL_CTL_MOD, p.fd, &event);
    }

    // ---- waiting for space ------------------------------------------------------------------------
    void park(Peer &p, std::deque<Peer *> &queue, bool in_front = false) {
        p.parked = true;
        if (p.figures->parked_at.get() == 0) p.figures->parked_at.set(std::uint64_t(now_));
        totals.parked.add(1);
        totals.waiting.add(1);
        in_front ? queue.push_front(&p) : queue.push_back(&p);
    }
    void unpark(Peer &p) {
        p.parked = false;
        totals.waiting.set(totals.waiting.get() - 1);
    }

    // There may be space: first come, first served, and while others wait each gets its share and is
    // then behind them. One that finds less space than its share keeps its place.
    void serve_parked() {
        serve_again_ = false;
        for (std::size_t n = parked_.size(); n != 0 && !parked_.empty(); --n) {
            Peer &p = *parked_.front();
            parked_.pop_front();
            unpark(p);
            const std::uint64_t before = totals.samples.get();
            const std::uint64_t since = p.figures->parked_at.get();
            p.figures->parked_at.set(0);
            Step step;
            do step = serve(p, true);
            while (step == Step::more && p.hung_up);  // epoll will not name it again
            if (step == Step::space) {
                if (totals.samples.get() == before) p.figures->parked_at.set(since);
                break;  // the store is full
            }
            if (p.hung_up && !p.parked && !p.dead) drop(p);
        }
        if (parked_.empty()) return;
        armed_ = store_.arm_space(space_);
        serve_again_ = !armed_;
    }

    void serve_staging() {
        for (std::size_t n = staging_.size(); n != 0 && !staging_.empty(); --n) {
            Peer &p = *staging_.front();
            staging_.pop_front();
            unpark(p);
            p.figures->parked_at.set(0);
            serve(p);
        }
        if (!parked_.empty() && !armed_) serve_again_ = true;
    }

    // ---- stalled frames ---------------------------------------------------------------------------
    // open_ lists the peers whose unfinished frame holds slots.
    void keep_open_list(Peer &p) {
        const bool open = p.landing && p.landing->holds_slots() && !p.landing->whole();
        if (open && p.open_at < 0) {
            p.open_at = int(open_.size());
            open_.push_back(&p);
        } else if (!open && p.open_at >= 0) {
            open_[std::size_t(p.open_at)] = open_.back();
            open_.back()->open_at = p.open_at;
            open_.pop_back();
            p.open_at = -1;
        }
    }

    void evict_stalled() {
        for (std::size_t i = open_.size(); i-- != 0;) {
            if (i >= open_.size()) continue;
            Peer &p = *open_[i];
            const bool stalled = now_ - p.landing->progress_at >= stall_ns;
            const std::int64_t enough = std::max(trickle_ns, 8 * ingest_.round_ns);
            if (!stalled && now_ - p.landing->opened_at < enough) continue;
            // It may be this loop that was late: what the socket holds by now counts as progress.
            if (stalled) {
                serve(p);
                if (p.dead || p.leaving || p.open_at < 0 || p.landing->progress_at == now_) continue;
            }
            try {
                ingest_.stage(p);
                keep_open_list(p);
            } catch (const std::bad_alloc &) {
                p.reason = out_of_memory;
                leave(p, p.reason);
            }
        }
    }

    // ---- connections go ---------------------------------------------------------------------------
    // Say why, and wait a little for the other end to have read it: closing at once, with bytes of it
    // unread here, would reset the connection and take the farewell with it.
    void leave(Peer &p, std::string_view farewell) {
        if (p.dead || p.leaving) return;
        outbox_.say_bye(p, farewell);
        end_of(p);
        p.leaving = true;
        p.leave_by = now_ + farewell_ns;
        leaving_.push_back(&p);
        next_farewell_ = leaving_.size() == 1 ? p.leave_by : std::min(next_farewell_, p.leave_by);
        swallow(p);
    }

    // What a leaving peer still sends is thrown away, until it closes as well.
    void swallow(Peer &p) {
        if (p.hung_up) return drop(p);
        const bool done = outbox_.pump(p);
        if (done) shutdown(p.fd, SHUT_WR);
        char waste[16384];
        for (int reads = 0; reads < 16; ++reads) {
            const ssize_t got = recv(p.fd, waste, sizeof waste, 0);
            if (got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return drop(p);
            if (got < 0) break;
        }
        watch_for(p, std::uint32_t(EPOLLIN) | (done ? 0u : std::uint32_t(EPOLLOUT)));
    }

    void drop(Peer &p) {
        if (p.dead) return;
        end_of(p);
        p.dead = true;
        if (p.leaving) leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &p));
        // A forked child may hold a copy of the descriptor; the connection must end all the same.
        shutdown(p.fd, SHUT_RDWR);
        close(p.fd);
        const auto found = peers_.find(p.key);
        graveyard_.push_back(std::move(found->second));
        peers_.erase(found);
        totals.active.set(peers_.size());
    }

    // It takes part no longer: what it holds is given back and Python is told. Once per connection.
    void end_of(Peer &p) {
        if (p.leaving || p.dead) return;
        ingest_.forget(p);
        keep_open_list(p);
        if (p.parked) {
            unpark(p);
            for (std::deque<Peer *> *queue : {&parked_, &staging_})
                queue->erase(std::remove(queue->begin(), queue->end(), &p), queue->end());
        }
        if (p.session != nullptr) sessions_.leave(*p.session, p.echo1);
        p.session = nullptr;
        if (p.broken) totals.protocol_errors.add(1);
        events_->push({Event::lost, p.key, p.broken, 0, p.reason});
    }

    // ---- the end ----------------------------------------------------------------------------------
    void begin_to_stop(std::int64_t deadline) {
        stop_by_ = next_farewell_ = deadline;
        std::vector<Peer *> all;
        for (auto &[key, p] : peers_) all.push_back(p.get());
        // What has arrived whole is committed, as far as there is space and time for it.
        for (Peer *p : all)
            while (!p->dead && !p->leaving && !p->parked && clock_ns() < deadline)
                if (serve(*p) != Step::more) break;
        for (Peer *p : all) {
            if (!p->dead && !p->leaving) leave(*p, closing);
        }
    }

    void hurry_leavers() {
        next_farewell_ = stop_by_ != 0 ? stop_by_ : INT64_MAX;
        for (std::size_t i = leaving_.size(); i-- != 0;) {
            Peer &p = *leaving_[i];
            const std::int64_t by = stop_by_ != 0 ? std::min(stop_by_, p.leave_by) : p.leave_by;
            if (now_ >= by) {
                drop(p);
            } else {
                next_farewell_ = std::min(next_farewell_, by);
            }
        }
    }

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

    Store store_;
    const std::shared_ptr<Events> events_;
    Ingest ingest_;
    Outbox outbox_;
    Sessions sessions_;
    int epoll_ = -1, space_ = -1;
    std::thread thread_;

    std::unordered_map<std::uint64_t, std::unique_ptr<Peer>> peers_;
    std::vector<std::unique_ptr<Peer>> graveyard_;  // events of this round may still name them
    std::deque<Peer *> parked_, staging_;           // wait for slots, wait for staging memory
    std::vector<Peer *> open_, leaving_;
    std::int64_t now_ = 0;            // at the beginning of the round
    std::int64_t stop_by_ = 0;        // not zero: stopping
    std::int64_t next_farewell_ = 0;  // the first of leave_by; meaningful while there is one
    bool armed_ = false;              // the store will write to space_
    bool serve_again_ = false;        // there is space, but somebody may be parked still
    bool read_something_ = false;
};

}  // namespace echo_tcp::learner
