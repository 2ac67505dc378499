// A board: where a learner leaves its weights for all workers of the machine to copy. A page of words, then a few places of the same size,
// which are written in turn.
//
// Each place has a turn, which is odd from before the first byte is written there until after the last one. A reader takes the turn, copies, and
// takes it again: the same even number both times means that nothing was written meanwhile, and it has the whole of one version. Nobody waits for
// anybody, and the bytes need no proof of their own. A learner that dies while it writes leaves a turn odd, and `newest` with the version before.
//
// What a reader finds here is bounded before it is used: sizes by the memory that was mapped, which is sealed, and not by a word of the page.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

// The test-suite builds once without the mark, to prove that it would see torn weights.
#ifndef ECHO_BOARD_MARKS
#define ECHO_BOARD_MARKS 1
#endif

namespace echo_shm {

constexpr uint64_t kBoardPage = 4096;
constexpr uint32_t kPlaces = 3;  // the newest, the one being written, and one for who still reads

struct Version {
    uint64_t version, digest, payload, meta;  // the last two in bytes; the description follows the payload at the next page
};

struct Place {
    alignas(64) std::atomic<uint64_t> turn;
    std::atomic<uint64_t> version, digest, payload, meta;
};

struct BoardHead {
    std::atomic<uint64_t> newest;  // a place
    Place places[kPlaces];
};
static_assert(sizeof(BoardHead) <= kBoardPage && std::atomic<uint64_t>::is_always_lock_free);

struct Found : Version {
    uint64_t place, turn;
};

// What is large is copied past the caches: reading the old contents of the target would cost half as much again, and another core has written the
// source past its own, so that it comes from main memory, of which the processor's own prefetching reads no further than the end of a page.
inline void copy_out(char *to, const char *from, uint64_t count) {
#if defined(__SSE2__)
    constexpr uint64_t kLarge = 1 << 20;
    constexpr ptrdiff_t kSoon = 512, kAhead = 4096;  // past the end a prefetch is no access
    if (count >= kLarge && reinterpret_cast<uintptr_t>(to) % 16 == 0) {
        const uint64_t whole = count / 64 * 64;
        for (const char *end = from + whole; from != end; from += 64, to += 64) {
            _mm_prefetch(from + kAhead, _MM_HINT_T1);
            _mm_prefetch(from + kSoon, _MM_HINT_T0);
            for (int i = 0; i < 64; i += 16)
                _mm_stream_si128(reinterpret_cast<__m128i *>(to + i), _mm_loadu_si128(reinterpret_cast<const __m128i *>(from + i)));
        }
        _mm_sfence();
        count -= whole;
    }
#endif
    std::memcpy(to, from, count);
}

// Either end's view of the memory, which it does not own. The learner's end is for one thread at a time, a reader's for any number.
class Board {
public:
    Board(void *memory, uint64_t length)
        : head_(static_cast<BoardHead *>(memory)), base_(static_cast<char *>(memory)), capacity_((length - kBoardPage) / kPlaces / kBoardPage * kBoardPage) {}

    uint64_t capacity() const { return capacity_; }  // of a place, in bytes
    uint64_t start(uint64_t place) const { return kBoardPage + place * capacity_; }
    static uint64_t up(uint64_t count) { return (count + kBoardPage - 1) / kBoardPage * kBoardPage; }
    bool fits(uint64_t payload, uint64_t meta) const { return payload <= capacity_ && meta <= capacity_ && up(payload) + meta <= capacity_; }

    // ---- the learner's end

    // `place` is going to be written to.
    void begin(uint32_t place) {
        std::atomic<uint64_t> &turn = head_->places[place].turn;
        const uint64_t before = turn.load(std::memory_order_relaxed);
        if (before % 2 == 0 && ECHO_BOARD_MARKS) turn.store(before + 1, std::memory_order_relaxed);
        // The mark comes before all that is written there, past the caches too, which a release fence would not order on x86.
        std::atomic_thread_fence(std::memory_order_seq_cst);  // SYNC begun
    }

    // `place` has the whole of `found`, the newest.
    void finish(uint32_t place, const Version &found) {
        Place &to = head_->places[place];
        to.version.store(found.version, std::memory_order_relaxed);
        to.digest.store(found.digest, std::memory_order_relaxed);
        to.payload.store(found.payload, std::memory_order_relaxed);
        to.meta.store(found.meta, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // as in begin(): what went past the caches
        const uint64_t turn = to.turn.load(std::memory_order_relaxed);
        to.turn.store(turn + (ECHO_BOARD_MARKS ? 1 : 0), std::memory_order_release);  // SYNC whole
        head_->newest.store(place, std::memory_order_release);                        // SYNC newest
    }

    // ---- a reader's end

    enum Outcome { kWhole = 0, kAgain = 1, kForeign = 2 };

    // What is newest. kAgain: it is being overwritten, so that there is a newer one. kForeign: no learner of ours writes such numbers.
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

    // Copies what look() found. Whether it was still there, whole, at the end: otherwise what `payload` and `meta` have is rubbish.
    bool copy(const Found &found, char *payload, char *meta) const {
        const char *from = base_ + start(found.place);
        std::memcpy(meta, from + up(found.payload), found.meta);
        copy_out(payload, from, found.payload);
        return still(found);
    }

private:
    bool still(const Found &found) const {
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC begun: who has read a byte of the next version finds its mark
        return head_->places[found.place].turn.load(std::memory_order_relaxed) == found.turn;
    }

    BoardHead *const head_;
    char *const base_;
    const uint64_t capacity_;
};

}  // namespace echo_shm
