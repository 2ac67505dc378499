// A cell: the newest value of some arrays. Writers are serialised by the segment's lock, readers copy without it.
//
// There are three places of the same size, which are written in turn. Each has a turn, a number that is odd from before its first byte is
// written until after its last one. A reader looks which place is the newest, reads its turn, copies, and reads the turn again. If it was the same
// even number both times, the copy is one whole value. A writer that is killed leaves a turn odd; `newest` still names the value before, and
// the next writer uses the same place again.
//
// A reader that was overtaken too often takes the lock: then nobody writes, so it ends after a bounded time however fast the writers are.
#pragma once

#include "segment.hpp"

// The test suite also builds this file without the marks, to prove that it would notice torn values, and without tries, to test the lock.
#ifndef ECHO_IPC_MARKS
#define ECHO_IPC_MARKS 1
#endif
#ifndef ECHO_IPC_TRIES
#define ECHO_IPC_TRIES 8
#endif

namespace echo_ipc {

constexpr uint32_t kPlaces = 3;  // the newest, the one that is being written, and one that a slow reader may still read

struct Place {
    alignas(64) std::atomic<uint64_t> turn;
    std::atomic<uint64_t> version, used;
};

struct CellControl {
    std::atomic<uint64_t> newest;  // version << 8 | place; 0 before the first value
    std::atomic<uint64_t> broken;  // values that were begun and never finished
    std::atomic<uint64_t> locked;  // reads that took the lock
    Place places[kPlaces];
};
static_assert(sizeof(CellControl) <= kPage);

class Cell {
public:
    static uint64_t bytes(uint64_t schema_bytes, uint64_t place) { return Segment::start(schema_bytes) + kPage + kPlaces * up(place); }

    // The sizes must have been checked with bytes().
    explicit Cell(const Segment &segment)
        : segment_(segment), control_(reinterpret_cast<CellControl *>(segment.control)), data_(segment.control + kPage), place_(segment.header->words[0]) {}

    uint64_t capacity() const { return place_; }
    uint64_t version() const { return control_->newest.load(std::memory_order_acquire) >> 8; }
    uint64_t broken() const { return control_->broken.load(std::memory_order_relaxed); }
    uint64_t locked() const { return control_->locked.load(std::memory_order_relaxed); }
    Header *header() const { return segment_.header; }

    // Writes one value of `used` bytes. kLater: the lock was not free for a whole slice.
    Outcome write(const Part *parts, int count, uint64_t used, uint64_t *version) {
        segment_.header->turnstile.pass();
        if (!segment_.header->lock.take(kSlice, [] {})) return kLater;  // nothing to repair: an odd turn is enough
        const uint64_t newest = control_->newest.load(std::memory_order_relaxed);
        const uint32_t place = uint32_t(((newest & 0xff) + 1) % kPlaces);
        Place &to = control_->places[place];
        const uint64_t turn = to.turn.load(std::memory_order_relaxed);
        if (turn % 2 != 0) control_->broken.fetch_add(1, std::memory_order_relaxed);
        const uint64_t odd = ECHO_IPC_MARKS ? turn | 1 : turn;
        to.turn.store(odd, std::memory_order_relaxed);
        // The mark must be visible before every byte that is written there. That includes stores past the caches, which a release fence does not order on x86.
        std::atomic_thread_fence(std::memory_order_seq_cst);  // SYNC begun
        copy_in(data_ + place * up(place_), parts, count);
        *version = (newest >> 8) + 1;
        to.version.store(*version, std::memory_order_relaxed);
        to.used.store(used, std::memory_order_relaxed);
        std::atomic_thread_fence(std::memory_order_seq_cst);  // orders the stores past the caches too
        to.turn.store(ECHO_IPC_MARKS ? odd + 1 : turn, std::memory_order_release);                // SYNC whole
        control_->newest.store(*version << 8 | place, std::memory_order_release);  // SYNC newest
        segment_.header->lock.give();
        segment_.header->changed.wake();
        return kDone;
    }

    // Copies the newest value into the parts, each at most as far as the value goes. kNothing: there is none. kLater: writers overtook every try and the
    // lock was not free for a slice; what the parts contain is then undefined. `used`: the size of the value in bytes.
    Outcome read(const Part *parts, int count, uint64_t *version, uint64_t *used) const {
        for (int i = 0; i < ECHO_IPC_TRIES; ++i) {
            const Outcome outcome = once(parts, count, version, used);
            if (outcome != kLater) return outcome;
        }
        if (!segment_.writable) return kLater;
        segment_.header->turnstile.ask();
        if (!segment_.header->lock.take(kSlice, [] {})) return once(parts, count, version, used);
        control_->locked.fetch_add(1, std::memory_order_relaxed);
        const Outcome outcome = once(parts, count, version, used);  // nobody writes
        segment_.header->lock.give();
        return outcome == kLater ? kDamaged : outcome;
    }

private:
    Outcome once(const Part *parts, int count, uint64_t *version, uint64_t *used) const {
        const uint64_t newest = control_->newest.load(std::memory_order_acquire);  // SYNC newest
        *version = newest >> 8, *used = 0;
        if (*version == 0) return kNothing;
        if ((newest & 0xff) >= kPlaces) return kDamaged;
        const Place &from = control_->places[newest & 0xff];
        const uint64_t turn = from.turn.load(std::memory_order_acquire);  // SYNC whole
        const uint64_t held = from.used.load(std::memory_order_relaxed);
        // A place that has another version by now is of a writer that has overtaken this reader, and perhaps not published it yet.
        if ((turn % 2 != 0 || from.version.load(std::memory_order_relaxed) != *version) && ECHO_IPC_MARKS) return kLater;
        if (held > place_) return still(from, turn) ? kDamaged : kLater;
        uint64_t total = 0;
        for (int i = 0; i < count; ++i) total += parts[i].bytes;
        const char *start = data_ + (newest & 0xff) * up(place_);
        for (int i = 0; i < count; ++i) {
            if (parts[i].offset >= held) continue;
            const uint64_t most = held - parts[i].offset;
            echo::copy_racing(parts[i].memory, start + parts[i].offset, parts[i].bytes < most ? parts[i].bytes : most, is_large(total));
        }
        *used = held;
        return still(from, turn) ? kDone : kLater;
    }

    static bool still(const Place &from, uint64_t turn) {
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC begun: a reader that has read a byte of the next value also sees its mark
        return from.turn.load(std::memory_order_relaxed) == turn;
    }

    const Segment segment_;
    CellControl *const control_;
    char *const data_;
    const uint64_t place_;
};

}  // namespace echo_ipc
