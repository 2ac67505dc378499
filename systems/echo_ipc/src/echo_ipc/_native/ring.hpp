// A ring: slots of memory that producers fill and consumers read in place. The lock protects the words that say whose each slot is; it is held for
// a fraction of a microsecond, and never while data is copied. A slot that somebody holds is never given to anybody else. Its holder gives it back without
// the lock, so that it can do so while the process that has the lock is stopped.
//
// There are `slots` that may be ready to read at the same time, and so many more that every producer and every consumer can hold one. Each change
// of a slot ends in one store of its state, which comes last. So a process that is killed in between has either done it or not, and there is
// little to repair. The slots of dead processes are taken back when somebody lacks a slot: what was being written is dropped, and what was being read can be
// read again.
#pragma once

#include "process.hpp"
#include "segment.hpp"

namespace echo_ipc {

enum Policy : uint64_t { kDropOldest = 0, kBlock = 1, kDropNewest = 2, kError = 3 };
enum State : uint64_t { kFree = 0, kWriting = 1, kReady = 2, kReading = 3 };

constexpr uint64_t kMostSlots = 4096;
constexpr uint64_t kNoNumber = UINT64_MAX;
constexpr int64_t kReap = 20'000'000;  // ns: a handle looks for dead processes at most this often

struct Slot {
    std::atomic<uint64_t> state;    // State | pid << 8
    std::atomic<int64_t> started;   // of the process that holds it
    std::atomic<uint64_t> number;   // of what is in it; kNoNumber while it is being written
    std::atomic<uint64_t> ticket;   // of the one that holds it
};

struct RingControl {
    std::atomic<uint64_t> written;    // how many were committed, dropped ones included: the number of the next
    std::atomic<uint64_t> ready;      // slots that can be taken
    std::atomic<uint64_t> tickets;
    std::atomic<uint64_t> lost;       // dropped by the policy
    std::atomic<uint64_t> taken;      // released by a consumer
    std::atomic<uint64_t> abandoned;  // claims whose process died
    std::atomic<uint64_t> returned;   // taken by a process that died, and ready again
    alignas(64) Slot slots[];
};

struct Held {
    uint64_t slot = 0, ticket = 0, number = 0;
};

class Ring {
public:
    static uint64_t control_bytes(uint64_t physical) { return up(sizeof(RingControl) + physical * sizeof(Slot)); }
    static uint64_t bytes(uint64_t schema_bytes, uint64_t physical, uint64_t slot) { return Segment::start(schema_bytes) + control_bytes(physical) + physical * up(slot); }

    // The sizes must have been checked with bytes().
    explicit Ring(const Segment &segment)
        : segment_(segment), control_(reinterpret_cast<RingControl *>(segment.control)), slots_(segment.header->words[0]),
          physical_(segment.header->words[1]), bytes_(segment.header->words[2]), policy_(segment.header->words[3]) {}

    uint64_t slots() const { return slots_; }
    uint64_t physical() const { return physical_; }
    uint64_t policy() const { return policy_; }
    uint64_t available() const { return control_->ready.load(std::memory_order_acquire); }
    const RingControl &figures() const { return *control_; }
    Header *header() const { return segment_.header; }
    // Where a slot's data begins, in bytes from the beginning of the segment.
    uint64_t start(uint64_t slot) const { return segment_.at(segment_.control) + control_bytes(physical_) + slot * up(bytes_); }

    // Gives the caller a slot to fill. kFull: the policy is to wait or to refuse, and there is no room. kHeld: every slot is held by a live process.
    Outcome claim(uint64_t pid, int64_t started, Held *held) {
        if (!lock()) return kLater;
        Outcome outcome = kDone;
        if (policy_ == kBlock || policy_ == kError) {
            // Slots that are being written count, or two producers would commit more than there is room for.
            if (count(kReady) + count(kWriting) >= slots_) reap();
            if (count(kReady) + count(kWriting) >= slots_) outcome = kFull;
        }
        if (outcome == kDone) {
            uint64_t slot = find(kFree);
            if (slot == physical_ && reap()) slot = find(kFree);
            if (slot == physical_ && policy_ == kDropOldest && drop_oldest()) slot = find(kFree);
            if (slot == physical_) outcome = kHeld;
            else hold(slot, kWriting, pid, started, kNoNumber, held);
        }
        unlock();
        return outcome;
    }

    // Makes the slot ready to be taken. kGone: the caller does not hold it. held->number is kNoNumber if the policy dropped it.
    Outcome commit(uint64_t pid, Held *held) {
        if (!lock()) return kLater;
        Slot *slot = mine(kWriting, pid, *held);
        if (slot) {
            held->number = kNoNumber;
            const bool full = count(kReady) >= slots_;
            const uint64_t number = control_->written.load(std::memory_order_relaxed);
            if (full && policy_ == kDropNewest) {  // it has a number, too, so that consumers see the gap
                slot->state.store(kFree, std::memory_order_release);
                control_->lost.fetch_add(1, std::memory_order_relaxed);
            } else {
                if (full && policy_ == kDropOldest) drop_oldest();
                held->number = number;
                slot->number.store(number, std::memory_order_relaxed);
                slot->state.store(kReady, std::memory_order_release);
                tell();
            }
            control_->written.store(number + 1, std::memory_order_release);
        }
        unlock();
        if (!slot) return kGone;
        if (held->number != kNoNumber) segment_.header->changed.wake();
        // A slot became free, or may be taken away by another producer.
        if (policy_ == kDropOldest || policy_ == kDropNewest) segment_.header->freed.wake();
        return kDone;
    }

    // Gives back a slot that was claimed, as if it had not been.
    Outcome abort(uint64_t pid, const Held &held) { return give_up(kWriting, pid, held); }

