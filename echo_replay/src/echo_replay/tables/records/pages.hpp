// The memory of a table's records: pages of one size, of which each record has a chain. Pages that a record gave back are used again at once, for
// a record of any length, so the memory never has to be compacted.
//
// The table's mutex guards take(), give() and the counts. Bytes are written and read without it: readers check the generation of the item
// afterwards, and may follow a chain that is changed meanwhile, so that every link is checked before it is used.
#pragma once

#include <sys/mman.h>
#include <fcntl.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <new>
#include <system_error>

#include "echo_huge_pages.h"
#include "echo_pages.h"
#include "free_pages.hpp"
#include "store/racing_copy.hpp"

namespace echo::replay {

class Pages {
public:
    // Half a page of each record is empty on average, so pages are small. Pages that follow each other are copied together.
    static constexpr uint64_t kBytes = 512;
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr uint64_t kMost = UINT32_MAX - 1;

    static uint32_t of(uint64_t bytes) { return uint32_t((bytes + kBytes - 1) / kBytes); }

    // fd: a file to map, whose space is reserved here, or -1 for memory. Throws std::bad_alloc, or std::system_error if the disk is full.
    Pages(uint64_t count, int fd) : count_(uint32_t(count)), next_(count_), free_pages_(count_), free_(count_) {
        const uint64_t bytes = count * kBytes;
        if (fd >= 0) {
            const int failed = posix_fallocate(fd, 0, off_t(bytes));
            if (failed) throw std::system_error(failed, std::generic_category(), "posix_fallocate");
        }
        void *memory = map_aligned(bytes, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<char *>(memory);
        if (fd < 0) madvise(base_, bytes, MADV_HUGEPAGE);
    }
    ~Pages() { munmap(base_, count_ * kBytes); }
    Pages(const Pages &) = delete;
    Pages &operator=(const Pages &) = delete;

    uint32_t count() const { return count_; }
    uint32_t free() const { return free_; }

    // Takes a chain of n pages, of which there must be so many. Returns the first one.
    uint32_t take(uint32_t n) {
        uint32_t first = kNone, last = kNone;
        for (uint32_t begin, some; n != 0; n -= some, free_ -= some) {
            while ((some = free_pages_.take(at_, n, &begin)) == 0) turn();
            if (last == kNone) first = begin;
            else link(last, begin);
            for (uint32_t i = 1; i < some; ++i) link(begin + i - 1, begin + i);
            last = begin + some - 1, at_ = begin + some;
        }
        if (last != kNone) link(last, kNone);
        return first;
    }
    void give(uint32_t n, uint32_t first) {
        free_ += n;
        for (uint32_t some; n != 0; n -= some) {
            uint32_t behind = next(first);
            for (some = 1; some < n && behind == first + some; ++some) behind = next(behind);
            free_pages_.add(first, some);
            first = behind;
        }
    }

    // A place in a chain. It never leaves the memory, even if the chain is changed while it is followed.
    class Cursor {
    public:
        Cursor(const Pages &pages, uint32_t first) : pages_(pages), page_(first) { reach(first); }

        void read(char *to, uint64_t bytes) {
            for (uint64_t some; bytes != 0 && (some = ready(bytes)) != 0; to += some, bytes -= some) copy_racing(to, at_ - some, some);
        }
        void write(const char *from, uint64_t bytes) {
            for (uint64_t some; bytes != 0 && (some = ready(bytes)) != 0; from += some, bytes -= some) copy_racing_out(at_ - some, from, some);
        }

    private:
        static constexpr uint64_t kTogether = 64 * kBytes;  // bounds how far a chain is followed that was changed meanwhile

        // Passes up to `wanted` bytes that lie side by side, and returns how many. 0: the chain ends here.
        uint64_t ready(uint64_t wanted) {
            if (left_ == 0) reach(page_ == kNone ? kNone : pages_.next(page_));
            const uint64_t some = wanted < left_ ? wanted : left_;
            at_ += some, left_ -= some;
            return some;
        }
        // Goes to a page, and to all that follow it in memory as well as in the chain.
        void reach(uint32_t page) {
            page_ = kNone;
            if (page >= pages_.count_) return;
            at_ = pages_.base_ + page * kBytes, left_ = kBytes;
            page_ = page;
            for (uint32_t behind; left_ < kTogether && (behind = pages_.next(page_)) == page_ + 1 && behind < pages_.count_; page_ = behind)
                left_ += kBytes;
        }

        const Pages &pages_;
        uint32_t page_;  // the last one that is in reach
        char *at_ = nullptr;
        uint64_t left_ = 0;
    };

    void prefetch(uint32_t page) const {
        if (page < count_) __builtin_prefetch(base_ + page * kBytes), __builtin_prefetch(&next_[page]);
    }

private:
    uint32_t next(uint32_t page) const { return next_[page].load(std::memory_order_relaxed); }
    void link(uint32_t page, uint32_t to) { next_[page].store(to, std::memory_order_relaxed); }

    // Nothing is free behind at_. Pages in use before are used again while every fourth of them is free, so that a record finds many side by side;
    // otherwise some are added that were never used, so that the table takes no more memory than it needs.
    void turn() {
        const uint32_t fresh = count_ - opened_, unused = free_ - fresh;
        if (fresh != 0 && unused < opened_ / 4 + kOpen) {
            const uint32_t n = std::min(fresh, kOpen);
            free_pages_.add(opened_, n);
            opened_ += n;
        } else {
            at_ = 0;
        }
    }

    static constexpr uint32_t kOpen = 512;

    const uint32_t count_;
    char *base_ = nullptr;
    PageArray<std::atomic<uint32_t>> next_;
    FreePages free_pages_;  // of the first `opened_` pages; the others were never used
    uint32_t opened_ = 0, at_ = 0;
    uint32_t free_;
};

}  // namespace echo::replay
