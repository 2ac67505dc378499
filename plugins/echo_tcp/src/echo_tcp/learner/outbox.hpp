// Messages from the learner to a worker: acknowledgements, answers, and between them weights in chunks.
//
// No call here waits: bytes that the socket does not take now stay with the peer until it is writable.
// Acknowledgements are not queued; one is made when there is room for it, so a worker that does not
// read costs a few bytes. Weights are referred to and never copied, so a publish costs nothing here.
#pragma once

#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "../recycled_buffers.hpp"
#include "acknowledgement.hpp"
#include "peer.hpp"

namespace echo_tcp::learner {

class Outbox {
public:
    // The number of chunks begun in one call. More follow when epoll says that the socket has room and every
    // other connection has had its turn, so a large version of the weights does not delay samples.
    static constexpr int chunks_at_once = 2;

    Outbox(Totals &totals, RecycledBuffers &recycled) : totals_(totals), recycled_(recycled) {}

    std::shared_ptr<const Weights> latest;  // the weights published last

    // Writes everything that is due. False if some of it is left; call again when the socket is writable.
    bool pump(Peer &p) {
        if (p.deaf) return true;
        offer(p);
        for (int chunks = 0;;) {
            if (p.chunk_left != 0) {
                if (!send_chunk(p)) return p.deaf;
                if (p.sent == p.sending->size()) {
                    sent_whole(p, *p.sending);
                    p.sending.reset();
                }
                continue;
            }
            acknowledge(p);
            if (p.out_left() != 0) {
                if (!send_small(p)) return p.deaf;
            } else if (!p.answers.empty() && !(p.sending && p.answered)) {
                next_answer(p);
            } else if (p.sending) {
                if (chunks++ == chunks_at_once) return false;
                begin_chunk(p);
            } else {
                return true;
            }
        }
    }

    // Is there anything to write beside an acknowledgement?
    bool more_than_ack(const Peer &p) const { return p.unsent() != 0 || p.chunk_left != 0 || p.sending || wants(p); }

    // Whether a parked peer has to wait for the newest version until the one before has arrived.
    bool held_off(const Peer &p) const { return p.parked && p.awaited != 0 && !p.deaf && lacks_newest(p); }

    // Queues a frame that answers a request. It is sent without a copy.
    void answer(Peer &p, std::string frame) {
        p.answer_bytes += frame.size();
        p.answers.push_back(std::move(frame));
    }

    // Queues a farewell behind everything that is already queued.
    void say_bye(Peer &p, std::string_view reason, std::uint8_t flags) {
        reason = reason.substr(0, max_bye_bytes);
        // A reason that is cut in the middle of a character would not be valid UTF-8.
        while (!reason.empty() && reason.size() == max_bye_bytes && (reason.back() & 0x80)) reason.remove_suffix(1);
        p.subscribed = false;
        if (p.chunk_left == 0) p.sending.reset();
        if (p.echo1) return;
        acknowledge(p);
        p.ack_due = false;
        for (; !p.answers.empty(); p.answers.pop_front()) p.out += p.answers.front();
        p.answer_bytes = 0;
        const FrameHeader bye = make_header(Kind::bye, 0, reason.size(), 0, flags);
        append(p, &bye, sizeof bye);
        p.out.append(reason);
    }

    static void append(Peer &p, const void *data, std::size_t size) {
        p.out.append(static_cast<const char *>(data), size);
    }

private:
    // Whether a subscriber should get the newest version now. It comes after the receipt for the version before. But a parked peer is not read,
    // and its receipts wait behind its samples. For it, the version before must only have left this machine. So the kernel here keeps at
    // most one version for each peer, also if the peer reads nothing.
    bool wants(const Peer &p) const {
        return lacks_newest(p) && (p.awaited == 0 || (p.parked && all_arrived(p.fd)));
    }
    bool lacks_newest(const Peer &p) const { return p.subscribed && !p.sending && latest && !holds(p, *latest); }
    // Whether the other end's kernel has confirmed all bytes that were written. It does that within moments, and nothing tells when.
    static bool all_arrived(int fd) noexcept {
        int bytes = 0;
        return ioctl(fd, SIOCOUTQ, &bytes) != 0 || bytes == 0;
    }
    // Whether the peer has just these weights. After a change of learners, a number alone does not say which weights it means.
    static bool holds(const Peer &p, const Weights &w) {
        return w.version == p.held && (p.knows_digest ? w.digest == p.held_digest : !w.renumbered);
    }
    void sent_whole(Peer &p, const Weights &w) {
        p.held = p.awaited = w.version;
        p.held_digest = w.digest;  // a client that confirms another one is not sent the same weights again and again
        p.knows_digest = true;
        ++p.receipts;
        p.lowest_sent = std::min(p.lowest_sent, w.version);
        p.highest_sent = std::max(p.highest_sent, w.version);
        totals_.weights_sent.add(1);
    }
    void offer(Peer &p) {
        if (!wants(p)) return;
        p.sending = latest;
        p.sent = 0;
    }

