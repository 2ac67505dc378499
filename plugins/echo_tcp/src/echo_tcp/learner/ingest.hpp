// From sockets into slots: reads what a connection has sent and takes the frames apart.
//
// Small frames are parsed in place, in one big buffer that all connections of the loop share. Consecutive
// frames whose sample numbers follow one another go into the store as one block. The beginning of an
// incomplete small frame is kept with its peer and put back in front of the next read. An incomplete large
// frame becomes a Landing, and the rest of it is read straight into its slots.
#pragma once

#include <sys/socket.h>

#include "beginning.hpp"
#include "limits.hpp"
#include "peer.hpp"
#include "requests.hpp"

namespace echo_tcp::learner {

enum class Step {
    drained,  // everything that the socket had is read; wait for more
    more,     // this turn's bytes are used up; other connections come first
    space,    // a sample is waiting for a slot
    share,    // this peer's share of the space is used up, and others are waiting
    staging,  // a frame is waiting for memory to be staged in
    ended,    // the connection has ended; peer.reason says why
};

class Ingest {
public:
    static constexpr std::size_t direct_bytes = 16 << 10;   // a payload of this size or larger may become a Landing
    static constexpr std::size_t shared_bytes = 256 << 10;  // largest read of small frames
    static constexpr std::size_t crowded_bytes = 32 << 10;  // largest read while others wait for space
    static constexpr std::uint64_t worth_bytes = 256 << 10; // the loop is woken for so much of a large frame
    static constexpr std::size_t trail_bytes = 4 << 10;     // at most so much is read beyond the end of a large frame
    static constexpr std::int64_t turn_bytes = 512 << 10;   // after so many it is the next connection's turn
    static constexpr std::uint64_t share_bytes = 32 << 10;  // one peer's share of the space while others wait for
                                                            // it; a share is at most a quarter of a batch
    static constexpr std::uint64_t most_block = 4096;       // at most so many samples of several frames are inserted at once
    static constexpr std::int64_t census_ns = 50'000'000;   // time between two counts of the peers that send
    static constexpr std::int64_t slow_ns = 5'000'000;      // a peer whose staged frame arrives faster than this counts as fast again

    Ingest(Store &store, Events &events, Requests &requests, std::uint64_t group, Totals &totals, std::uint64_t staging_limit)
        : store_(store), events_(events), requests_(requests), group_(group), totals_(totals), staging_limit_(staging_limit),
          share_(std::clamp<std::uint64_t>(share_bytes / std::max<std::uint64_t>(1, store.sample_bytes()), 1,
                                           std::max<std::uint64_t>(1, store.batch_size() / 4))),
          memory_(new char[headroom + shared_bytes]), area_(memory_.get() + headroom) {}

    std::int64_t now = 0;         // time of the loop's current round
    std::int64_t round_ns = 0;    // duration of recent rounds, which a busy loop adds to every wait
    bool staging_freed = false;   // set when a staged frame has released its memory

    // Reads and takes frames of `p` until it has to stop, and returns the reason. `may_claim` is false while
    // other peers have waited longer for space; `contended`: others wait behind it. May throw std::bad_alloc.
    Step turn(Peer &p, bool may_claim, bool contended) {
        may_claim_ = may_claim;
        contended_ = contended;
        // A frame that is taken as a whole may exceed the share. The excess is subtracted from its worker's next turns.
        if (!contended_ || p.share <= 0) p.share = contended_ ? p.share + std::int64_t(share_) : std::int64_t(share_);
        if (p.share <= 0 && !p.landing) return Step::share;
        const std::uint64_t before = p.session->committed, bytes = p.figures->bytes.get();
        Step step = resume(p);
        if (step == Step::drained) step = read(p);
        if (step == Step::drained || step == Step::more) expect(p, step == Step::more);
        std::uint64_t waiting = 0;
        if (step == Step::space || step == Step::share || step == Step::staging) {
            p.held_back = true;
            // A count walks over everything that is held back. So it is done once, and the number is updated afterwards.
            const std::uint64_t gone = p.session->committed - before;
            const bool known = p.queued > gone && bytes == p.figures->bytes.get();
            waiting = known ? p.queued - gone : waiting_samples(p);
            store_.queue_depth(waiting);
        }
        count_queued(p, waiting);
        p.figures->partial.set(p.mid_message());
        p.show_held(events_);
        return step;
    }

