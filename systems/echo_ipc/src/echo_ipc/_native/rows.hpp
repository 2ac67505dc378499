// Rows: a table of the newest rows, for replay. Rows have numbers from 0 on; row i is at i % capacity, so a new row is written over the oldest.
//
// Two marks say what can be read. `reserved` is raised before the first byte of new rows is written, `committed` after the last one. A row can be read
// if its number is below `committed`, and at least `reserved` - capacity. A reader copies without a lock and looks at `reserved` again afterwards: the rows
// that were written over meanwhile are below reserved - capacity by then. Rows of an adder that was killed are never readable, and the next one
// writes over them.
#pragma once

#include "segment.hpp"

// The test suite also builds this file without the second look, to prove that it would notice torn rows.
#ifndef ECHO_IPC_MARKS
#define ECHO_IPC_MARKS 1
#endif

namespace echo_ipc {

constexpr uint64_t kAhead = 4096;  // bytes; measured: with a quarter or four times as much, 4096 rows of 444 bytes take an eighth longer

struct RowsControl {
    std::atomic<uint64_t> committed;
    alignas(64) std::atomic<uint64_t> reserved;
    std::atomic<uint64_t> broken;  // additions that were begun and never finished
};
static_assert(sizeof(RowsControl) <= kPage);

class Rows {
public:
    static uint64_t bytes(uint64_t schema_bytes, uint64_t capacity, uint64_t row) { return Segment::start(schema_bytes) + kPage + up(capacity * row); }

    // The sizes must have been checked with bytes().
    explicit Rows(const Segment &segment)
        : segment_(segment), control_(reinterpret_cast<RowsControl *>(segment.control)), data_(segment.control + kPage),
          capacity_(segment.header->words[0]), row_(segment.header->words[1]) {}

    uint64_t capacity() const { return capacity_; }
    uint64_t row() const { return row_; }
    uint64_t data() const { return segment_.at(data_); }
    uint64_t broken() const { return control_->broken.load(std::memory_order_relaxed); }
    Header *header() const { return segment_.header; }

    uint64_t committed() const { return control_->committed.load(std::memory_order_acquire); }
    uint64_t reserved() const { return control_->reserved.load(std::memory_order_acquire); }
    // The smallest number that can be read, if it is below `committed`.
    uint64_t first() const {
        const uint64_t reserved = control_->reserved.load(std::memory_order_acquire);
        return reserved > capacity_ ? reserved - capacity_ : 0;
    }

    // Adds rows, which readers may see a quarter of the table at a time, so that an addition leaves rows to read. kLater: the lock was not free for a slice.
    Outcome add(const Part *columns, int count, uint64_t rows, uint64_t *number) {
        segment_.header->turnstile.pass();
        if (!take()) return kLater;
        const uint64_t most = capacity_ / 4 ? capacity_ / 4 : 1;
        *number = control_->committed.load(std::memory_order_relaxed);
        for (uint64_t done = 0; done < rows;) {
            const uint64_t some = rows - done < most ? rows - done : most, from = *number + done;
            // Never lowered: an adder that was killed may have written over the rows up to there.
            if (control_->reserved.load(std::memory_order_relaxed) < from + some) control_->reserved.store(from + some, std::memory_order_relaxed);
            std::atomic_thread_fence(std::memory_order_seq_cst);  // SYNC reserved: before every byte
            for (uint64_t i = 0; i < some;) {
                const uint64_t place = (from + i) % capacity_, run = some - i < capacity_ - place ? some - i : capacity_ - place;
                write(data_ + place * row_, columns, count, done + i, run);
                i += run;
            }
            done += some;
            control_->committed.store(from + some, std::memory_order_release);  // SYNC committed
        }
        segment_.header->lock.give();
        segment_.header->changed.wake();
        return kDone;
    }

    // Copies the rows with these numbers, row i of the result from numbers[i]. Returns how many of them were written over, or are not there; their
    // places in `numbers` are put into `stale`, and what was copied for them is undefined.
    uint64_t gather(const uint64_t *numbers, uint64_t count, const Part *columns, int width, uint64_t *stale) const {
        const uint64_t committed = this->committed();  // SYNC committed
        constexpr uint64_t kSoon = 8;
        for (uint64_t i = 0; i < count; ++i) {
            if (i + kSoon < count) {
                const char *soon = data_ + numbers[i + kSoon] % capacity_ * row_;
                for (uint64_t at = 0; at < row_; at += 64) __builtin_prefetch(soon + at);
            }
            const char *from = data_ + numbers[i] % capacity_ * row_;
            for (int c = 0; c < width; ++c) copy_piece(columns[c].memory + i * columns[c].bytes, from + columns[c].offset, columns[c].bytes);
        }
        std::atomic_thread_fence(std::memory_order_acquire);  // SYNC reserved: a reader that has read a byte of a new row also sees its reservation
        const uint64_t first = ECHO_IPC_MARKS ? this->first() : 0;
        uint64_t bad = 0;
        for (uint64_t i = 0; i < count; ++i)
            if (numbers[i] < first || numbers[i] >= committed) stale[bad++] = i;
        return bad;
    }

    // For a reader that was overtaken too often: adders wait until it gives the lock back.
    bool lock() {
        segment_.header->turnstile.ask();
        return take();
    }
    void unlock() { segment_.header->lock.give(); }

private:
    // Writes `rows` rows, from row `first` of the columns on, to places that follow one another.
    void write(char *to, const Part *columns, int count, uint64_t first, uint64_t rows) {
#if defined(__x86_64__)
        if (__builtin_cpu_supports("avx")) return write_with_avx(to, columns, count, first, rows);
#endif
        write_each(to, columns, count, first, rows);
    }
#if defined(__x86_64__)
    // Here the compiler moves 32 bytes at a time, which makes it a seventh faster.
    __attribute__((target("avx"))) void write_with_avx(char *to, const Part *columns, int count, uint64_t first, uint64_t rows) {
        write_each(to, columns, count, first, rows);
    }
#endif
    [[gnu::always_inline]] void write_each(char *to, const Part *columns, int count, uint64_t first, uint64_t rows) {
        // The processor's own prefetching is late for stores to short rows. Past the end it is harmless: it is no access.
        const uint64_t ahead = row_ < kAhead / 2 ? row_ : 0;
        for (uint64_t i = first; i < first + rows; ++i, to += row_) {
            for (uint64_t at = 0; at < ahead; at += 64) __builtin_prefetch(to + kAhead + at, 1);
            for (int c = 0; c < count; ++c) copy_piece(to + columns[c].offset, columns[c].memory + i * columns[c].bytes, columns[c].bytes);
        }
    }

    bool take() {
        return segment_.header->lock.take(kSlice, [this] { control_->broken.fetch_add(1, std::memory_order_relaxed); });
    }

    const Segment segment_;
    RowsControl *const control_;
    char *const data_;
    const uint64_t capacity_, row_;
};

}  // namespace echo_ipc