    void acknowledge(Peer &p) {
        if (!acknowledgement_is_due(p)) return;
        const std::uint64_t committed = p.session->committed;
        if (p.echo1) {
            p.out.append(committed - p.acked, '\x01');
        } else {
            const FrameHeader ack = make_header(Kind::ack, committed, 0, std::uint32_t(totals_.crowd.get()));
            append(p, &ack, sizeof ack);
        }
        p.acked = committed;
        p.ack_due = false;
        totals_.acks.add(1);
    }

    void next_answer(Peer &p) {
        p.out.swap(p.answers.front());
        p.out_at = 0;
        p.answer_bytes -= p.out.size();
        recycled_.give(std::move(p.answers.front()));
        p.answers.pop_front();
        p.answered = true;
    }

    void begin_chunk(Peer &p) {
        p.answered = false;
        const std::uint64_t total = p.sending->size();
        const std::uint64_t bytes = std::min(max_weights_chunk, total - p.sent);
        std::uint8_t flags = p.sent == 0 ? flag_first_chunk : 0;
        if (p.sent + bytes == total) flags |= flag_last_chunk;
        p.chunk = make_header(Kind::weights, p.sending->version, bytes, 0, flags);
        p.chunk_left = sizeof p.chunk + bytes;
        p.sent += bytes;
    }

    // True if the whole chunk has been written.
    bool send_chunk(Peer &p) {
        iovec places[3];
        int n = 0;
        const Weights &w = *p.sending;
        if (p.chunk_left > p.chunk.length) {
            const std::size_t left = p.chunk_left - p.chunk.length;
            places[n++] = {reinterpret_cast<char *>(&p.chunk) + sizeof p.chunk - left, left};
        }
        const std::uint64_t end = p.sent;  // end of the chunk in the version's stream of bytes
        std::uint64_t at = end - std::min(p.chunk_left, p.chunk.length);
        if (at < w.head.size()) {
            const std::size_t bytes = std::min(end, std::uint64_t(w.head.size())) - at;
            places[n++] = {const_cast<char *>(w.head.data()) + at, bytes};
            at += bytes;
        }
        if (at < end) places[n++] = {const_cast<char *>(w.payload) + (at - w.head.size()), end - at};
        msghdr message{};
        message.msg_iov = places;
        message.msg_iovlen = std::size_t(n);
        const ssize_t gone = sendmsg(p.fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone < 0) return failed(p);
        totals_.bytes_sent.add(std::size_t(gone));
        p.bytes_out += std::size_t(gone);
        p.chunk_left -= std::size_t(gone);
        return p.chunk_left == 0;
    }

    bool send_small(Peer &p) {
        const ssize_t gone = send(p.fd, p.out.data() + p.out_at, p.out_left(), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (gone < 0) return failed(p);
        totals_.bytes_sent.add(std::size_t(gone));
        p.bytes_out += std::size_t(gone);
        p.out_at += std::size_t(gone);
        if (p.out_left() != 0) return false;
        p.out.clear();
        p.out_at = 0;
        return true;
    }

    // A peer that cannot be written to may have sent something that is still worth reading. So it is not
    // dropped here; the next read finds the end of the connection.
    bool failed(Peer &p) {
        if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return false;
        p.deaf = true;
        p.out = {};
        p.out_at = 0;
        p.answers.clear();
        p.answer_bytes = 0;
        p.sending.reset();
        p.chunk_left = 0;
        return false;
    }

    Totals &totals_;
    RecycledBuffers &recycled_;
};

}  // namespace echo_tcp::learner