    // No more bytes came from a peer whose first sample may be the beginning of a HELLO. A HELLO is sent at once, so this is a sample.
    void decide(Peer &p) {
        p.fresh = p.undecided = false;
        p.held_back = true;
    }

    // The sender of a Landing has stalled: gives the slots back. May throw std::bad_alloc.
    void stage(Peer &p) {
        totals_.staged_bytes.add(p.landing->stage());
        totals_.evicted.add(1);
        p.slow = true;
    }

    // The connection has ended: gives back everything that it holds.
    void forget(Peer &p) {
        drop_landing(p);
        count_queued(p, 0);
        p.tail = {};
        p.message = {};
    }

private:
    static constexpr std::size_t headroom = direct_bytes + 64;  // >= the tail of a small frame
    static constexpr int most_places = 512;                     // half of the places that readv accepts

    // Counts samples that are about to be committed: a learner that has sampled them must find them in the figures.
    auto tally(Peer &p) noexcept {
        return [this, &p](std::uint64_t n) {
            p.session->inserted += n;
            p.figures->samples.set(p.session->inserted);
            totals_.samples.add(n);
        };
    }

    // ---- reading --------------------------------------------------------------------------------
    Step resume(Peer &p) {
        if (p.landing && p.landing->whole())
            if (const Step step = land(p); step != Step::drained) return step;
        if (!p.held_back) return Step::drained;
        p.held_back = false;
        const char *at = p.tail.data() + p.tail_at;
        const char *const end = p.tail.data() + p.tail.size();
        const Step step = parse(p, at, end);
        p.tail_at = std::size_t(at - p.tail.data());
        if (p.tail_at == p.tail.size()) {
            p.tail_at = 0;
            p.tail.clear();
            if (p.tail.capacity() > 2 * headroom) p.tail = {};
        }
        return step;
    }

    Step read(Peer &p) {
        for (std::int64_t budget = turn_bytes;;) {
            iovec places[most_places + 1];
            int n = 0;
            std::size_t direct = 0;
            bool to_the_end = true;
            if (p.landing) {
                n = p.landing->places(places, most_places);
                for (int i = 0; i < n; ++i) direct += places[i].iov_len;
                to_the_end = direct == p.landing->left();
            } else if (!p.message.empty()) {
                direct = p.message.size() - p.message_have;
                places[n++] = {p.message.data() + p.message_have, direct};
            }
            const std::size_t room = !to_the_end               ? 0
                                     : direct != 0 || p.large ? trail_bytes
                                     : may_claim_             ? shared_bytes
                                                              : crowded_bytes;
            if (room != 0) places[n++] = {area_, room};
            const std::int64_t began = direct != 0 ? clock_ns() : 0;
            const ssize_t got = direct != 0 ? readv(p.fd, places, n) : recv(p.fd, area_, room, 0);
            if (got <= 0) {
                if (got < 0 && errno == EINTR) continue;
                const bool ended = got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
                if (ended && p.undecided) {
                    decide(p);
                    if (const Step step = resume(p); step != Step::drained) return step;
                    continue;
                }
                return ended ? hung_up(p, got) : Step::drained;
            }
            totals_.bytes_received.add(std::size_t(got));
            p.figures->bytes.add(std::size_t(got));
            p.figures->read_at.set(std::uint64_t(now));
            const std::size_t into = std::min(std::size_t(got), direct);
            const Step step = take(p, into, std::size_t(got) - into, began);
            if (step != Step::drained) return step;
            if (std::size_t(got) < direct + room) return Step::drained;
            if ((budget -= got) <= 0) return Step::more;
        }
    }

    // Sets how many bytes must lie in the socket before this loop is woken: for an incomplete large frame, a good piece of it.
    // If every segment woke the loop, each would cost its sender 15 us, more than the copy of the segment. Nothing is lost
    // if a sender stops in between, because a stalled frame is looked at no matter how much the socket holds.
    // `more`: the socket may already hold the rest, so a threshold that was set for an earlier frame must be lowered now: small
    // frames would otherwise lie there until as many bytes have come. The threshold is raised only when nothing is left to read.
    static void expect(Peer &p, bool more) {
        const int least = p.landing ? int(std::min<std::uint64_t>(p.landing->left(), worth_bytes)) : 1;
        if (more ? least >= p.least : least == p.least) return;
        p.least = least;
        setsockopt(p.fd, SOL_SOCKET, SO_RCVLOWAT, &least, sizeof least);
    }

