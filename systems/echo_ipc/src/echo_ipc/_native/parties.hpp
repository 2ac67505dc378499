// The list of processes that have a segment open. With it, a wait can tell that nobody is left who could end it.
//
// Each process is entered once, whatever number of handles it has. An entry tells what its process has done so far: it gave something (wrote, added,
// claimed) or took something. A process that has done neither may still do either.
#pragma once

#include "process.hpp"

#include <atomic>
#include <vector>

namespace echo_ipc {

// kParty: the process made the segment, or was handed it when it was started. If it dies before it has done anything, it counts as both.
enum Role : uint64_t { kGives = 1, kTakes = 2, kParty = 4 };

class Parties {
public:
    void init() {
        for (Entry &entry : entries_) entry.started.store(-1, std::memory_order_relaxed);
    }

    // A process is being started that gets the segment. Until it has entered, or for kStarting ns if it never does, nobody counts as gone.
    void expect(int64_t now) {
        expected_.fetch_add(1);
        expected_since_.store(now);
    }
    void arrived() {
        int64_t before = expected_.load();
        while (before > 0 && !expected_.compare_exchange_weak(before, before - 1)) {}
    }

    // The place of the process in the list. Without a free place it is -1, and then nobody counts as gone any more.
    int enter(uint64_t pid, int64_t started, uint64_t roles) {
        for (int round = 0; round < 2; ++round) {
            for (int i = 0; i < kMost; ++i) {
                const uint64_t who = entries_[i].who.load();
                if (who >> 8 != pid || entries_[i].started.load() != started) continue;
                entries_[i].who.fetch_or(roles);
                return i;
            }
            for (int i = 0; i < kMost; ++i) {
                uint64_t none = 0;
                if (!entries_[i].who.compare_exchange_strong(none, pid << 8 | roles)) continue;
                entries_[i].started.store(started);
                return i;
            }
            for (int i = 0; i < kMost; ++i)  // places of dead processes are used again
                if (!lives(entries_[i])) leave(i, true);
        }
        unlisted_.store(1);
        return -1;
    }

    void did(int place, Role role) { entries_[place].who.fetch_or(role); }

    // The process has no handle any more. `last`: nobody can attach through it either.
    void leave(int place, bool last) {
        entries_[place].started.store(-1);
        const uint64_t roles = entries_[place].who.exchange(0);
        for (const Role role : {kGives, kTakes})
            if (counts(last ? roles : roles & ~uint64_t(kParty), role)) left_[role == kTakes].fetch_add(1);
    }

    // Whether there were others that could give (or take), and none of them is left. `dead`: those that died.
    bool are_gone(Role role, uint64_t pid, int64_t now, std::vector<uint64_t> *dead) const {
        if (unlisted_.load() || (expected_.load() > 0 && now - expected_since_.load() < kStarting)) return false;
        bool gone = left_[role == kTakes].load() > 0;
        for (const Entry &entry : entries_) {
            const uint64_t who = entry.who.load();
            if (who == 0) continue;
            if (who >> 8 == pid) {
                if (who & role) return false;  // another thread of this process may do it
            } else if (lives(entry)) {
                if (who & role || !(who & opposite(role))) return false;
            } else if (counts(who, role)) {
                gone = true;
                dead->push_back(who >> 8);
            }
        }
        return gone;
    }

private:
    static constexpr int kMost = 128;
    static constexpr int64_t kStarting = 60'000'000'000;

    struct Entry {
        std::atomic<uint64_t> who;      // pid << 8 | roles; 0: the place is free
        std::atomic<int64_t> started;   // -1 until it is known
    };

    static uint64_t opposite(Role role) { return kGives + kTakes - role; }
    static bool counts(uint64_t who, Role role) { return who & role || (who & kParty && !(who & opposite(role))); }
    static bool lives(const Entry &entry) { return is_alive(int64_t(entry.who.load() >> 8), entry.started.load()); }

    std::atomic<int64_t> expected_, expected_since_;
    std::atomic<uint64_t> unlisted_, left_[2];
    Entry entries_[kMost];
};

}  // namespace echo_ipc
