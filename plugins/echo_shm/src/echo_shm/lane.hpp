// A lane: memory that only one worker and the learner share. The worker writes samples into it, and the learner copies them into its
// store.
//
// The learner trusts nothing that it reads here: a worker may write anything, anywhere in the lane, at any moment.
// * Of the words, the learner uses only `written` as a number. It reads it once and checks it against numbers that it keeps outside of the lane,
//   and uses only the checked copy. All addresses follow from numbers that the worker cannot reach.
// * The other words only say which side wants to be woken. A wrong value there costs a system call, or a sleep that ends by itself.
// * Samples are copied once, and nothing reads them before. A worker that changes a sample meanwhile tears only its own sample.
// The memory cannot shrink (it is sealed), so a read of it never faults.
#pragma once

#include <linux/futex.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <new>
#include <stdexcept>
#include <vector>

#include "echo_capi.h"
#include "echo_huge_pages.h"
#include "store/wait/event_count.hpp"

// The test suite also builds this file with a relaxed order here, to prove that ThreadSanitizer would see the mistake.
#ifndef ECHO_WRITTEN_ORDER
#define ECHO_WRITTEN_ORDER std::memory_order_seq_cst
#endif

namespace echo_shm {

using echo::now_ns;

struct LaneWords {
    enum Bell : uint32_t { kAwake = 0, kNap = 1, kAsleep = 2 };
    alignas(64) std::atomic<uint64_t> written;  // number of samples that are whole; the worker writes it
    alignas(64) std::atomic<uint64_t> copied;   // number of them that are in the store; the learner writes it
    alignas(64) std::atomic<uint32_t> bell;     // whether the learner's thread sleeps; it sleeps on this word
    alignas(64) std::atomic<uint64_t> wake_at;  // the worker wants to be woken when `copied` reaches this number
    std::atomic<uint32_t> turns;                // counts how often the worker was woken; it sleeps on this word
};

inline int futex_sleep(std::atomic<uint32_t> &word, uint32_t while_it_is, int64_t ns) {
    const timespec limit = {time_t(ns / 1'000'000'000), long(ns % 1'000'000'000)};
    return int(syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAIT, while_it_is, &limit, nullptr, 0));
}

inline void futex_wake(std::atomic<uint32_t> &word, int how_many) {
    syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), FUTEX_WAKE, how_many, nullptr, nullptr, 0);
}

class LaneMemory {
public:
    static constexpr uint64_t kHead = 4096, kMostRows = 1 << 30;
    static constexpr uint64_t kLabelBytes = 16;  // of one sample (echo_core/wire/labels.py); only ones if it has none

    // The columns of a lane's rows.
    static std::vector<uint64_t> with_labels(std::vector<uint64_t> leaf_bytes, bool labels) {
        if (labels) leaf_bytes.push_back(kLabelBytes);
        return leaf_bytes;
    }

    // The size of a lane of `rows` samples; 0 if no machine has so much memory.
    static uint64_t bytes(const std::vector<uint64_t> &leaf_bytes, uint64_t rows) { return plan(leaf_bytes, rows, nullptr); }

    uint64_t rows() const { return rows_; }

protected:
    // Throws std::bad_alloc if the memory cannot be mapped, and std::invalid_argument if its size does not fit the leaves.
    LaneMemory(int fd, const std::vector<uint64_t> &leaf_bytes, uint64_t rows) : rows_(rows), leaf_bytes_(leaf_bytes) {
        struct stat found;
        length_ = plan(leaf_bytes, rows, &offset_);
        if (length_ == 0 || fstat(fd, &found) != 0 || uint64_t(found.st_size) != length_) throw std::invalid_argument("its size is another");
        void *memory = echo::map_aligned(length_, PROT_READ | PROT_WRITE, MAP_SHARED, fd);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<char *>(memory);
        madvise(base_, length_, MADV_DONTFORK);  // a forked child must not see the lane
        madvise(base_, length_, 23 /* MADV_POPULATE_WRITE */);
        words_ = reinterpret_cast<LaneWords *>(base_);
    }
    ~LaneMemory() {
        if (getpid() == born_) munmap(base_, length_);  // a forked child does not have this mapping, and may have another one at this address
    }
    LaneMemory(const LaneMemory &) = delete;
    LaneMemory &operator=(const LaneMemory &) = delete;

