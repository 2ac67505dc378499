// The end of connections: of one of them, or of all when the loop stops. Part of loop.hpp.
#pragma once

namespace echo_tcp::learner {

// Says why the connection ends, and waits a little until the other end has read it. A close at once, while bytes
// from the peer are still unread here, would reset the connection, and the farewell would be lost.
inline void Loop::leave(Peer &p, std::string_view farewell, std::uint8_t flags) {
    if (p.dead || p.leaving) return;
    outbox_.say_bye(p, farewell, flags);
    end_of(p);
    p.leaving = true;
    p.leave_by = now_ + farewell_ns;
    leaving_.push_back(&p);
    next_farewell_ = leaving_.size() == 1 ? p.leave_by : std::min(next_farewell_, p.leave_by);
    swallow(p);
}

// Discards everything that a leaving peer still sends, until the peer closes as well.
inline void Loop::swallow(Peer &p) {
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

inline void Loop::drop(Peer &p) {
    if (p.dead) return;
    end_of(p);
    p.dead = true;
    if (p.leaving) leaving_.erase(std::find(leaving_.begin(), leaving_.end(), &p));
    // A child process that was not made by fork(3) may hold a copy of the descriptor. The connection must end all the same. epoll watches the
    // connection, not the descriptor, so without this it would go on to report a peer whose memory is freed.
    epoll_ctl(epoll_, EPOLL_CTL_DEL, p.fd, nullptr);
    shutdown(p.fd, SHUT_RDWR);
    sockets_of_ours.remove(p.fd);
    close(p.fd);
    const auto found = peers_.find(p.key);
    graveyard_.push_back(std::move(found->second));
    peers_.erase(found);
    totals.active.set(peers_.size());
}

// The peer takes part no longer: gives back everything that it holds, and informs Python. Happens once per connection.
inline void Loop::end_of(Peer &p) {
    if (p.leaving || p.dead) return;
    ingest_.forget(p);
    keep_open_list(p);
    put_off_.forget(p);
    asks_much(p, false);
    std::erase(undecided_, &p);
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

// ---- the end --------------------------------------------------------------------------------------

inline void Loop::begin_to_stop(std::int64_t deadline) {
    stop_by_ = next_farewell_ = deadline;
    std::vector<Peer *> all;
    for (auto &[key, p] : peers_) all.push_back(p.get());
    // Commits the samples that have arrived as a whole, as far as there is space and time for them.
    for (Peer *p : undecided_)
        if (p->undecided) ingest_.decide(*p);
    for (Peer *p : all)
        for (int turn = 0; p->begun && turn < last_turns && !p->dead && !p->leaving && !p->parked && clock_ns() < deadline; ++turn)
            if (serve(*p) != Step::more) break;
    for (Peer *p : all) leave(*p, closing_, closing_flags_);
}

inline void Loop::hurry_leavers() {
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

}  // namespace echo_tcp::learner
