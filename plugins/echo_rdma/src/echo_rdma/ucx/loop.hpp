// The engine's thread: it makes progress, sleeps, sends heartbeats, and ends connections.
#pragma once


namespace echo_rdma {

inline void Engine::run() {
    pthread_setname_np(pthread_self(), "echo-rdma");
    int64_t busy_at = clock_ns();
    while (true) {
        while (visitors_.load(std::memory_order_relaxed) > 0) sched_yield(); // the lock itself is not fair
        std::unique_lock hold(lock_);
        now_ = clock_ns();
        bool worked = progress();
        quiet_ = !worked;
        worked |= turn();
        if (stopping_ && peers_.empty()) return;
        if (worked) {
            busy_at = now_;
            continue;
        }
        if (now_ - busy_at < times_.spin) {
            hold.unlock();
            sched_yield();
            continue;
        }
        sleeping_.store(true, std::memory_order_relaxed); // SLEEP: a thread that leaves work from here on calls ring()
        bool ready = false;
        for (auto &peer : peers_)
            if (peer->flow && !peer->flow->sleeps(*peer, bell_)) ready = true;
        if (ready || ucx_.worker_arm(worker_) != ucp::OK) {
            sleeping_.store(false, std::memory_order_relaxed);
            continue;
        }
        int64_t until = next_look();
        hold.unlock();
        pollfd fds[2] = {{ucx_fd_, POLLIN, 0}, {bell_, POLLIN, 0}};
        poll(fds, 2, int(std::clamp<int64_t>((until - now_) / 1'000'000 + 1, 1, 60'000)));
        sleeping_.store(false, std::memory_order_relaxed);
        uint64_t rings;
        (void)!read(bell_, &rings, sizeof rings);
        busy_at = clock_ns();
    }
}

inline bool Engine::progress() {
    unsigned events = 0;
    for (int i = 0; i < 16; i++) {
        unsigned some = ucx_.worker_progress(worker_);
        events += some;
        if (some == 0) break;
    }
    return events > 0;
}

inline bool Engine::turn() {
    bool worked = begin_rendezvous();
    for (size_t i = 0; i < peers_.size(); i++) {
        Peer &peer = *peers_[i];
        if (peer.flow && peer.stage == Stage::OPEN && !peer.failed) worked |= peer.flow->turn(peer);
    }
    if (now_ >= look_at_ || changed_) {
        worked |= changed_;
        changed_ = false;
        take_requests();
        if (stands_still()) give_all_up();
        for (size_t i = 0; i < peers_.size();) {
            look_after(*peers_[i]);
            if (peers_[i]->stage == Stage::GONE && peers_[i]->released)
                peers_.erase(peers_.begin() + i);
            else
                i++;
        }
        look_at_ = next_look();
    }
    return worked;
}

inline int64_t Engine::next_look() const {
    int64_t at = now_ + times_.beat / 4;
    for (auto &peer : peers_)
        if (peer->flow && peer->stage == Stage::OPEN && peer->flow->hurries()) at = std::min(at, now_ + 2'000'000);
    for (auto &peer : peers_)
        if (peer->stage == Stage::LEAVING) at = std::min(at, std::max(peer->leave_until, now_ + 1'000'000));
    return at;
}

inline void Engine::take_requests() {
    while (!requests_.empty()) {
        auto *request = requests_.front();
        requests_.pop_front();
        ucp::ConnRequestAttr attr{};
        attr.mask = attr.CLIENT_ADDR;
        bool known = ucx_.conn_request_query(request, &attr) == ucp::OK;
        ucp::EndpointParams params{};
        params.mask = params.CONN_REQUEST;
        params.request = request;
        try {
            auto peer = open(params, false);
            if (known) peer->address = text_of(reinterpret_cast<sockaddr *>(&attr.client));
            std::lock_guard hold(accept_lock_);
            accepted_.push_back(peer);
            accept_changed_.notify_all();
        } catch (const std::exception &) {
            // The client gave up meanwhile, and UCX has freed the request.
        }
    }
}

inline std::string Engine::text_of(const sockaddr *address) {
    char host[INET6_ADDRSTRLEN] = "?";
    bool six = address->sa_family == AF_INET6;
    auto *v4 = reinterpret_cast<const sockaddr_in *>(address);
    auto *v6 = reinterpret_cast<const sockaddr_in6 *>(address);
    inet_ntop(address->sa_family, six ? static_cast<const void *>(&v6->sin6_addr) : &v4->sin_addr, host, sizeof host);
    std::string port = std::to_string(ntohs(six ? v6->sin6_port : v4->sin_port));
    return six ? "[" + std::string(host) + "]:" + port : host + (":" + port);
}

// Handles heartbeats and time-outs, and takes the next step if the connection is ending.
inline void Engine::look_after(Peer &peer) {
    if (peer.stage == Stage::OPEN) {
        if (peer.end_received && !peer.end_answered && peer.inbox.ends(peer.end_at)) {
            peer.end_answered = true;
            if (!peer.failed) post(peer, Head{.kind = ENDED});
        }
        if (!peer.failed && now_ - peer.heard > times_.silence) {
            char text[100];
            snprintf(text, sizeof text, "it has given no sign of life for %.3g s", double(times_.silence) / 1e9);
            peer.fail(text);
        }
        if (!peer.failed && now_ - peer.said >= times_.beat) post(peer, Head{.kind = BEAT});
    }
    if ((peer.stage == Stage::LEAVING && (peer.failed || now_ >= peer.leave_until)) || (peer.stage == Stage::OPEN && peer.failed))
        begin_close(peer);
    if (peer.stage == Stage::CLOSING && peer.close_request == nullptr && peer.in_flight == 0) {
        peer.stage = Stage::GONE;
        peer.flow.reset();
    }
}

inline void Engine::begin_close(Peer &peer) {
    peer.stage = Stage::CLOSING;
    peer.inbox.stop("the connection is closed");
    if (peer.flow) peer.flow->lost(peer);
    ucp::RequestParam param{};
    param.mask = param.FLAGS | param.CALLBACK | param.USER_DATA;
    param.flags = param.CLOSE_FORCE; // a forced close loses nothing, because END has made sure that all messages arrived
    param.callback.send = &Engine::on_closed;
    param.user_data = &peer;
    by_endpoint_.erase(peer.ep);
    void *answer = ucx_.ep_close_nbx(peer.ep, &param);
    peer.ep = nullptr;
    peer.close_request = ucp::pending(answer) ? answer : nullptr;
    changed_ = true;
}

inline void Engine::on_closed(void *request, ucp::status, void *argument) {
    static_cast<Peer *>(argument)->close_request = nullptr;
    library().request_free(request);
}

} // namespace echo_rdma