    char *at(uint32_t leaf, uint64_t row) const { return base_ + offset_[leaf] + row * leaf_bytes_[leaf]; }

    uint64_t rows_, length_ = 0;
    const pid_t born_ = getpid();
    std::vector<uint64_t> leaf_bytes_, offset_;
    char *base_ = nullptr;
    LaneWords *words_ = nullptr;

private:
    static uint64_t plan(const std::vector<uint64_t> &leaf_bytes, uint64_t rows, std::vector<uint64_t> *offset) {
        uint64_t end = kHead, index = 0;
        if (rows < 1 || rows > kMostRows) return 0;
        for (uint64_t leaf : leaf_bytes) {
            // As in the store (area.hpp): arrays that begin at the same offset of a page would compete for the same cache sets.
            const uint64_t begin = ((end + 63) & ~uint64_t(63)) + index++ * 192 % 4096;
            uint64_t size;
            if (__builtin_mul_overflow(leaf, rows, &size) || __builtin_add_overflow(begin, size, &end) || end > UINT64_MAX / 2) return 0;
            if (offset) offset->push_back(begin);
        }
        return (end + 4095) & ~uint64_t(4095);
    }
};

// The worker's end. One thread at a time may call put; any thread may wait.
class LaneWriter : public LaneMemory {
public:
    // `labels`: the rows have a column for the samples' labels behind the leaves.
    LaneWriter(int fd, const std::vector<uint64_t> &leaf_bytes, uint64_t rows, bool labels = false)
        : LaneMemory(fd, with_labels(leaf_bytes, labels), rows), leaves_(uint32_t(leaf_bytes.size())), labelled_(labels) {}

    bool labelled() const { return labelled_; }

    // Copies the samples *done to n - 1 of the arrays `leaves`, with their `labels`; null: they have none. ECHO_FULL: only those before the new *done
    // were copied.
    int put(const void *const *leaves, uint64_t n, uint64_t *done, const char *labels = nullptr) {
        while (*done < n) {
            uint64_t room = rows_ - (written_ - seen_);
            if (room < n - *done) {
                seen_ = words_->copied.load(std::memory_order_acquire);  // SYNC copied
                room = rows_ - (written_ - seen_);
                if (room == 0) return ECHO_FULL;
            }
            uint64_t count = n - *done;
            if (count > room) count = room;
            if (count > rows_ - row_) count = rows_ - row_;
            for (uint32_t i = 0; i < leaves_; ++i)
                std::memcpy(at(i, row_), static_cast<const char *>(leaves[i]) + *done * leaf_bytes_[i], count * leaf_bytes_[i]);
            if (labelled_ && labels)
                std::memcpy(at(leaves_, row_), labels + *done * kLabelBytes, count * kLabelBytes);
            else if (labelled_)
                std::memset(at(leaves_, row_), 0xff, count * kLabelBytes);
            *done += count;
            written_ += count;
            row_ = row_ + count == rows_ ? 0 : row_ + count;
            // release: the samples are visible before the number that announces them. seq_cst: SYNC bell.
            words_->written.store(written_, ECHO_WRITTEN_ORDER);  // SYNC written
            if (words_->bell.load(std::memory_order_seq_cst) == LaneWords::kAsleep) ring();  // SYNC bell
        }
        return ECHO_OK;
    }

    uint64_t written() const { return words_->written.load(std::memory_order_relaxed); }
    uint64_t under_way() const { return written() - words_->copied.load(std::memory_order_acquire); }

    // Sleeps until the learner has copied `target` samples, the time is over, or a signal comes.
    bool wait_copied(uint64_t target, int64_t timeout_ns) {
        const int64_t deadline = now_ns() + timeout_ns;
        for (;;) {
            const uint32_t turn = words_->turns.load(std::memory_order_seq_cst);
            uint64_t wish = words_->wake_at.load(std::memory_order_seq_cst);
            while (target < wish && !words_->wake_at.compare_exchange_weak(wish, target, std::memory_order_seq_cst)) {}  // SYNC turns
            if (words_->copied.load(std::memory_order_seq_cst) >= target) return true;  // SYNC turns
            ring();
            const int64_t left = deadline - now_ns();
            if (left <= 0) return false;
            if (futex_sleep(words_->turns, turn, left) != 0 && errno == EINTR) return words_->copied.load(std::memory_order_seq_cst) >= target;
        }
    }

