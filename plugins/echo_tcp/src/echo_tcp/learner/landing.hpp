// A large DATA frame that is being received: its bytes are read from the socket straight to their final place.
//
// The payload is leaf-major, so a frame of n samples that spans several runs of slots is a list of
// pieces (leaf 0 of run A, leaf 0 of run B, leaf 1 of run A, ...), and readv fills them in order.
// Samples for which there is no slot yet are received into memory of the frame itself ("staged") and are
// inserted when the frame is whole. Samples that the store already has are received there too and dropped.
//
// A sender that stalls must not hold slots, because their batch waits for them. So stage() copies the
// bytes that have arrived out of the slots and gives the slots back.
#pragma once

#include <sys/uio.h>

#include <memory>
#include <vector>

#include "../frame.hpp"
#include "store.hpp"

namespace echo_tcp::learner {

class Landing {
public:
    enum class Where : std::uint8_t { slots, staged, dropped };
    struct Segment {
        Where where;
        std::uint32_t count;             // samples
        echo_run run;                    // slots
        std::unique_ptr<char[]> memory;  // staged, dropped: leaf-major like the payload
    };

    Landing(Store &store, std::uint64_t length, bool labelled) : store_(store), length_(length), labelled_(labelled) {}
    ~Landing() {
        for (std::size_t i = segments_.size(); i-- != 0;)
            if (segments_[i].where == Where::slots) store_.abort(segments_[i].run);
    }
    Landing(const Landing &) = delete;
    Landing &operator=(const Landing &) = delete;

    // ---- before the first byte: says where the samples go, in order -----------------------------
    void use_slots(const echo_run &run) {
        segments_.push_back({Where::slots, run.count, run, nullptr});
        ++runs_held_;
    }
    void use_memory(Where where, std::uint32_t count) {
        const std::uint64_t bytes = count * store_.row_bytes(labelled_);
        segments_.push_back({where, count, {}, std::unique_ptr<char[]>(new char[bytes])});
        staged_bytes_ += bytes;
    }
    void begin(std::int64_t now) {
        opened_at = progress_at = now;
        plan();
    }

    // ---- receiving ------------------------------------------------------------------------------
    std::uint64_t left() const noexcept { return length_ - arrived_; }
    bool whole() const noexcept { return arrived_ == length_; }
    bool holds_slots() const noexcept { return runs_held_ != 0; }
    std::uint64_t staged_bytes() const noexcept { return staged_bytes_; }

    // The next places to fill, at most `most` of them; returns how many were written to `out`.
    int places(iovec *out, int most) const noexcept {
        const int n = int(std::min<std::size_t>(pieces_.size() - at_, std::size_t(most)));
        std::copy_n(pieces_.begin() + long(at_), n, out);
        return n;
    }
    // `bytes` bytes have been written to the places.
    void advance(std::size_t bytes) noexcept {
        arrived_ += bytes;
        while (bytes != 0) {
            iovec &piece = pieces_[at_];
            const std::size_t step = std::min(bytes, piece.iov_len);
            piece.iov_base = static_cast<char *>(piece.iov_base) + step;
            piece.iov_len -= step;
            bytes -= step;
            if (piece.iov_len == 0) ++at_;
        }
    }
    // Takes payload bytes that were read together with the header.
    void fill(const char *from, std::size_t bytes) noexcept {
        while (bytes != 0) {
            const iovec &piece = pieces_[at_];
            const std::size_t step = std::min(bytes, piece.iov_len);
            std::memcpy(piece.iov_base, from, step);
            advance(step);
            from += step;
            bytes -= step;
        }
    }

