// Sessions: how many samples of each client are committed, remembered also while the client is away.
//
// A client that reconnects resumes there, and samples that it sends again are recognised and dropped. The
// table belongs to one loop (a client always maps to the same loop), so it needs no lock.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <list>
#include <memory>
#include <unordered_map>

namespace echo_tcp::learner {

using ClientId = std::array<unsigned char, 16>;

struct ClientIdHash {
    std::size_t operator()(const ClientId &id) const noexcept {
        std::uint64_t half[2];
        std::memcpy(half, id.data(), sizeof half);
        return std::size_t((half[0] ^ half[1] * 0x9e3779b97f4a7c15u) * 0xff51afd7ed558ccdu >> 7);
    }
};

struct Peer;

struct Session {
    ClientId id;
    std::uint64_t committed = 0;  // samples 1..committed are, or were, in the store ...
    std::uint64_t inserted = 0;   // ... and this learner has put so many of them there
    Peer *live = nullptr;         // its connection, if there is one
    std::list<Session *>::iterator away;  // in Sessions::away_, valid while live is null
};

class Sessions {
public:
    // The learner remembers the 2^18 workers that left last. A worker that has been away for longer counts as new
    // when it comes back, and the learner believes the number that it says is committed. Without this bound,
    // short-lived workers would fill the memory of a learner that runs for months.
    static constexpr std::size_t most_away = 1u << 18;

    // `base`: the number that the client says is committed. It is used only if it exceeds the number known here.
    Session &open(const ClientId &id, std::uint64_t base) {
        auto &slot = sessions_[id];
        if (!slot) {
            slot = std::make_unique<Session>();
            slot->id = id;
        } else if (slot->live == nullptr) {
            away_.erase(slot->away);
        }
        if (base > slot->committed) slot->committed = base;
        return *slot;
    }
    void leave(Session &session, bool forget) {
        session.live = nullptr;
        if (forget) {
            sessions_.erase(ClientId(session.id));
            return;
        }
        session.away = away_.insert(away_.end(), &session);
        if (away_.size() <= most_away) return;
        const ClientId oldest = away_.front()->id;
        away_.pop_front();
        sessions_.erase(oldest);
    }

private:
    std::unordered_map<ClientId, std::unique_ptr<Session>, ClientIdHash> sessions_;
    std::list<Session *> away_;  // the session that has been away longest comes first
};

}  // namespace echo_tcp::learner