    // Sleeps in the same way until a quarter of the rows is free. If every single row woke the worker, the two sides would run in lockstep.
    bool wait_room(int64_t timeout_ns) { return wait_copied(written_ - rows_ + (rows_ + 3) / 4, timeout_ns); }

    // Copies the newest `count` samples to `to`, oldest first, leaf after leaf. If these are all that the learner has not copied, its end must have
    // stopped.
    void copy_rest(char *to, uint64_t count) const {
        const uint64_t first = (row_ + rows_ - count % rows_) % rows_, head = count < rows_ - first ? count : rows_ - first;
        for (uint32_t i = 0; i < leaf_bytes_.size(); ++i) {
            std::memcpy(to, at(i, first), head * leaf_bytes_[i]);
            std::memcpy(to + head * leaf_bytes_[i], at(i, 0), (count - head) * leaf_bytes_[i]);
            to += count * leaf_bytes_[i];
        }
    }

private:
    void ring() {
        if (words_->bell.exchange(LaneWords::kAwake, std::memory_order_seq_cst) != LaneWords::kAwake) futex_wake(words_->bell, 1);
    }

    const uint32_t leaves_;
    const bool labelled_;
    uint64_t written_ = 0, row_ = 0;  // row_ == written_ % rows_
    uint64_t seen_ = 0;               // last value read from words_->copied
};

// The learner's end. One thread calls run(); any thread may call the other functions.
class LaneReader : public LaneMemory {
public:
    enum Outcome { kEnded = 0, kClosed = 1, kBroken = 2 };

    LaneReader(int fd, const std::vector<uint64_t> &leaf_bytes, uint64_t rows, const echo_capi *api, echo_store *store)
        : LaneMemory(fd, leaf_bytes, rows), api_(*api), store_(store) {
        words_->wake_at.store(UINT64_MAX, std::memory_order_relaxed);
        uint64_t sample = 0;
        for (uint64_t bytes : leaf_bytes) sample += bytes;
        most_ = sample < kTurnBytes ? kTurnBytes / (sample + !sample) : 1;
        api_.retain(store_);
    }
    ~LaneReader() { api_.release(store_); }

    // Copies samples as they come, until finish() is called, the store is closed, or the worker has written an impossible number.
    Outcome run() {
        const Outcome outcome = copy();
        over_.store(true, std::memory_order_seq_cst);
        tell();
        return outcome;
    }

    // Ends run() after it has copied all samples that are whole by now, as far as there is space for them.
    void finish() {
        finishing_.store(true, std::memory_order_seq_cst);  // SYNC bell
        words_->bell.store(LaneWords::kAwake, std::memory_order_seq_cst);
        futex_wake(words_->bell, 1);
    }

    // Sleeps until all samples that are whole by now are copied (then true), run() ends, or `ns` have passed.
    bool catch_up(int64_t ns) {
        const int64_t deadline = now_ns() + ns;
        const uint64_t written = words_->written.load(std::memory_order_acquire);  // SYNC written
        if (words_->bell.exchange(LaneWords::kAwake, std::memory_order_seq_cst) != LaneWords::kAwake) futex_wake(words_->bell, 1);
        listeners_.fetch_add(1, std::memory_order_seq_cst);  // SYNC listeners
        int64_t left = ns;
        while (copied_.load(std::memory_order_seq_cst) < written && left > 0) {
            const uint32_t heard = heard_.load(std::memory_order_seq_cst);
            if (copied_.load(std::memory_order_seq_cst) < written && !over_.load(std::memory_order_seq_cst)) futex_sleep(heard_, heard, left);
            left = over_.load(std::memory_order_seq_cst) ? 0 : deadline - now_ns();
        }
        listeners_.fetch_sub(1, std::memory_order_seq_cst);
        return copied_.load(std::memory_order_seq_cst) >= written;
    }

    uint64_t copied() const { return copied_.load(std::memory_order_relaxed); }
    int64_t waits_since() const { return waits_since_.load(std::memory_order_relaxed); }

private:
    static constexpr uint64_t kTurnBytes = 256 << 10;                         // largest claim, so that other workers get their turn
    static constexpr int64_t kNap = 30'000, kLongNap = 100'000;               // ns
    static constexpr int64_t kSleep = 250'000'000, kSpaceSlice = 20'000'000;  // ns; after so long a sleeper looks without being woken

