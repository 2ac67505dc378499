// The memory of a table, and how rows are gathered from it into a batch. There is one array for each leaf, or, if rows are small and have
// several leaves, one record for each row. A randomly drawn row then costs one or two cache misses instead of one for each leaf.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <new>
#include <system_error>
#include <vector>

#include "echo_huge_pages.h"
#include "store/racing_copy.hpp"

namespace echo::replay {

constexpr size_t kRecordLeaves = 64;  // rows with more leaves are not packed into records

class Rows {
public:
    static uint64_t plan(const std::vector<uint64_t> &leaf_bytes, uint64_t rows, std::vector<uint64_t> *offsets) {
        // Arrays that all began at the same offset of a page would compete for the same cache sets, so each is staggered by three lines.
        uint64_t end = 0, index = 0;
        for (uint64_t bytes : leaf_bytes) {
            const uint64_t wish = index++ * 192 % 4096;
            uint64_t offset = (end + 63) & ~uint64_t(63), size;
            if (bytes * rows >= 4096) offset += (wish + 4096 - offset % 4096) % 4096;
            if (__builtin_mul_overflow(bytes, rows, &size) || __builtin_add_overflow(offset, size, &end) || end > UINT64_MAX / 2)
                return UINT64_MAX;
            if (offsets) offsets->push_back(offset);
        }
        return (end + 64 + 4095) & ~uint64_t(4095);
    }

    // fd: a file to map, whose space is reserved here, or -1 for memory. Throws std::bad_alloc, or std::system_error if the disk is full.
    // pack: false keeps an array for each leaf, however small the rows are. initial: so many rows get their memory now, and the others when
    // they are first used. Only addresses are reserved for those, so rows never move.
    Rows(const std::vector<uint64_t> &leaf_bytes, uint64_t rows, int fd, bool pack = true, uint64_t initial = UINT64_MAX)
        : bytes_(leaf_bytes), record_(pack ? record_of(leaf_bytes) : 0), rows_(rows), step_(step_of(leaf_bytes)),
          mapped_(plan(leaf_bytes, rows, &offsets_)), ready_(std::min(initial, rows)) {
        if (mapped_ == UINT64_MAX) throw std::bad_alloc();
        uint64_t end = 0;
        for (size_t leaf = 0; packed() && leaf < bytes_.size(); ++leaf) offsets_[leaf] = end, end += bytes_[leaf];
        if (fd >= 0) {
            const int failed = posix_fallocate(fd, 0, off_t(mapped_));
            if (failed) throw std::system_error(failed, std::generic_category(), "posix_fallocate");
        }
        void *memory = map_aligned(mapped_, PROT_READ | PROT_WRITE, fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, fd);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        base_ = static_cast<char *>(memory);
        if (fd >= 0) {  // the file may be larger than the memory of this machine
            ready_ = rows;
            return;
        }
        madvise(base_, mapped_, MADV_HUGEPAGE);
        if (initial < rows) {
            populate(0, initial);
            return;
        }
        // Pre-fault the pages: the first lap through untouched pages would run at a fraction of the speed. Old kernels do not know this advice.
        if (madvise(base_, mapped_, kPopulate) != 0)
            for (uint64_t i = 0; i < mapped_; i += 4096) static_cast<volatile char *>(base_)[i] = 0;
    }
    ~Rows() { munmap(base_, mapped_); }
    Rows(const Rows &) = delete;
    Rows &operator=(const Rows &) = delete;

    // Call this before rows below `end` are written: it gets memory for them, in steps that are short for a writer. Writers alone wait for
    // it, as nobody reads a row before it was written.
    void reach(uint64_t end) {
        if (end > ready_.load(std::memory_order_relaxed)) [[unlikely]] grow(end);
    }
    // The rows that have memory.
    uint64_t ready() const { return ready_.load(std::memory_order_relaxed); }

