// New connections, their traffic, and their wait for space. Part of loop.hpp.
#pragma once

namespace echo_tcp::learner {

// A connection is served only after Python knows of it (begin()). So a worker that sees itself connected is
// already among the learner's peers, and the connections that it replaces are not.
inline void Loop::welcome(NewPeer &fresh) {
    auto owned = std::make_unique<Peer>();
    Peer &p = *owned;
    p.fd = fresh.fd;
    p.key = fresh.key;
    p.echo1 = fresh.echo1;
    p.observer = fresh.observer;
    p.figures = std::move(fresh.figures);
    Session &session = sessions_.open(fresh.client, fresh.base);
    // The older connection ends first: it gives back everything that it holds, and none of its samples are
    // committed after the new connection has received the resume point.
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
    p.heard_at = now_;
    if ((p.beat_ns = fresh.beat_ns) != 0) {
        beat_ns_ = peers_.empty() || beat_ns_ == 0 ? p.beat_ns : std::min(beat_ns_, p.beat_ns);
        next_beat_ = std::min(next_beat_, now_ + beat_ns_ / 2);
    }
    if (!fresh.leftover.empty()) {
        p.tail.assign(fresh.leftover.begin(), fresh.leftover.end());
        p.held_back = true;
    }
    peers_.emplace(p.key, std::move(owned));
    totals.active.set(peers_.size());
    events_->push({Event::added, p.key, 0, 0, {}});
    epoll_event event{};
    event.events = p.interest = 0;
    event.data.ptr = &p;
    if (epoll_ctl(epoll_, EPOLL_CTL_ADD, p.fd, &event) != 0) {
        p.reason = std::string("cannot be watched: ") + std::strerror(errno);
        return drop(p);
    }
    if (stop_by_ != 0) leave(p, closing_, closing_flags_);
}

inline void Loop::begin(Peer &p) {
    p.begun = true;
    p.figures->read_at.set(std::uint64_t(now_));  // until now nothing could be heard from it
    write(p);
    if (p.held_back) serve(p);
}

inline void Loop::ready(Peer &p, std::uint32_t events) {
    if (p.leaving) return swallow(p);
    if (!p.begun) {
        p.reason = "the worker hung up at once";
        return drop(p);
    }
    if (events & EPOLLOUT) write(p);
    if (p.dead || p.leaving) return;
    if (p.parked && events & (EPOLLERR | EPOLLHUP)) {
        // The peer is gone while it waits for space. A worker of protocol 2 sends unacknowledged samples
        // again. One of the original protocol cannot, so the samples that it sent are still taken.
        if (!p.echo1) {
            p.reason = "it hung up while waiting for space";
            return drop(p);
        }
        epoll_ctl(epoll_, EPOLL_CTL_DEL, p.fd, nullptr);
        p.hung_up = true;
    } else if (events & (EPOLLIN | EPOLLERR | EPOLLHUP) && !p.parked) {
        serve(p);
    }
}

// Reads for one turn and acknowledges the samples that were committed. `first`: the peer was first in the
// queue for space, and it returns to the front if it gets less than its share.
inline Step Loop::serve(Peer &p, bool first) {
    const bool others = !parked_.empty() || turns_.waiting() > std::size_t(in_turns_);
    read_something_ = true;
    Step step;
    try {
        step = ingest_.turn(p, first || !others, others);
    } catch (const std::bad_alloc &) {
        p.reason = out_of_memory;
        step = Step::ended;
    }
    keep_open_list(p);
    if (p.undecided && p.decide_by == 0) {
        p.decide_by = now_ + hello_ns;
        undecided_.push_back(&p);
    }
    if (step == Step::ended) {
        write(p);
        if (p.broken || store_.closed()) {
            p.broken ? leave(p, p.reason) : leave(p, closing_, closing_flags_);
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
    if (p.parked || !put_off(p)) write(p);
    return step;
}

// Whether nothing has to be written to this peer now: its acknowledgement, if one is due, is put off.
inline bool Loop::put_off(Peer &p) {
    if (p.interest != EPOLLIN || p.asked >= most_asked || outbox_.more_than_ack(p)) return false;
    return put_off_.add(p, now_);
}

inline void Loop::write_put_off() {
    for (Peer *p : put_off_.take()) write(*p);
}

inline void Loop::write(Peer &p) {
    if (p.dead) return;
    const bool done = outbox_.pump(p);
    p.show_held(*events_);
    asks_much(p, p.asked >= most_asked);
    const bool full = p.asks_much || p.unsent() >= most_out;
    const std::uint32_t in = p.parked || full ? 0u : std::uint32_t(EPOLLIN);
    watch_for(p, in | (done ? 0u : std::uint32_t(EPOLLOUT)));
    if (next_offer_ == INT64_MAX && outbox_.held_off(p)) {
        offer_pause_ = std::clamp(2 * offer_pause_, first_offer_ns, last_offer_ns);
        next_offer_ = now_ + offer_pause_;
    }
}

// A peer that is not read, because it waits for answers, is read again as soon as requests of it were parked.
inline void Loop::asks_much(Peer &p, bool now) {
    if (now == p.asks_much) return;
    p.asks_much = now;
    now ? ++asking_much_ : --asking_much_;
    mailbox.hurry(asking_much_ != 0);
}

inline void Loop::watch_for(Peer &p, std::uint32_t interest) {
    if (interest == p.interest || p.hung_up) return;
    p.interest = interest;
    epoll_event event{};
    event.events = interest;
    event.data.ptr = &p;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, p.fd, &event);
}

// ---- waiting for space ----------------------------------------------------------------------------

inline void Loop::park(Peer &p, std::deque<Peer *> &queue, bool in_front) {
    p.parked = true;
    if (!somebody_parked()) next_probe_ = now_ + probe_ns;
    if (p.figures->parked_at.get() == 0) p.figures->parked_at.set(std::uint64_t(now_));
    totals.parked.add(1);
    totals.waiting.add(1);
    in_front ? queue.push_front(&p) : queue.push_back(&p);
}

inline void Loop::unpark(Peer &p) {
    p.parked = false;
    p.heard_at = now_;  // it was not read meanwhile, so its silence begins now
    totals.waiting.set(totals.waiting.get() - 1);
}

// Finds parked workers that have died. While a connection is not read, the end of its worker stays invisible behind
// samples for which there is no room. But the dead worker's kernel resets the connection when anything is sent to
// it. So a peer that has waited for long gets its last acknowledgement once more.
inline void Loop::probe_parked() {
    next_probe_ = now_ + probe_ns;
    for (const std::deque<Peer *> *queue : {&parked_, &staging_})
        for (Peer *p : *queue) {
            if (p->echo1 || now_ - std::int64_t(p->figures->parked_at.get()) < probe_ns / 2) continue;
            p->ack_due = true;
            write(*p);
        }
    if (!staging_.empty()) give_up_staged();
}

// Parked peers get the newest weights as soon as the version before has arrived. No event tells when, so the loop looks again after longer and
// longer pauses: a stopped worker confirms nothing.
inline void Loop::offer_again() {
    next_offer_ = INT64_MAX;
    for (const std::deque<Peer *> *queue : {&parked_, &staging_})
        for (Peer *p : *queue)
            if (outbox_.held_off(*p)) write(*p);
}

// A peer waits for memory to stage a frame in. A sender that was stopped in the middle of a staged frame would keep that memory
// as long as it is stopped. So the sender that has been silent longest is disconnected; it sends the frame again when it
// returns. A peer of the original protocol is left alone, because it could not return.
inline void Loop::give_up_staged() {
    Peer *longest = nullptr;
    for (const auto &[key, p] : peers_) {
        if (p->echo1 || p->parked || p->leaving || !p->landing || p->landing->whole() || p->landing->staged_bytes() == 0) continue;
        if (longest == nullptr || p->landing->progress_at < longest->landing->progress_at) longest = p.get();
    }
    if (longest == nullptr || now_ - longest->landing->progress_at < silent_ns) return;
    Peer &p = *longest;
    serve(p);  // a trickle of bytes does not wake this loop, so bytes that lie in the socket now count as well
    if (p.dead || p.leaving || !p.landing || p.landing->progress_at == now_) return;
    p.reason = "it stopped in the middle of a large frame, whose memory others were waiting for (more of it: staging_bytes)";
    drop(p);
}

inline Step Loop::serve_waiting(Peer &p, bool first) {
    unpark(p);
    p.figures->parked_at.set(0);
    Step step;
    do step = serve(p, first);
    while (step == Step::more && p.hung_up);  // epoll will not name it again
    if (p.hung_up && !p.parked) drop(p);
    return step;
}

// There may be space: serves the parked peers in order. While others wait, each peer gets its share and then goes
// to the end of the queue. A peer that finds less space than its share keeps its place.
inline void Loop::serve_parked() {
    serve_again_ = false;
    if (!parked_.empty()) {
        in_turns_ = true;
        if (!turns_.mine(space_)) return;  // it is another loop's turn, and that loop wakes this one later
        if (shares_left_ == 0) shares_left_ = parked_.size();
    }
    for (; shares_left_ != 0 && !parked_.empty(); --shares_left_) {
        Peer &p = *parked_.front();
        parked_.pop_front();
        const std::uint64_t before = totals.samples.get(), since = p.figures->parked_at.get();
        const Step step = serve_waiting(p, true);
        if (p.parked && totals.samples.get() == before) p.figures->parked_at.set(since);
        if (step == Step::space) break;  // the store is full
    }
    if (parked_.empty()) {
        in_turns_ = false;
        shares_left_ = 0;
        turns_.leave(space_);
    } else if (shares_left_ != 0 || turns_.pass(space_)) {
        armed_ = store_.arm_space(space_);
        serve_again_ = !armed_;
    }
}

inline void Loop::serve_staging() {
    for (std::size_t n = staging_.size(); n != 0 && !staging_.empty(); --n) {
        Peer &p = *staging_.front();
        staging_.pop_front();
        serve_waiting(p, false);
    }
    if (!parked_.empty() && !armed_) serve_again_ = true;
}

// ---- silence --------------------------------------------------------------------------------------

inline void Loop::ping(Peer &p, std::uint8_t flags) {
    const FrameHeader header = make_header(Kind::ping, 0, 0, 0, flags);
    Outbox::append(p, &header, sizeof header);
    if (p.begun) write(p);  // begin() writes it otherwise; to watch the connection before that would end it, see ready()
}

// Sends a sign of life to peers that were sent nothing for half a beat, also to those that are held off, and drops
// peers from which nothing came although they were read. Only bytes count: the kernel does not notice a proxy that has stalled.
inline void Loop::look_for_silence() {
    next_beat_ = INT64_MAX;
    std::vector<Peer *> silent;
    for (auto &[key, p] : peers_) {
        if (p->beat_ns == 0) continue;
        next_beat_ = now_ + beat_ns_ / 2;
        if (!p->begun || p->leaving) continue;
        if (p->bytes_out == std::exchange(p->bytes_out_seen, p->bytes_out) && p->unsent() == 0 && p->chunk_left == 0) ping(*p, flag_reply);
        const bool read = !p->parked && p->interest & EPOLLIN;
        const std::int64_t heard = std::max(p->heard_at, std::int64_t(p->figures->read_at.get()));
        if (!read) {
            p->heard_at = now_;
        } else if (now_ - heard > silence_ns_) {
            silent.push_back(p.get());
        }
    }
    for (Peer *p : silent) {
        serve(*p);  // bytes may lie in the socket: too few to wake this loop, or come just now
        if (p->dead || p->leaving || p->parked || std::int64_t(p->figures->read_at.get()) == now_) continue;
        p->reason = "it was silent for longer than the option silence permits";
        drop(*p);
    }
    if (peers_.empty()) beat_ns_ = 0;
}

// Takes what may be the beginning of a HELLO for samples, if its rest has not come.
inline void Loop::decide() {
    while (!undecided_.empty() && (!undecided_.front()->undecided || now_ >= undecided_.front()->decide_by)) {
        Peer &p = *undecided_.front();
        undecided_.pop_front();
        if (!p.undecided) continue;
        ingest_.decide(p);
        if (!p.parked) serve(p);
    }
}

// ---- stalled frames -------------------------------------------------------------------------------

// open_ lists the peers whose unfinished frame holds slots.
inline void Loop::keep_open_list(Peer &p) {
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

inline void Loop::evict_stalled() {
    for (std::size_t i = open_.size(); i-- != 0;) {
        if (i >= open_.size()) continue;
        Peer &p = *open_[i];
        const bool stalled = now_ - p.landing->progress_at >= stall_ns;
        const std::int64_t enough = std::max(trickle_ns, 8 * ingest_.round_ns);
        if (!stalled && now_ - p.landing->opened_at < enough) continue;
        // Perhaps this loop was late, not the sender. So bytes that lie in the socket now count as progress.
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

}  // namespace echo_tcp::learner
