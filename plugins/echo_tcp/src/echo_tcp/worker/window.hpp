// The samples a worker keeps until the learner has acknowledged them.
//
//      acked            sent             appended
//   -----|----------------|-----------------|------->   sample numbers of the session, from 1
//        |  on their way  |  not yet sent   |
//
// acked <= sent <= appended. Samples lie in blocks of `capacity` rows, and a frame is any stretch of
// rows that the writer takes. So the limits of a frame are decided when it is sent, and a resume point
// inside an earlier frame needs no special case: `sent` simply goes back to it.
//
// Why this is not the channel's window: docs/design/decisions/0016-three-windows.md.
//
// The window takes no lock: the engine holds its mutex around every call. Only the bytes of rows are
// touched without it, by one writer (rows up to `sent`) and one appender (rows past `appended`).
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <new>
#include <vector>

#include "layout.hpp"

namespace echo_tcp::worker {

class Window {
public:
    struct Stretch {  // consecutive rows of one block
        std::byte* block;
        std::uint32_t row;
        std::uint32_t count;
        std::uint64_t first;  // sample number of `row`
        std::byte* labels;    // of row 0 of the block; null if no sample of the block has labels
        bool to_end;          // its last row is the block's last, so it cannot grow
    };

    Window(const Layout& layout, std::uint64_t max_bytes, std::uint64_t max_samples)
        : layout_(layout),
          max_samples_(std::max<std::uint64_t>(max_samples, 1)),
          max_blocks_(std::max<std::uint64_t>(
              max_bytes / std::max<std::uint64_t>(layout.block_bytes(), 1), crowded_blocks)) {}
    Window(const Window&) = delete;
    Window& operator=(const Window&) = delete;
    ~Window() {
        for (Block& block : live_) std::free(block.data);
        for (std::byte* data : spare_) std::free(data);
    }

    std::uint64_t appended() const noexcept { return appended_; }
    std::uint64_t sent() const noexcept { return sent_; }
    std::uint64_t acked() const noexcept { return acked_; }
    std::uint64_t reached() const noexcept { return reached_; }  // highest `sent` there ever was
    std::uint64_t unsent() const noexcept { return appended_ - sent_; }
    std::uint64_t unacked() const noexcept { return appended_ - acked_; }

    // True if n more samples may be appended now. An empty window takes a batch of any size.
    bool room(std::uint64_t n) const noexcept {
        if (unacked() == 0) return true;
        if (n > max_samples_ || unacked() > max_samples_ - n) return false;
        std::uint64_t free_rows = live_.empty() ? 0 : layout_.capacity() - live_.back().rows;
        // With the smaller limit, a batch larger than a block would find room only after everything before it is acknowledged.
        const std::uint64_t most = n <= layout_.capacity() ? most_blocks_ : max_blocks_;
        if (live_.size() < most) free_rows += (most - live_.size()) * layout_.capacity();
        return n <= free_rows;
    }

    // Limits the window while several workers send. They share one machine's caches, and their unacknowledged samples
    // together would not fit there. A single worker needs a larger window, for moments in which the learner is late. Among
    // others a small window costs nothing, because the learner then reads from the others.
    void crowd(std::uint32_t workers) noexcept { most_blocks_ = workers >= a_crowd ? crowded_blocks : max_blocks_; }

    // Gets the memory for n more samples. If it throws std::bad_alloc, nothing has changed.
    void reserve(std::uint64_t n) {
        std::uint64_t rows = live_.empty() ? 0 : layout_.capacity() - live_.back().rows;
        while (rows + spare_.size() * layout_.capacity() < n) spare_.push_back(new_block());
    }

    // The free rows at the end (at least one), into which samples are copied. Throws std::bad_alloc if
    // memory is short and they were not reserved.
    Stretch free_rows() {
        if (live_.empty() || live_.back().rows == layout_.capacity()) open_block();
        Block& tail = live_.back();
        return {tail.data, tail.rows, layout_.capacity() - tail.rows, appended_ + 1, nullptr, true};
    }

    // The first n free rows hold samples now, with these labels; null: they have none. The labels of a block are sent if one of its samples has some.
    void append(std::uint32_t n, const void* labels = nullptr) noexcept {
        Block& tail = live_.back();
        std::byte* rows = labels_of(tail);
        if (labels && !tail.labelled) std::memset(rows, 0xff, tail.rows * label_bytes);
        tail.labelled = tail.labelled || labels;
        rows += tail.rows * label_bytes;
        if (labels) {
            std::memcpy(rows, labels, n * label_bytes);
        } else if (tail.labelled) {
            std::memset(rows, 0xff, n * label_bytes);
        }
        tail.rows += n;
        appended_ += n;
    }