    // Returns the bytes of a record, or 0 if leaves have arrays of their own. Records have no padding, which would cost a fifth of a small row's memory.
    static uint64_t record_of(const std::vector<uint64_t> &leaf_bytes) {
        uint64_t total = 0;
        for (uint64_t bytes : leaf_bytes) total += bytes;
        return leaf_bytes.size() >= 2 && leaf_bytes.size() <= kRecordLeaves && total > 0 && total <= kRecord ? total : 0;
    }
    bool packed() const { return record_ != 0; }
    char *at(uint32_t leaf, uint64_t row) const { return base_ + offsets_[leaf] + row * (packed() ? record_ : bytes_[leaf]); }
    uint32_t leaves() const { return uint32_t(bytes_.size()); }
    uint64_t leaf_bytes(uint32_t leaf) const { return bytes_[leaf]; }
    uint64_t mapped() const { return mapped_; }

    // Prefetches the beginning of a row for a gather. Only records are prefetched: several arrays would be too much at a time.
    void prefetch(uint32_t row) const {
        if (!packed()) return;
        const char *record = base_ + row * record_;
        __builtin_prefetch(record);
        __builtin_prefetch(record + record_ - 1);
    }

    // Copies row rows[i] to to[leaf] + i * leaf_bytes. While one row is copied, the next ones are prefetched.
    void gather(const uint32_t *rows, size_t n, char *const *to) const {
        if (!packed()) {
            for (uint32_t leaf = 0; leaf < leaves(); ++leaf) gather_leaf(leaf, rows, n, to[leaf]);
            return;
        }
        constexpr size_t kBlock = 32, kAhead = 16;
        char block[kBlock * kRecord];
        const auto fetch = [&](size_t i) {
            const char *record = base_ + rows[i] * record_;
            __builtin_prefetch(record);
            __builtin_prefetch(record + record_ - 1);
        };
        for (size_t i = 0; i < n && i < kAhead; ++i) fetch(i);
        for (size_t first = 0; first < n; first += kBlock) {
            const size_t count = n - first < kBlock ? n - first : kBlock;
            for (size_t i = 0; i < count; ++i) {
                if (first + i + kAhead < n) fetch(first + i + kAhead);
                copy_racing(block + i * record_, base_ + rows[first + i] * record_, record_);
            }
            for (uint32_t leaf = 0; leaf < leaves(); ++leaf)
                strided(to[leaf] + first * bytes_[leaf], bytes_[leaf], block + offsets_[leaf], record_, bytes_[leaf], count);
        }
    }

    // Copies a single row into place i of a batch.
    void copy(uint32_t row, size_t i, char *const *to) const {
        for (uint32_t leaf = 0; leaf < leaves(); ++leaf) copy_racing(to[leaf] + i * bytes_[leaf], at(leaf, row), bytes_[leaf]);
    }

    // Copies from[leaf] + i * leaf_bytes into rows first..first+n. Only for packed rows.
    void scatter(uint64_t first, size_t n, const char *const *from) const {
        for (uint32_t leaf = 0; leaf < leaves(); ++leaf) {
#ifdef __SANITIZE_THREAD__
            for (size_t i = 0; i < n; ++i) copy_racing_out(at(leaf, first + i), from[leaf] + i * bytes_[leaf], bytes_[leaf]);
#else
            strided(at(leaf, first), record_, from[leaf], bytes_[leaf], bytes_[leaf], n);
#endif
        }
    }

private:
    static constexpr uint64_t kRecord = 128;
    static constexpr int kPopulate = 23;  // MADV_POPULATE_WRITE
    static constexpr uint64_t kGrowth = 4u << 20;  // bytes of rows that get their memory together

