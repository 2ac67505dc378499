// Checks whether messages still arrive through shared memory. An engine whose queue stands still reports it and is replaced (channel.py).
//
// UCX has one receive queue in shared memory for a whole worker. A sender claims an element, copies its message there, and marks it. A sender that is
// killed or stopped in between leaves an element that is never marked. Then all messages behind it, from all senders, stay unread for ever.
#pragma once


namespace echo_rdma {

constexpr char STANDS_STILL[] =
    "the shared-memory queue of UCX stands still: a worker died or was stopped in the middle of a message, or all were stopped; the learner starts it anew";

// True if messages of this peer may come through that queue. Lanes change during the set-up, so this is asked only when it matters, which is rare.
inline bool Engine::is_near(Peer &peer) const {
    if (ucx_.version[0] == 1 && ucx_.version[1] < 15) return false; // an older UCX crashes on this query, and shared memory is not used with it
    for (auto *name : {"sysv/", "posix/", "xpmem/"})
        if (("," + lanes_of(peer)).find(std::string(",") + name) != std::string::npos) return true;
    return false;
}

// True if a near peer has been silent for too long and no near peer was heard since. A peer that has merely stopped would be given up then anyway, so a
// false alarm costs the others only a reconnect. A peer that dials sends at once, no matter how long its heartbeat is, so its silence is found earlier.
inline bool Engine::stands_still() {
    int64_t unheard = std::min(times_.silence, std::max(3 * times_.beat, times_.silence / 3));
    if (now_ - looked_at_ > unheard / 2) awake_since_ = now_; // this process itself was stopped, so it first reads the messages that came meanwhile
    looked_at_ = now_;
    if (stuck_ || listener_ == nullptr || now_ - awake_since_ <= unheard) return false;
    Peer *latest = nullptr; // the last to speak among the near peers that are silent for too long
    for (auto &peer : peers_) {
        bool silent = now_ - peer->heard > (peer->spoke ? times_.silence : unheard);
        if (silent && peer->stage == Stage::OPEN && !peer->failed && is_near(*peer) && (latest == nullptr || peer->heard > latest->heard)) latest = peer.get();
    }
    if (latest == nullptr) return false;
    return std::none_of(peers_.begin(), peers_.end(),
                        [&](auto &peer) { return peer->spoke && peer->stage == Stage::OPEN && !peer->failed && peer->heard > latest->heard && is_near(*peer); });
}

// Gives up all peers; `accept` returns.
inline void Engine::give_all_up() {
    for (auto &peer : peers_)
        if (!peer->failed) give_up(*peer, STANDS_STILL);
    std::lock_guard hold(accept_lock_);
    stuck_ = true;
    accept_changed_.notify_all();
}

} // namespace echo_rdma