    // `into` bytes were read to the places of the large frame, and `rest` bytes lie in the shared area.
    Step take(Peer &p, std::size_t into, std::size_t rest, std::int64_t began) {
        Step step = Step::drained;
        const char *at = area_;
        const char *const end = area_ + rest;
        if (p.landing) {
            p.landing->advance(into);
            p.landing->progress_at = now;
            p.landing->reading_ns += clock_ns() - began;
            if (p.landing->whole()) step = land(p);
        } else if (into != 0) {
            p.message_have += into;
            if (p.message_have == p.message.size()) {
                const std::string message = std::exchange(p.message, {});
                step = handle(p, p.message_header, message);
            }
        } else if (p.tail.size() != p.tail_at) {
            const std::size_t before = p.tail.size() - p.tail_at;
            at -= before;  // never more than headroom: only a tail that was held back is longer, and it is not read on
            std::memcpy(area_ - before, p.tail.data() + p.tail_at, before);
            p.tail_at = 0;
            p.tail.clear();
        }
        if (step == Step::drained) step = parse(p, at, end);
        if (step != Step::ended && at != end) p.tail.assign(at, end);
        return step;
    }

    Step hung_up(Peer &p, ssize_t got) {
        if (got == 0) {
            // The original protocol has no goodbye: between two samples, hanging up is how its workers end.
            p.reason = p.mid_message() ? "the worker went away in the middle of a message"
                       : p.echo1       ? ""
                                       : "the worker hung up without a goodbye";
        } else {
            p.reason = std::string("connection lost: ") + std::strerror(errno);
        }
        return Step::ended;
    }

    // ---- parsing --------------------------------------------------------------------------------
    // Takes frames from [at, end) and moves `at` behind them. drained: the rest is not a whole frame.
    Step parse(Peer &p, const char *&at, const char *end) {
        const std::size_t header_bytes = p.echo1 ? 0 : sizeof(FrameHeader);
        for (;;) {
            std::size_t have = std::size_t(end - at);
            if (p.discard != 0) {
                const std::size_t drop = std::min<std::uint64_t>(have, p.discard);
                p.discard -= drop;
                at += drop;
                have -= drop;
            }
            if (have < header_bytes || have == 0) return Step::drained;
            FrameHeader h;
            if (p.echo1) {
                if (p.fresh && !begins_with_sample(p, at, have)) return p.broken ? Step::ended : Step::drained;
                h = make_header(Kind::data, p.session->committed + 1 - p.frame_done, store_.sample_bytes(), 1);
            } else {
                std::memcpy(&h, at, sizeof h);
                if (std::string why = breach(h, store_.sample_bytes(), store_.takes_labels()); !why.empty()) return broken(p, why);
            }
            const bool data = h.kind == std::uint8_t(Kind::data);
            if (data && p.observer) return broken(p, "a client of the role 'observer' sends no experience");
            if (data && h.seq > p.session->committed + 1)
                return broken(p, "sample " + std::to_string(h.seq) + " after sample " +
                                     std::to_string(p.session->committed) + ": the ones between are missing");
            const bool whole = have - header_bytes >= h.length;
            p.large = data && h.length >= direct_bytes;
            if (!whole && h.length < direct_bytes) return Step::drained;
            Step step = Step::drained;
            if (data) {
                step = whole ? insert(p, h, at, have, header_bytes)
                             : open_landing(p, h, at + header_bytes, have - header_bytes);
                if (step == Step::drained && !whole) at = end;
            } else if (whole) {
                at += header_bytes;
                step = handle(p, h, {at, std::size_t(h.length)});
                at += h.length;
            } else {
                p.message_header = h;
                p.message.resize(h.length);
                p.message_have = have - header_bytes;
                std::memcpy(p.message.data(), at + header_bytes, p.message_have);
                at = end;
            }
            if (step != Step::drained) return step;
        }
    }

    // Looks at the first bytes of a peer of the original protocol. False if it is a client of a later one (`broken` is set), or if too
    // few bytes are here to tell.
    bool begins_with_sample(Peer &p, const char *at, std::size_t have) {
        switch (beginning(at, have)) {
            case Beginning::sample:
                p.fresh = p.undecided = false;
                return true;
            case Beginning::hello:
                broken(p, "it speaks Echo protocol " + std::to_string(static_cast<unsigned char>(at[4])) + ", this learner the original"
                          " one; choose protocol=\"echo1\" at the worker too, or leave it out at both ends");
                return false;
            default:
                p.undecided = have >= store_.sample_bytes();
                return false;
        }
    }

