// A board: shared memory in which a learner publishes its weights, and from which all workers of the machine copy them. It has a page of words
// and then a few places of the same size, which are written in turn.
//
// Each place has a turn, a number that is odd from before its first byte is written until after its last one. A reader reads the turn, copies,
// and reads the turn again. If it was the same even number both times, nothing was written meanwhile, and the copy is one whole version. No side
// waits for the other, and the bytes need no checksum. If a learner dies while it writes, a turn stays odd, and `newest` names the version before.
//
// A reader checks every number before it uses it. It checks sizes against the mapped memory, which is sealed, and not against words of the page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "echo_copy.h"

// The test suite also builds this file without the mark, to prove that it would notice torn weights.
#ifndef ECHO_BOARD_MARKS
#define ECHO_BOARD_MARKS 1
#endif

namespace echo_shm {

constexpr uint64_t kBoardPage = 4096;
constexpr uint32_t kPlaces = 3;  // the newest, the one that is being written, and one that a slow reader may still read

struct Version {
    uint64_t version, digest, payload, meta;  // the last two in bytes; the description follows the payload at the next page
};

struct Place {
    alignas(64) std::atomic<uint64_t> turn;
    std::atomic<uint64_t> version, digest, payload, meta;
};

struct BoardHead {
    std::atomic<uint64_t> newest;  // index of a place
    Place places[kPlaces];
};
static_assert(sizeof(BoardHead) <= kBoardPage && std::atomic<uint64_t>::is_always_lock_free);

struct Found : Version {
    uint64_t place, turn;
};

// Copies large blocks past the caches, because the writer did so too.
inline void copy_out(char *to, const char *from, uint64_t count) {
    constexpr uint64_t kLarge = 1 << 20;
    echo::copy_racing(to, from, count, count >= kLarge);
}

// The view that either end has of the memory. It does not own the memory. The learner's calls are for one thread at a time, a reader's for any number.
class Board {
public:
    Board(void *memory, uint64_t length)
        : head_(static_cast<BoardHead *>(memory)), base_(static_cast<char *>(memory)), capacity_((length - kBoardPage) / kPlaces / kBoardPage * kBoardPage) {}

    uint64_t capacity() const { return capacity_; }  // size of a place in bytes
    uint64_t start(uint64_t place) const { return kBoardPage + place * capacity_; }
    static uint64_t up(uint64_t count) { return (count + kBoardPage - 1) / kBoardPage * kBoardPage; }
    bool fits(uint64_t payload, uint64_t meta) const { return payload <= capacity_ && meta <= capacity_ && up(payload) + meta <= capacity_; }

    // ---- the learner's end

    // Marks that `place` is going to be written.
    void begin(uint32_t place) {
        std::atomic<uint64_t> &turn = head_->places[place].turn;
        const uint64_t before = turn.load(std::memory_order_relaxed);
        if (before % 2 == 0 && ECHO_BOARD_MARKS) turn.store(before + 1, std::memory_order_relaxed);
        // The mark must be visible before every byte that is written there. That includes stores past the caches, which a release fence does not order on x86.
        std::atomic_thread_fence(std::memory_order_seq_cst);  // SYNC begun
    }

    // Publishes `place`: it holds the whole of `found`, which is now the newest version.
    void finish(uint32_t place, const Version &found) {
        Place &to = head_->places[place];
        to.version.store(found.version, std::memory_order_relaxed);
        to.digest.store(found.digest, std::memory_order_relaxed);
        to.payload.store(found.payload, std::memory_order_relaxed);
        to.meta.store(found.meta, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // as in begin(): orders the stores past the caches too
        const uint64_t turn = to.turn.load(std::memory_order_relaxed);
        to.turn.store(turn + (ECHO_BOARD_MARKS ? 1 : 0), std::memory_order_release);  // SYNC whole
        head_->newest.store(place, std::memory_order_release);                        // SYNC newest
    }

    // ---- a reader's end

    enum Outcome { kWhole = 0, kAgain = 1, kForeign = 2 };

    // Finds the newest version. kAgain: it is being overwritten, so there is a newer one. kForeign: no learner of Echo writes such numbers.
    Outcome look(Found *found) const {
        found->place = head_->newest.load(std::memory_order_acquire);  // SYNC newest
        if (found->place >= kPlaces) return kForeign;
        const Place &from = head_->places[found->place];
        found->turn = from.turn.load(std::memory_order_acquire);  // SYNC whole
        found->version = from.version.load(std::memory_order_relaxed);
        found->digest = from.digest.load(std::memory_order_relaxed);
        found->payload = from.payload.load(std::memory_order_relaxed);
        found->meta = from.meta.load(std::memory_order_relaxed);
        if (found->turn % 2 != 0 || !still(*found)) return kAgain;
        return fits(found->payload, found->meta) ? kWhole : kForeign;
    }

    // Copies the version that look() found. True if it was still there and whole at the end; otherwise the bytes in `payload` and `meta` are invalid.
    bool copy(const Found &found, char *payload, char *meta) const {
        const char *from = base_ + start(found.place);
        copy_out(meta, from + up(found.payload), found.meta);
        copy_out(payload, from, found.payload);
        return still(found);
    }

private:
    bool still(const Found &found) const {
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC begun: a reader that has read a byte of the next version also sees its mark
        return head_->places[found.place].turn.load(std::memory_order_relaxed) == found.turn;
    }

    BoardHead *const head_;
    char *const base_;
    const uint64_t capacity_;
};

}  // namespace echo_shm
