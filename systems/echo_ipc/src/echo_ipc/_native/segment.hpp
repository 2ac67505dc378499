// A segment: one piece of shared memory with a page of words in front, a description in JSON after it, and then what a cell, a ring or a table
// of rows puts there. This file has what these three share: the page of words, a lock that survives the death of its holder, a word to sleep on,
// and a copy.
//
// All memory is written by several processes, and each of them may be killed at any instruction. Therefore sizes and places are checked once, when
// a process attaches, and kept in its own memory; words of the segment that serve as an index are checked at each use.
#pragma once

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <new>

#include "echo_copy.h"
#include "parties.hpp"

namespace echo_ipc {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kMagic = 0x314350494F484345;  // "ECHOIPC1"
constexpr uint32_t kLayout = 2;                  // of all structures in these headers; raised when one of them changes
constexpr int64_t kSlice = 50'000'000;           // ns: a sleeper looks again after this time, because who should wake it may have been killed

enum Kind : uint32_t { kCell = 1, kRing = 2, kRows = 3 };

// What the calls return. kLater: the deadline passed; the caller handles signals and calls again.
enum Outcome { kDone = 0, kLater = 1, kNothing = 2, kFull = 3, kHeld = 4, kGone = 5, kDamaged = 6 };

inline uint64_t up(uint64_t count, uint64_t to = kPage) { return (count + to - 1) / to * to; }

inline int64_t now_ns() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// A mutex of which the kernel tells the next taker if its holder was killed. The taker then repairs what the mutex protects.
class Lock {
public:
    void init() {
        pthread_mutexattr_t how;
        pthread_mutexattr_init(&how);
        pthread_mutexattr_setpshared(&how, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&how, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&mutex_, &how);
        pthread_mutexattr_destroy(&how);
        repairs_.store(0, std::memory_order_relaxed);
    }