    // Takes the oldest slot that is ready. kNothing: there is none.
    Outcome take(uint64_t pid, int64_t started, Held *held) {
        if (!lock()) return kLater;
        uint64_t slot = oldest();
        if (slot == physical_ && reap()) slot = oldest();
        if (slot != physical_) {
            hold(slot, kReading, pid, started, control_->slots[slot].number.load(std::memory_order_relaxed), held);
            tell();
        }
        unlock();
        return slot == physical_ ? kNothing : kDone;
    }

    // Looks for dead processes, for somebody who waits and takes nothing.
    void look() {
        if (!lock()) return;
        reap();
        unlock();
    }

    // Gives back a slot that was taken.
    Outcome release(uint64_t pid, const Held &held) { return give_up(kReading, pid, held); }

private:
    bool lock() {
        return segment_.header->lock.take(kSlice, [this] { repair(); });
    }
    void unlock() { segment_.header->lock.give(); }

    static uint64_t kind(uint64_t state) { return state & 0xff; }

    uint64_t count(State state) const {
        uint64_t found = 0;
        for (uint64_t i = 0; i < physical_; ++i) found += kind(control_->slots[i].state.load(std::memory_order_relaxed)) == state;
        return found;
    }

    uint64_t find(State state) const {
        for (uint64_t i = 0; i < physical_; ++i)
            if (kind(control_->slots[i].state.load(std::memory_order_acquire)) == state) return i;  // SYNC given back
        return physical_;
    }

    uint64_t oldest() const {
        uint64_t best = physical_, least = kNoNumber;
        for (uint64_t i = 0; i < physical_; ++i) {
            const Slot &slot = control_->slots[i];
            const uint64_t number = slot.number.load(std::memory_order_relaxed);
            if (kind(slot.state.load(std::memory_order_relaxed)) == kReady && number < least) best = i, least = number;
        }
        return best;
    }

    bool drop_oldest() {
        const uint64_t slot = oldest();
        if (slot == physical_) return false;
        control_->slots[slot].state.store(kFree, std::memory_order_release);
        control_->lost.fetch_add(1, std::memory_order_relaxed);
        tell();
        return true;
    }

    // Whose a slot is, is written before its state says that it is anybody's.
    void hold(uint64_t slot, State state, uint64_t pid, int64_t started, uint64_t number, Held *held) {
        Slot &to = control_->slots[slot];
        *held = {slot, control_->tickets.fetch_add(1, std::memory_order_relaxed) + 1, number};
        to.ticket.store(held->ticket, std::memory_order_relaxed);
        to.started.store(started, std::memory_order_relaxed);
        if (state == kWriting) to.number.store(number, std::memory_order_relaxed);
        to.state.store(uint64_t(state) | pid << 8, std::memory_order_release);
    }

    Slot *mine(State state, uint64_t pid, const Held &held) const {
        if (held.slot >= physical_) return nullptr;
        Slot &slot = control_->slots[held.slot];
        return slot.state.load(std::memory_order_relaxed) == (uint64_t(state) | pid << 8) && slot.ticket.load(std::memory_order_relaxed) == held.ticket ? &slot : nullptr;
    }

    // Nobody else changes a slot while its holder lives, so this needs no lock. It must not run while another thread commits the same slot. The exchange
    // does nothing if the slot was taken away after all, as that of a process whose main thread has ended may be.
    Outcome give_up(State state, uint64_t pid, const Held &held) {
        Slot *slot = mine(state, pid, held);
        uint64_t before = uint64_t(state) | pid << 8;
        // SYNC given back: after the last byte that the holder has read or written
        if (!slot || !slot->state.compare_exchange_strong(before, kFree, std::memory_order_release, std::memory_order_relaxed)) return kGone;
        if (state == kReading) control_->taken.fetch_add(1, std::memory_order_relaxed);
        segment_.header->freed.wake();
        return kDone;
    }

    // Takes back the slots of processes that died. It asks the system about every holder, so it does so only now and then.
    bool reap() {
        const int64_t now = now_ns();
        if (now - reaped_ < kReap) return false;
        reaped_ = now;
        bool found = false;
        for (uint64_t i = 0; i < physical_; ++i) {
            Slot &slot = control_->slots[i];
            const uint64_t state = slot.state.load(std::memory_order_relaxed);
            if ((kind(state) != kWriting && kind(state) != kReading) || is_alive(int64_t(state >> 8), slot.started.load(std::memory_order_relaxed))) continue;
            const bool reading = kind(state) == kReading;
            slot.state.store(reading ? kReady : kFree, std::memory_order_release);
            (reading ? control_->returned : control_->abandoned).fetch_add(1, std::memory_order_relaxed);
            found = true;
        }
        if (found) {
            tell();
            segment_.header->changed.wake();
            segment_.header->freed.wake();
        }
        return found;
    }

    void tell() { control_->ready.store(count(kReady), std::memory_order_release); }

    // Who held the lock was killed: the numbers that follow from the slots may be behind.
    void repair() {
        uint64_t next = control_->written.load(std::memory_order_relaxed);
        for (uint64_t i = 0; i < physical_; ++i) {
            const uint64_t state = kind(control_->slots[i].state.load(std::memory_order_relaxed)), number = control_->slots[i].number.load(std::memory_order_relaxed);
            if ((state == kReady || state == kReading) && number + 1 > next) next = number + 1;
        }
        control_->written.store(next, std::memory_order_release);
        tell();
    }

    const Segment segment_;
    RingControl *const control_;
    const uint64_t slots_, physical_, bytes_, policy_;
    int64_t reaped_ = 0;
};

}  // namespace echo_ipc