    // The frame at `at` is whole: inserts it together with the frames behind it that continue its numbers.
    Step insert(Peer &p, const FrameHeader &h, const char *&at, std::size_t have, std::size_t header_bytes) {
        const std::size_t stride = header_bytes + h.length;
        Block block{at, stride, std::uint32_t(header_bytes), h.count, 1, (h.flags & flag_labels) != 0};
        // Zero-size samples without headers do not exist: listen() refuses them.
        const std::uint64_t left = std::uint64_t(std::max<std::int64_t>(p.share, 0));
        const std::uint64_t wanted = contended_ ? std::min(most_block, left) : most_block;
        const std::uint64_t most = std::min<std::uint64_t>(have / stride, 1 + wanted / h.count);
        if (p.echo1) {
            block.frames = std::uint32_t(most);
        } else {
            for (FrameHeader next = h; block.frames < most; ++block.frames) {
                next.seq += h.count;
                if (std::memcmp(at + block.frames * stride, &next, sizeof next) != 0) break;
            }
        }
        Session &session = *p.session;
        const std::uint64_t total = block.samples();
        std::uint64_t skip = p.frame_done;
        if (skip == 0 && h.seq <= session.committed) {
            skip = std::min(total, session.committed + 1 - h.seq);
            totals_.duplicates.add(skip);
        }
        const std::uint64_t most_now = contended_ ? std::min(total - skip, left) : total - skip;
        const std::uint64_t n = may_claim_ ? store_.insert(block, skip, most_now, tally(p)) : 0;
        committed(p, n);
        const std::uint64_t frames = (skip + n) / h.count;
        totals_.frames.add(frames);
        at += frames * stride;
        p.frame_done = std::uint32_t((skip + n) % h.count);
        return skip + n == total ? Step::drained : no_space(p);
    }

    // The beginning of a large frame has come: `have` bytes of its payload lie at `from`.
    Step open_landing(Peer &p, const FrameHeader &h, const char *from, std::size_t have) {
        const std::uint64_t known = std::min<std::uint64_t>(h.count, p.session->committed + 1 - h.seq);
        if (known == h.count) {
            totals_.duplicates.add(known);
            p.discard = h.length - have;
            return Step::drained;
        }
        if (!may_claim_ || (contended_ && p.share <= 0)) return no_space(p);
        const bool labelled = (h.flags & flag_labels) != 0;
        auto landing = std::make_unique<Landing>(store_, h.length, labelled);
        std::uint32_t wanted = h.count - std::uint32_t(known);
        if (known != 0) landing->use_memory(Landing::Where::dropped, std::uint32_t(known));
        for (echo_run run; !p.slow && wanted != 0 && store_.claim(wanted, &run); wanted -= run.count)
            landing->use_slots(run);
        if (!p.slow && !landing->holds_slots()) return no_space(p);
        if (wanted != 0) {
            const std::uint64_t bytes = wanted * store_.row_bytes(labelled), staged = totals_.staged_bytes.get();
            if (staged != 0 && staged + bytes > staging_limit_) return Step::staging;
            landing->use_memory(Landing::Where::staged, wanted);
        }
        landing->begin(now);
        landing->fill(from, have);
        totals_.staged_bytes.add(landing->staged_bytes());
        p.landing = std::move(landing);
        return Step::drained;
    }

    // The Landing is whole: commits it, as far as there is space.
    Step land(Peer &p) {
        const std::uint64_t before = p.session->inserted;
        const bool all = p.landing->hand_over(
            may_claim_, [this](std::uint64_t n) { totals_.duplicates.add(n); }, tally(p));
        const std::uint64_t inserted = p.session->inserted - before;
        committed(p, inserted);
        if (!all) return no_space(p);
        totals_.frames.add(1);
        totals_.direct_frames.add(1);
        if (inserted != 0) store_.copied(p.landing->reading_ns, inserted);
        if (p.slow && now - p.landing->opened_at < std::max(slow_ns, 4 * round_ns)) p.slow = false;
        drop_landing(p);
        return Step::drained;
    }