    // Takes the mutex, or returns false after at most `longest` ns.
    template <class Repair>
    bool take(int64_t longest, Repair repair) {
        int result = pthread_mutex_trylock(&mutex_);
        if (result == EBUSY && longest > 0) {
            timespec until;  // pthread_mutex_clocklock is younger than the oldest glibc that wheels support
            clock_gettime(CLOCK_REALTIME, &until);
            until.tv_nsec += long(longest % 1'000'000'000);
            until.tv_sec += time_t(longest / 1'000'000'000) + until.tv_nsec / 1'000'000'000;
            until.tv_nsec %= 1'000'000'000;
            result = pthread_mutex_timedlock(&mutex_, &until);
        }
        if (result == EOWNERDEAD) {
            repair();  // if this process is killed here, the next one repairs again
            repairs_.fetch_add(1, std::memory_order_relaxed);
            pthread_mutex_consistent(&mutex_);
            result = 0;
        }
        return result == 0;
    }

    void give() { pthread_mutex_unlock(&mutex_); }
    uint64_t repairs() const { return repairs_.load(std::memory_order_relaxed); }

private:
    pthread_mutex_t mutex_;
    std::atomic<uint64_t> repairs_;
};

// A word to sleep on: a number that grows with each wake-up, and in its lowest bit whether anybody sleeps. Sleeper and waker use the same word, so
// none of them can miss the other, and a sleeper that is killed leaves nothing behind but a bit, which the next wake-up clears.
class Event {
public:
    void init() { word_.store(0, std::memory_order_relaxed); }

    // To be read before the condition is looked at.
    uint32_t look() const { return word_.load(std::memory_order_acquire) & ~1u; }

    // Call after the change of what others wait for.
    void wake() {
        uint32_t before = word_.load(std::memory_order_relaxed);
        while (!word_.compare_exchange_weak(before, (before + 2) & ~1u, std::memory_order_acq_rel, std::memory_order_relaxed)) {}
        if (before & 1) syscall(SYS_futex, word(), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }

    // Sleeps until a wake-up after `seen` was read, a signal, or for `longest` ns.
    void sleep(uint32_t seen, int64_t longest) {
        uint32_t expected = seen;
        if (!word_.compare_exchange_strong(expected, seen | 1, std::memory_order_acq_rel, std::memory_order_acquire) && expected != (seen | 1)) return;
        const timespec limit = {time_t(longest / 1'000'000'000), long(longest % 1'000'000'000)};
        syscall(SYS_futex, word(), FUTEX_WAIT, seen | 1, &limit, nullptr, 0);
    }

private:
    uint32_t *word() { return reinterpret_cast<uint32_t *>(&word_); }
    std::atomic<uint32_t> word_;
};

// A hint that somebody waits for the lock who must not wait for long. The lock is not fair: a process that gives it back and takes it again at once usually
// gets it. So a writer that finds the hint lets others go first, once.
class Turnstile {
public:
    void ask() { asked_.store(1, std::memory_order_relaxed); }
    void pass() {
        if (asked_.load(std::memory_order_relaxed) && asked_.exchange(0, std::memory_order_relaxed)) usleep(200);
    }

private:
    std::atomic<uint32_t> asked_;
};

struct Header {
    uint64_t magic;
    uint32_t layout, kind;
    uint64_t nonce;         // differs in every segment
    uint64_t size;          // bytes of the whole segment
    uint64_t schema_bytes;  // of the description that begins at the second page
    uint64_t words[8];      // sizes that only one kind knows
    alignas(64) Lock lock;
    alignas(64) Event changed;  // a cell has a newer value, a ring has something to take, a table has more rows
    alignas(64) Event freed;    // a ring has room
    Turnstile turnstile;
    Parties parties;
};
static_assert(sizeof(Header) <= kPage && std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// The mapped memory, with sizes that were checked. It does not own the memory.
struct Segment {
    Header *header = nullptr;
    char *control = nullptr;  // what follows the description
    bool writable = false;

    Segment() = default;
    Segment(char *base, bool writable)
        : header(reinterpret_cast<Header *>(base)), control(base + start(header->schema_bytes)), writable(writable) {}

    static uint64_t start(uint64_t schema_bytes) { return up(kPage + schema_bytes); }
    uint64_t at(const char *place) const { return uint64_t(place - reinterpret_cast<const char *>(header)); }
};

// Makes the page of words. The memory is new and zero, so a process that is killed here leaves memory that nobody can attach to.
inline void make(char *base, uint64_t size, Kind kind, uint64_t nonce, const char *schema, uint64_t schema_bytes, const uint64_t (&words)[8]) {
    Header *header = new (base) Header;
    header->layout = kLayout, header->kind = kind, header->nonce = nonce, header->size = size, header->schema_bytes = schema_bytes;
    std::memcpy(header->words, words, sizeof words);
    std::memcpy(base + kPage, schema, schema_bytes);
    header->lock.init();
    header->changed.init();
    header->freed.init();
    header->parties.init();
    std::atomic_ref<uint64_t>(header->magic).store(kMagic, std::memory_order_release);
}

// What is wrong with memory that claims to be a segment of this kind; nullptr if nothing is.
inline const char *wrong(const char *base, uint64_t size, Kind kind) {
    if (size < 2 * kPage) return "it is too small";
    const Header *header = reinterpret_cast<const Header *>(base);
    if (header->magic != kMagic) return "it is no memory of echo-ipc";
    if (header->layout != kLayout) return "another version of echo-ipc made it; install the same version for all processes";
    if (header->kind != kind) return "it is of another kind";
    if (header->size != size || header->schema_bytes > size - kPage) return "its sizes do not fit together";
    return nullptr;
}

// Whether copies of so many bytes in total go past the caches: if the three places of a cell do not fit there together with what they are copied from.
inline bool is_large(uint64_t total) { return total >= echo::shared_cache() / 4; }

// One array of the caller's, and where it is in a value, or one column of a batch of rows, and where it is in a row.
struct Part {
    char *memory;
    uint64_t offset, bytes;  // the bytes of a column are those of one row
};

// Copies arrays to their places in a value.
inline void copy_in(char *value, const Part *parts, int count) {
    uint64_t total = 0;
    for (int i = 0; i < count; ++i) total += parts[i].bytes;
    for (int i = 0; i < count; ++i) echo::copy_racing(value + parts[i].offset, parts[i].memory, parts[i].bytes, is_large(total));
}

// A vector, because the compiler moves one in as few steps as the function around it may: one of 32 bytes in a function that may use AVX, else two of 16.
template <int kBytes>
[[gnu::always_inline]] inline void copy_block(char *to, const char *from) {
    typedef char Block __attribute__((vector_size(kBytes), aligned(1), may_alias));
    *reinterpret_cast<Block *>(to) = *reinterpret_cast<const Block *>(from);
}

// The last block overlaps the first.
template <int kBytes>
[[gnu::always_inline]] inline void copy_ends(char *to, const char *from, uint64_t count) {
    copy_block<kBytes>(to, from);
    copy_block<kBytes>(to + count - kBytes, from + count - kBytes);
}

// A few bytes of a row. Columns are short, and a call of memcpy takes longer than the copy itself. The last pieces overlap the ones before.
[[gnu::always_inline]] inline void copy_piece(char *to, const char *from, uint64_t count) {
#if defined(__SANITIZE_THREAD__)
    echo::copy_racing(to, from, count, false);
#else
    if (count > 256) {
        std::memcpy(to, from, count);
    } else if (count >= 32) {
        for (uint64_t at = 0; at + 32 <= count; at += 32) copy_block<32>(to + at, from + at);
        if (count % 32) copy_block<32>(to + count - 32, from + count - 32);
    } else if (count >= 16) {
        copy_ends<16>(to, from, count);
    } else if (count >= 8) {
        copy_ends<8>(to, from, count);
    } else if (count >= 4) {
        copy_ends<4>(to, from, count);
    } else {
        for (uint64_t at = 0; at < count; ++at) to[at] = from[at];
    }
#endif
}

constexpr uint64_t kPopulated = 512 << 20;  // bytes; memory up to this size is entered into the page table when it is mapped

}  // namespace echo_ipc
