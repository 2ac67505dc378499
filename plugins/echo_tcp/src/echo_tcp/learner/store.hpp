// The loops' interface to the learner's store: copies whole samples from memory into slots.
#pragma once

#include <echo_capi.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <vector>

#include "../frame.hpp"

namespace echo_tcp::learner {

inline std::int64_t clock_ns() noexcept {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return std::int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

// Whole samples in memory: `frames` frames of `per_frame` samples each. A frame begins `stride`
// bytes after the previous one; its payload begins after `header` bytes and is leaf-major.
struct Block {
    const char *base;
    std::size_t stride;
    std::uint32_t header;
    std::uint32_t per_frame;
    std::uint32_t frames;
    bool labelled;  // their labels are one more leaf

    std::uint64_t samples() const noexcept { return std::uint64_t(frames) * per_frame; }
};

// One loop's access to the store. Each loop has its own object; only the store behind it is shared.
class Store {
public:
    // `labelled`: the same store with one more leaf, for the labels of samples; null if it takes none.
    Store(const echo_capi *api, echo_store *store, echo_store *labelled = nullptr) : api_(api), store_(store), labelled_(labelled) {
        api_->retain(store_);
        if (labelled_) api_->retain(labelled_);
        const std::uint32_t leaves = api_->leaf_count(store_);
        std::uint64_t offset = 0;
        for (std::uint32_t leaf = 0; leaf < leaves; ++leaf) {
            sizes_.push_back(api_->leaf_bytes(store_, leaf));
            offsets_.push_back(offset);
            offset += sizes_.back();
        }
        sample_bytes_ = offset;
        sizes_.push_back(label_bytes);
        offsets_.push_back(offset);
        to_.resize(sizes_.size());
    }
    ~Store() {
        if (labelled_) api_->release(labelled_);
        api_->release(store_);
    }
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;

    bool takes_labels() const noexcept { return labelled_ != nullptr; }
    std::uint32_t leaves(bool labelled) const noexcept { return std::uint32_t(sizes_.size()) - !labelled; }
    std::uint64_t size(std::uint32_t leaf) const noexcept { return sizes_[leaf]; }
    std::uint64_t offset(std::uint32_t leaf) const noexcept { return offsets_[leaf]; }
    std::uint64_t sample_bytes() const noexcept { return sample_bytes_; }  // without labels
    std::uint64_t row_bytes(bool labelled) const noexcept { return sample_bytes_ + (labelled ? label_bytes : 0); }
    std::uint64_t batch_size() const noexcept { return api_->batch_size(store_); }
    bool closed() const noexcept { return closed_; }

    bool claim(std::uint32_t wanted, echo_run *run) noexcept {
        const int status = api_->claim(store_, wanted, run);
        if (status == ECHO_CLOSED) closed_ = true;
        return status == ECHO_OK;
    }
    char *leaf(const echo_run &run, std::uint32_t leaf) const noexcept {
        return static_cast<char *>(api_->leaf(leaf < sizes_.size() - 1 ? store_ : labelled_, &run, leaf));
    }
    void commit(const echo_run &run, bool labelled) noexcept { api_->commit(labelled ? labelled_ : store_, &run); }
    // Gives the last slot back first: the store hands out the slot that was given back last before others, and
    // the samples that will be put into these slots should keep their order.
    void abort(const echo_run &run) noexcept {
        for (std::uint32_t i = run.count; i-- != 0;) {
            const echo_run slot{run.buffer, run.slot + i, 1, 0};
            api_->abort(store_, &slot);
        }
    }

    // True if `eventfd` will be written once when there is space; false if there is space now.
    bool arm_space(int eventfd) noexcept { return api_->arm_space(store_, eventfd) == ECHO_OK; }
    void disarm_space(int eventfd) noexcept { api_->disarm_space(store_, eventfd); }

    void queued(std::int64_t delta) noexcept {
        if (delta != 0) api_->gauge_add(store_, ECHO_GAUGE_QUEUED, delta);
    }
    void queue_depth(std::uint64_t depth) noexcept { api_->queue_depth(store_, depth); }
    void copied(std::int64_t ns, std::uint64_t samples) noexcept {
        api_->observe(store_, ECHO_HIST_COPY, std::uint64_t(std::max<std::int64_t>(ns, 0)) / samples);
    }
    void round_took(std::int64_t ns) noexcept {
        api_->observe(store_, ECHO_HIST_INGEST_ROUND, std::uint64_t(std::max<std::int64_t>(ns, 0)));
    }

    // Copies samples [first, first + count) of `block` into slots and commits them. Returns how
    // many were inserted: fewer than `count` if the store is full or closed. `tally(n)` is called just before
    // n samples are committed: from then on the learner may see them, and they must have been counted.
    template <class Tally>
    std::uint64_t insert(const Block &block, std::uint64_t first, std::uint64_t count, Tally tally) noexcept {
        std::uint64_t done = 0;
        while (done < count) {
            echo_run run;
            if (!claim(std::uint32_t(std::min<std::uint64_t>(count - done, 1u << 30)), &run)) break;
            // Two reads of the clock cost as much as the copy of a small sample, so only one run in 64 is timed.
            const bool timed = sample_bytes_ >= 16384 || ++tick_ % 64 == 0;
            const std::int64_t began = timed ? clock_ns() : 0;
            scatter(block, first + done, run);
            if (timed) copied(clock_ns() - began, run.count);
            tally(run.count);
            commit(run, block.labelled);
            done += run.count;
        }
        return done;
    }

private:
    void scatter(const Block &block, std::uint64_t first, const echo_run &run) noexcept {
        const std::uint32_t leaves = this->leaves(block.labelled);
        for (std::uint32_t l = 0; l < leaves; ++l) to_[l] = leaf(run, l);
        if (block.per_frame == 1) {
            const char *from = block.base + first * block.stride + block.header;
            for (std::uint32_t l = 0; l < leaves; ++l)
                copy_strided(to_[l], from + offsets_[l], sizes_[l], block.stride, run.count);
            return;
        }
        for (std::uint32_t done = 0; done < run.count;) {
            const std::uint64_t frame = (first + done) / block.per_frame;
            const std::uint32_t skip = std::uint32_t((first + done) % block.per_frame);
            const std::uint32_t take = std::min(block.per_frame - skip, run.count - done);
            const char *from = block.base + frame * block.stride + block.header;
            for (std::uint32_t l = 0; l < leaves; ++l) {
                const std::uint64_t size = sizes_[l];
                std::memcpy(to_[l] + done * size,
                            from + block.per_frame * offsets_[l] + skip * size, take * size);
            }
            done += take;
        }
    }

    // A worker that sends one sample at a time mostly produces small leaves. Here the compiler knows the
    // size, so each copy is one or two moves instead of a call.
    template <std::size_t N>
    static void copy_fixed(char *to, const char *from, std::size_t stride, std::uint32_t n) noexcept {
        for (std::uint32_t i = 0; i < n; ++i) std::memcpy(to + i * N, from + i * stride, N);
    }
    static void copy_strided(char *to, const char *from, std::uint64_t size, std::size_t stride,
                             std::uint32_t n) noexcept {
        switch (size) {
            case 0: return;
            case 1: return copy_fixed<1>(to, from, stride, n);
            case 2: return copy_fixed<2>(to, from, stride, n);
            case 4: return copy_fixed<4>(to, from, stride, n);
            case 8: return copy_fixed<8>(to, from, stride, n);
            case 16: return copy_fixed<16>(to, from, stride, n);
            case 32: return copy_fixed<32>(to, from, stride, n);
            default:
                for (std::uint32_t i = 0; i < n; ++i)
                    std::memcpy(to + i * size, from + i * stride, size);
        }
    }

    const echo_capi *api_;
    echo_store *store_;
    echo_store *labelled_;
    std::vector<std::uint64_t> sizes_;    // size of each leaf in one sample, and then that of its labels
    std::vector<std::uint64_t> offsets_;  // offset of each leaf in a sample: the sum of the sizes before it
    std::vector<char *> to_;              // scratch of scatter()
    std::uint64_t sample_bytes_ = 0;
    std::uint32_t tick_ = 0;
    bool closed_ = false;
};

}  // namespace echo_tcp::learner