    Outcome copy() {
        prctl(PR_SET_TIMERSLACK, 1000);  // the kernel's default slack would be longer than the naps themselves
        bool last = false;
        for (;;) {
            if (!last) {
                last = finishing_.load(std::memory_order_acquire);  // read before `written`, so that all samples that were whole at finish() are copied
                const uint64_t written = words_->written.load(std::memory_order_acquire);  // SYNC written
                if (written - done_ > rows_) return kBroken;
                known_ = written;
            }
            if (known_ == done_) {
                if (last) return kEnded;
                idle();
                continue;
            }
            const int status = copy_some();
            if (status == ECHO_CLOSED) return kClosed;
            if (status == ECHO_FULL && !wait_space()) return kEnded;
        }
    }

    int copy_some() {
        const uint64_t side_by_side = std::min({known_ - done_, most_, rows_ - row_});
        for (uint32_t i = 0; i < leaves_.size(); ++i) leaves_[i] = at(i, row_);
        uint32_t taken;
        const int status = api_.put(store_, leaves_.data(), uint32_t(side_by_side), &taken);
        if (status != ECHO_OK) return status;
        done_ += taken;
        row_ = row_ + taken == rows_ ? 0 : row_ + taken;
        copied_.store(done_, std::memory_order_seq_cst);
        if (listeners_.load(std::memory_order_seq_cst) != 0) tell();  // SYNC listeners
        if (waits_since_.load(std::memory_order_relaxed) != 0) waits_since_.store(0, std::memory_order_relaxed);
        // release: our reads of these rows come before the worker writes new bytes there. seq_cst: SYNC turns.
        words_->copied.store(done_, std::memory_order_seq_cst);  // SYNC copied
        if (words_->wake_at.load(std::memory_order_seq_cst) <= done_) {  // SYNC turns
            words_->wake_at.store(UINT64_MAX, std::memory_order_seq_cst);  // a worker that lowers it now has read `turns` before the increment below
            words_->turns.fetch_add(1, std::memory_order_seq_cst);
            futex_wake(words_->turns, INT_MAX);
        }
        return ECHO_OK;
    }

    bool wait_space() {
        if (waits_since_.load(std::memory_order_relaxed) == 0) waits_since_.store(now_ns(), std::memory_order_relaxed);
        return api_.wait_space(store_, kSpaceSlice) == ECHO_OK || !finishing_.load(std::memory_order_acquire);
    }

    void tell() {
        heard_.fetch_add(1, std::memory_order_seq_cst);
        futex_wake(heard_, INT_MAX);
    }

    // A worker that sends without a break should not pay for waking this thread. So it takes short naps as long as they bring samples, and sleeps only then.
    void idle() {
        const auto nothing = [this] { return words_->written.load(std::memory_order_seq_cst) == done_ && !finishing_.load(std::memory_order_seq_cst); };
        const uint32_t state = quiet_ < 2 ? LaneWords::kNap : LaneWords::kAsleep;
        words_->bell.store(state, std::memory_order_seq_cst);  // SYNC bell
        bool early = false;
        if (nothing()) early = futex_sleep(words_->bell, state, quiet_ == 0 ? kNap : quiet_ == 1 ? kLongNap : kSleep) == 0 || errno != ETIMEDOUT;
        words_->bell.store(LaneWords::kAwake, std::memory_order_relaxed);
        if (!nothing()) {
            quiet_ = 0;
            return;
        }
        quiet_ = quiet_ < 2 ? quiet_ + 1 : 2;
        if (early) {  // the worker woke us without new samples; one that does so without end must not keep a core busy
            const timespec pause = {0, kLongNap};
            nanosleep(&pause, nullptr);
        }
    }

    const echo_capi &api_;
    echo_store *const store_;
    std::vector<const void *> leaves_ = std::vector<const void *>(leaf_bytes_.size());  // the addresses for one call of put
    uint64_t most_;      // most samples of one such call
    uint64_t done_ = 0, row_ = 0;  // row_ == done_ % rows_
    uint64_t known_ = 0;           // the checked copy of `written`
    int quiet_ = 2;                // number of naps in a row that brought nothing
    std::atomic<uint64_t> copied_{0};
    std::atomic<int64_t> waits_since_{0};
    std::atomic<uint32_t> listeners_{0}, heard_{0};  // number of threads in catch_up(), and the word they sleep on
    std::atomic<bool> finishing_{false}, over_{false};
};

}  // namespace echo_shm