    // The samples of the next frame; count is 0 when everything has been sent.
    Stretch next() const noexcept {
        if (sent_ == appended_) return {};
        const Block& block = live_[cursor_];
        auto row = static_cast<std::uint32_t>(sent_ + 1 - block.first);
        return {block.data, row, block.rows - row, sent_ + 1, block.labelled ? labels_of(block) : nullptr, block.rows == layout_.capacity()};
    }

    // The samples from number `first` on that lie in one block; count is 0 if there are none. For a window that no thread uses any more.
    Stretch rows_from(std::uint64_t first) const noexcept {
        for (const Block& block : live_) {
            if (first >= block.first + block.rows) continue;
            auto row = static_cast<std::uint32_t>(first - block.first);
            return {block.data, row, block.rows - row, first, block.labelled ? labels_of(block) : nullptr, true};
        }
        return {};
    }

    // True if the stretch of `next()` reaches the end of its block.
    bool full() const noexcept {
        return cursor_ < live_.size() && live_[cursor_].rows == layout_.capacity();
    }

    // The next n samples are being sent.
    void advance(std::uint32_t n) noexcept {
        sent_ += n;
        reached_ = std::max(reached_, sent_);
        place_cursor();
    }

    // All samples up to `number` are acknowledged. `pinned` is the block that a writer still reads from;
    // `appending` says that a thread copies into the free rows. True if space became free.
    bool acknowledge(std::uint64_t number, const std::byte* pinned, bool appending) {
        acked_ = number;
        return reap(pinned, appending);
    }

    // Frees blocks all of whose samples are acknowledged.
    bool reap(const std::byte* pinned, bool appending) {
        bool freed = false;
        while (!live_.empty()) {
            Block& head = live_.front();
            if (head.first + head.rows > acked_ + 1 || head.data == pinned) break;
            if (head.rows < layout_.capacity()) {
                // The block is still open. All of it is acknowledged, so its rows are used again from
                // the start: an idle link then keeps writing to the same few cache lines.
                if (!appending) {
                    head.rows = 0;
                    head.labelled = false;
                    head.first = appended_ + 1;
                }
                break;
            }
            release(head.data);
            live_.pop_front();
            if (cursor_) --cursor_;
            freed = true;
        }
        return freed;
    }

    // The link is new and the learner has all samples up to `number`: the samples after it are sent again.
    // Requires acked() <= number <= reached() and no writer.
    void resume(std::uint64_t number, bool appending) {
        sent_ = number;
        acknowledge(number, nullptr, appending);
        cursor_ = 0;
        place_cursor();
    }

    std::uint64_t bytes_used() const noexcept { return live_.size() * layout_.block_bytes(); }

private:
    struct Block {
        std::byte* data;
        std::uint64_t first;  // sample number of row 0
        std::uint32_t rows;   // rows that hold samples; less than capacity only in the last block
        bool labelled = false;  // whether one of them has labels
    };

    // Labels lie behind the rows. Most blocks have none, and memory that is never written takes no room.
    std::uint64_t labels_at() const noexcept { return (layout_.block_bytes() + 63) / 64 * 64; }
    std::byte* labels_of(const Block& block) const noexcept { return block.data + labels_at(); }

    std::byte* new_block() const {
        std::uint64_t bytes = labels_at() + layout_.capacity() * label_bytes;
        void* data = std::aligned_alloc(64, (bytes + 63) / 64 * 64);
        if (!data) throw std::bad_alloc();
        return static_cast<std::byte*>(data);
    }

    void open_block() {
        if (spare_.empty()) spare_.push_back(new_block());
        live_.push_back({spare_.back(), appended_ + 1, 0});
        spare_.pop_back();
    }

    // The block that was freed last is taken first, because its bytes are still in the cache.
    void release(std::byte* data) {
        if (live_.size() + spare_.size() > max_blocks_) {
            std::free(data);
        } else {
            spare_.push_back(data);
        }
    }

    // cursor_ is the block that holds sample sent_ + 1, or that will hold it.
    void place_cursor() noexcept {
        while (cursor_ < live_.size() &&
               live_[cursor_].first + layout_.capacity() <= sent_ + 1) {
            ++cursor_;
        }
    }

    static constexpr std::uint32_t a_crowd = 3;  // workers
    // One block is being filled, one is being sent, and one is in flight.
    static constexpr std::uint64_t crowded_blocks = 3;

    const Layout& layout_;
    const std::uint64_t max_samples_;
    const std::uint64_t max_blocks_;
    std::uint64_t most_blocks_ = max_blocks_;
    std::uint64_t appended_ = 0, sent_ = 0, acked_ = 0, reached_ = 0;
    std::deque<Block> live_;  // oldest first, numbered without gaps
    std::size_t cursor_ = 0;
    std::vector<std::byte*> spare_;
};

}  // namespace echo_tcp::worker