    // ---- frames that are not samples ------------------------------------------------------------
    Step handle(Peer &p, const FrameHeader &h, std::string_view payload) {
        switch (static_cast<Kind>(h.kind)) {
            case Kind::control:
                if (h.flags & flag_reply) break;  // this learner sends no requests, so it expects no replies
                ++p.asked;
                requests_.put({group_, p.key, h.seq, std::string(payload)});
                break;
            case Kind::receipt: {
                std::uint64_t digest;
                std::memcpy(&digest, payload.data(), sizeof digest);
                if (p.receipts == 0 || h.seq < p.lowest_sent || h.seq > p.highest_sent)
                    return broken(p, "receipt for weights " + std::to_string(h.seq) + ", which were not sent");
                --p.receipts;  // a worker confirms no version that a newer one has replaced, so some never come
                if (h.seq == p.awaited) p.awaited = 0;
                p.figures->version.set(h.seq);
                p.figures->digest.set(digest);
                events_.push({Event::receipt, p.key, h.seq, digest, {}});
                break;
            }
            case Kind::subscribe:
                p.figures->wanted_at.set(h.flags & flag_waiting ? std::uint64_t(now) : 0);
                if (std::exchange(p.subscribed, true)) break;  // from now on, receipts say which version it holds
                p.held = h.seq;
                p.knows_digest = false;
                p.figures->version.set(h.seq);
                break;
            case Kind::ping:
                if (!(h.flags & flag_reply)) {
                    const FrameHeader reply = make_header(Kind::ping, h.seq, 0, 0, flag_reply);
                    p.out.append(reinterpret_cast<const char *>(&reply), sizeof reply);
                }
                break;
            default:
                return Step::ended;  // BYE: an orderly end needs no reason
        }
        return Step::drained;
    }

    // ---- counts ---------------------------------------------------------------------------------
    void committed(Peer &p, std::uint64_t n) {
        if (n != 0) {
            count(p);
            p.figures->sampled_at.set(std::uint64_t(now));
        }
        p.session->committed += n;
        if (contended_) p.share -= std::int64_t(n);
    }
    // Counts the connections that send samples. Acknowledgements carry the number, and workers use it in Window::crowd().
    void count(Peer &p) {
        if (now >= next_census_) {
            totals_.crowd.set(counted_);
            counted_ = 0;
            ++census_;
            next_census_ = now + census_ns;
        }
        if (std::exchange(p.census, census_) != census_) ++counted_;
    }
    Step no_space(const Peer &p) const {
        if (store_.closed()) return Step::ended;
        return contended_ && p.share <= 0 ? Step::share : Step::space;
    }
    Step broken(Peer &p, std::string why) {
        p.reason = std::move(why);
        p.broken = true;
        return Step::ended;
    }
    void drop_landing(Peer &p) {
        if (!p.landing) return;
        const std::uint64_t staged = p.landing->staged_bytes();
        p.landing.reset();
        if (staged == 0) return;
        totals_.staged_bytes.set(totals_.staged_bytes.get() - staged);
        staging_freed = true;
    }
    void count_queued(Peer &p, std::uint64_t samples) {
        store_.queued(std::int64_t(samples) - std::int64_t(p.queued));
        p.queued = samples;
    }
    // The number of samples that have arrived as a whole and are not inserted yet.
    std::uint64_t waiting_samples(const Peer &p) const {
        std::uint64_t n = p.landing && p.landing->whole() ? p.landing->waiting() : 0;
        const std::size_t have = p.tail.size() - p.tail_at;
        if (p.echo1) return n + have / store_.sample_bytes();
        for (std::size_t at = 0; have - at >= sizeof(FrameHeader);) {
            FrameHeader h;
            std::memcpy(&h, p.tail.data() + p.tail_at + at, sizeof h);
            at += sizeof h;
            if (h.length > have - at) break;
            at += h.length;
            if (h.kind == std::uint8_t(Kind::data)) n += h.count;
        }
        return n - std::min<std::uint64_t>(n, p.frame_done);
    }

    Store &store_;
    Events &events_;
    Requests &requests_;
    const std::uint64_t group_;
    Totals &totals_;
    const std::uint64_t staging_limit_;
    const std::uint64_t share_;  // samples
    const std::unique_ptr<char[]> memory_;
    char *const area_;        // shared_bytes; before it lies headroom for the tail of a peer
    bool may_claim_ = true, contended_ = false;
    std::uint64_t census_ = 1, counted_ = 0;  // connections that brought samples since the last census
    std::int64_t next_census_ = 0;
};

}  // namespace echo_tcp::learner