    static uint64_t step_of(const std::vector<uint64_t> &leaf_bytes) {
        uint64_t total = 1;
        for (uint64_t bytes : leaf_bytes) total += bytes;
        return std::max<uint64_t>(1, kGrowth / total);
    }
    [[gnu::noinline]] void grow(uint64_t end) {
        std::lock_guard<std::mutex> lock(growing_);
        for (uint64_t from = ready(); from < end; from = ready()) {
            const uint64_t to = std::min(rows_, std::max(end, from + step_));
            populate(from, to);
            ready_.store(to, std::memory_order_relaxed);
        }
    }
    // Without this advice (old kernels), and if it fails, the kernel provides each page when it is first written.
    void populate(uint64_t from, uint64_t to) const {
        if (from >= to) return;
        for (uint32_t leaf = 0; leaf < (packed() ? 1 : leaves()); ++leaf) {
            char *const begin = at(leaf, from) - reinterpret_cast<uintptr_t>(at(leaf, from)) % 4096;
            const uint64_t bytes = uint64_t(at(leaf, to) - begin);
            if (bytes) madvise(begin, (bytes + 4095) & ~uint64_t(4095), kPopulate);
        }
    }

    // If the compiler knows the size, each copy is one or two moves instead of a call.
    template <size_t N>
    static void strided_fixed(char *to, size_t to_step, const char *from, size_t from_step, size_t n) {
        for (size_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, N);
    }
    static void strided(char *to, size_t to_step, const char *from, size_t from_step, size_t bytes, size_t n) {
        switch (bytes) {
            case 0: return;
            case 1: return strided_fixed<1>(to, to_step, from, from_step, n);
            case 2: return strided_fixed<2>(to, to_step, from, from_step, n);
            case 4: return strided_fixed<4>(to, to_step, from, from_step, n);
            case 8: return strided_fixed<8>(to, to_step, from, from_step, n);
            case 12: return strided_fixed<12>(to, to_step, from, from_step, n);
            case 16: return strided_fixed<16>(to, to_step, from, from_step, n);
            case 24: return strided_fixed<24>(to, to_step, from, from_step, n);
            case 32: return strided_fixed<32>(to, to_step, from, from_step, n);
            default:
                for (size_t i = 0; i < n; ++i) std::memcpy(to + i * to_step, from + i * from_step, bytes);
        }
    }

    void gather_leaf(uint32_t leaf, const uint32_t *rows, size_t n, char *to) const {
        const char *from = base_ + offsets_[leaf];
        switch (bytes_[leaf]) {
            case 0: return;
            case 1: return fixed<1>(from, rows, n, to);
            case 2: return fixed<2>(from, rows, n, to);
            case 4: return fixed<4>(from, rows, n, to);
            case 8: return fixed<8>(from, rows, n, to);
            case 12: return fixed<12>(from, rows, n, to);
            case 16: return fixed<16>(from, rows, n, to);
            case 24: return fixed<24>(from, rows, n, to);
            case 32: return fixed<32>(from, rows, n, to);
            case 64: return fixed<64>(from, rows, n, to);
        }
        const uint64_t bytes = bytes_[leaf];
        const size_t ahead = bytes >= 2048 ? 1 : 8;
        const uint64_t lines = bytes < 512 ? bytes : 512;  // after that the processor's own prefetcher has seen the direction
        for (size_t i = 0; i < n; ++i) {
            if (i + ahead < n) {
                const char *next = from + rows[i + ahead] * bytes;
                for (uint64_t line = 0; line < lines; line += 64) __builtin_prefetch(next + line);
            }
            copy_racing(to + i * bytes, from + rows[i] * bytes, bytes);
        }
    }

    template <size_t N>
    static void fixed(const char *from, const uint32_t *rows, size_t n, char *to) {
        constexpr size_t kAhead = 16;
        for (size_t i = 0; i < n && i < kAhead; ++i) __builtin_prefetch(from + uint64_t(rows[i]) * N);
        for (size_t i = 0; i < n; ++i) {
            if (i + kAhead < n) __builtin_prefetch(from + uint64_t(rows[i + kAhead]) * N);
            copy_racing(to + i * N, from + uint64_t(rows[i]) * N, N);
        }
    }

    const std::vector<uint64_t> bytes_;
    const uint64_t record_, rows_, step_;
    std::vector<uint64_t> offsets_;  // of each leaf's array; if packed: of each leaf in a record
    const uint64_t mapped_;
    char *base_ = nullptr;
    std::atomic<uint64_t> ready_;
    std::mutex growing_;
};

}  // namespace echo::replay