    // Gives the slots back and keeps the bytes that have arrived. Returns how many bytes of memory this took.
    std::uint64_t stage() {
        std::uint64_t taken = 0;
        std::vector<std::unique_ptr<char[]>> memory(segments_.size());
        for (std::size_t i = 0; i < segments_.size(); ++i) {
            if (segments_[i].where != Where::slots) continue;
            const std::uint64_t bytes = segments_[i].count * store_.row_bytes(labelled_);
            memory[i].reset(new char[bytes]);
            taken += bytes;
        }
        std::uint64_t position = 0;  // in the payload
        for (std::uint32_t leaf = 0; leaf < store_.leaves(labelled_); ++leaf) {
            for (std::size_t i = 0; i < segments_.size(); ++i) {
                const Segment &s = segments_[i];
                const std::uint64_t bytes = s.count * store_.size(leaf);
                if (s.where == Where::slots && position < arrived_)
                    std::memcpy(memory[i].get() + s.count * store_.offset(leaf),
                                store_.leaf(s.run, leaf), std::min(bytes, arrived_ - position));
                position += bytes;
            }
        }
        for (std::size_t i = segments_.size(); i-- != 0;) {
            Segment &s = segments_[i];
            if (s.where != Where::slots) continue;
            store_.abort(s.run);
            s.where = Where::staged;
            s.memory = std::move(memory[i]);
        }
        runs_held_ = 0;
        staged_bytes_ += taken;
        const std::uint64_t arrived = arrived_;
        arrived_ = 0;
        plan();
        advance(arrived);
        return taken;
    }

    // ---- when whole -----------------------------------------------------------------------------
    // Hands the samples over to the store, in order, as far as there is space. True if all are handed over.
    // False if the store is full or closed, or if the next sample is staged and `may_claim` is false; the caller
    // then calls again later. `dropped(n)` and `tally(n)` are called for n samples that are dropped, and just
    // before n samples are committed.
    template <class Dropped, class Tally>
    bool hand_over(bool may_claim, Dropped dropped, Tally tally) noexcept {
        for (; next_ < segments_.size(); ++next_) {
            Segment &s = segments_[next_];
            if (s.where == Where::slots) {
                tally(s.count);
                store_.commit(s.run, labelled_);
                s.where = Where::dropped;  // nothing left to abort
                --runs_held_;
            } else if (s.where == Where::dropped) {
                dropped(s.count);
            } else {
                if (!may_claim) return false;
                const Block block{s.memory.get(), 0, 0, s.count, 1, labelled_};
                done_ += store_.insert(block, done_, s.count - done_, tally);
                if (done_ < s.count) return false;
                done_ = 0;
            }
        }
        return true;
    }
    std::uint64_t waiting() const noexcept {
        std::uint64_t n = 0;
        for (std::size_t i = next_; i < segments_.size(); ++i) n += segments_[i].count;
        return n - done_;
    }

    std::int64_t opened_at = 0;
    std::int64_t progress_at = 0;   // when the last byte arrived
    std::int64_t reading_ns = 0;    // time spent on copies from the socket into the places

private:
    void plan() {
        pieces_.clear();
        at_ = 0;
        for (std::uint32_t leaf = 0; leaf < store_.leaves(labelled_); ++leaf) {
            const std::uint64_t size = store_.size(leaf);
            if (size == 0) continue;  // advance() would stop at a piece without room
            for (Segment &s : segments_) {
                char *to = s.where == Where::slots ? store_.leaf(s.run, leaf)
                                                   : s.memory.get() + s.count * store_.offset(leaf);
                pieces_.push_back({to, std::size_t(s.count * size)});
            }
        }
    }

    Store &store_;
    const std::uint64_t length_;
    const bool labelled_;  // the samples' labels follow their leaves
    std::uint64_t arrived_ = 0;
    std::vector<Segment> segments_;
    std::vector<iovec> pieces_;  // each shrinks as it is filled
    std::size_t at_ = 0;         // first piece with room
    std::size_t next_ = 0;       // first segment not handed over
    std::uint64_t done_ = 0;     // samples of that segment that were handed over
    std::uint32_t runs_held_ = 0;
    std::uint64_t staged_bytes_ = 0;
};

}  // namespace echo_tcp::learner
