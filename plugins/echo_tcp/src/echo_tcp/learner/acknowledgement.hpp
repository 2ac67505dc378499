// When an acknowledgement becomes due, and when it is put off.
//
// It is due as soon as samples are committed that the worker was not told of. It is also due when it has to be said again
// (Peer::ack_due). At the beginning of a connection it says where to go on. A worker that has waited for space for long gets it because
// the kernel of a worker that has died answers it. The next write to the connection carries it.
//
// Every acknowledgement wakes a worker that waits for it, and to wake it costs more than to read a frame. So it is put off while the
// loop has other connections to read from and nothing else has to be written to this one, until it is worth a write.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "peer.hpp"

namespace echo_tcp::learner {

inline bool acknowledgement_is_due(const Peer &p) {
    return p.session != nullptr && (p.session->committed != p.acked || (p.ack_due && !p.echo1));
}

// The connections of one loop whose acknowledgements are put off.
class PutOff {
public:
    explicit PutOff(std::uint64_t sample_bytes) : sample_bytes_(std::max<std::uint64_t>(1, sample_bytes)) {}

    // Whether the acknowledgement of `p`, to which nothing else has to be written, can wait: then it is among these.
    bool add(Peer &p, std::int64_t now) {
        if (p.ack_due) return false;
        const std::uint64_t samples = p.session->committed - p.acked;
        if (samples * sample_bytes_ >= enough_bytes) return false;
        if (samples == 0 || p.ack_put_off) return true;
        if (peers_.empty()) since_ = now;
        p.ack_put_off = true;
        peers_.push_back(&p);
        return true;
    }

    bool empty() const noexcept { return peers_.empty(); }

    // Whether they must be written now: there is nothing else to do, or the first has waited for long enough.
    bool must_be_written(bool idle, std::int64_t now) const noexcept {
        return !peers_.empty() && (idle || now - since_ >= longest_ns);
    }

    std::vector<Peer *> take() {
        for (Peer *p : peers_) p->ack_put_off = false;
        return std::exchange(peers_, {});
    }

    void forget(Peer &p) {
        if (std::exchange(p.ack_put_off, false)) std::erase(peers_, &p);
    }

private:
    static constexpr std::uint64_t enough_bytes = 768 << 10;  // committed and not acknowledged
    static constexpr std::int64_t longest_ns = 1'000'000;

    const std::uint64_t sample_bytes_;
    std::vector<Peer *> peers_;
    std::int64_t since_ = 0;  // the first of them; meaningful while there is one
};

}  // namespace echo_tcp::learner
