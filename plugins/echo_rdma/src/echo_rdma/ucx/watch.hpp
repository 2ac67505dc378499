// Whether what arrives through shared memory still does: an engine whose queue stands still says so, and is replaced (channel.py).
//
// UCX has one receive queue in shared memory for a whole worker. A sender claims an element, copies its message there, and marks it; one that is
// killed or stopped in between leaves an element that is never marked, and everything behind it, of everybody, stays unread for ever.
#pragma once


namespace echo_rdma {

constexpr char STANDS_STILL[] =
    "the shared-memory queue of UCX stands still: a worker died or was stopped in the middle of a message, or all were stopped; the learner starts it anew";

// Whether what it sends may come through that queue. Lanes change during the set-up: asked for when it matters, which is hardly ever.
inline bool Engine::is_near(Peer &peer) const {
    if (ucx_.version[0] == 1 && ucx_.version[1] < 15) return false; // asking an older one ends the process; it has no shared memory here either
    for (auto *name : {"sysv/", "posix/", "xpmem/"})
        if (("," + lanes_of(peer)).find(std::string(",") + name) != std::string::npos) return true;
    return false;
}

// Somebody near has been silent for too long, and nobody near was heard since: one who merely stopped is given up then anyway, so that a false
// alarm costs the others a reconnect. Who dials speaks at once, whatever its heartbeat is: not being heard shows earlier there.
inline bool Engine::stands_still() {
    int64_t unheard = std::min(times_.silence, std::max(3 * times_.beat, times_.silence / 3));
    if (now_ - looked_at_ > unheard / 2) awake_since_ = now_; // this process was stopped itself: what came meanwhile is read first
    looked_at_ = now_;
    if (stuck_ || listener_ == nullptr || now_ - awake_since_ <= unheard) return false;
    Peer *latest = nullptr; // of those near that are silent for too long
    for (auto &peer : peers_) {
        bool silent = now_ - peer->heard > (peer->spoke ? times_.silence : unheard);
        if (silent && peer->stage == Stage::OPEN && !peer->failed && is_near(*peer) && (latest == nullptr || peer->heard > latest->heard)) latest = peer.get();
    }
    if (latest == nullptr) return false;
    return std::none_of(peers_.begin(), peers_.end(),
                        [&](auto &peer) { return peer->spoke && peer->stage == Stage::OPEN && !peer->failed && peer->heard > latest->heard && is_near(*peer); });
}

// Nobody is served any longer; `accept` returns.
inline void Engine::give_all_up() {
    for (auto &peer : peers_)
        if (!peer->failed) give_up(*peer, STANDS_STILL);
    std::lock_guard hold(accept_lock_);
    stuck_ = true;
    accept_changed_.notify_all();
}

} // namespace echo_rdma
