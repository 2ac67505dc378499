// Decides when an acknowledgement becomes due, and when it is put off.
//
// It is due as soon as samples are committed that were not acknowledged to the worker. It is also due when it has to be sent again
// (Peer::ack_due). At the beginning of a connection it is the resume point. A worker that has waited for space for long gets it because
// the kernel of a dead worker answers it with a reset. The next write to the connection carries it.
//
// Every acknowledgement wakes a worker that waits for it, and to wake it costs more than to read a frame. So it is put off while the
// loop has other connections to read from and nothing else has to be written to this one, until it covers enough bytes.
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

    // Puts the acknowledgement of `p` off, if it can wait, and returns whether it can. Nothing else may have to be written to `p`.
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

    // Whether they must be written now, because there is nothing else to do, or the first one has waited for long enough.
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
    static constexpr std::uint64_t enough_bytes = 768 << 10;  // an acknowledgement of so many bytes is not put off
    static constexpr std::int64_t longest_ns = 1'000'000;

    const std::uint64_t sample_bytes_;
    std::vector<Peer *> peers_;
    std::int64_t since_ = 0;  // since when the first of them waits; meaningful while there is one
};

}  // namespace echo_tcp::learner
