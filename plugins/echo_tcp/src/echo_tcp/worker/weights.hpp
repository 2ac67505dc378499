// Receives weights: assembles chunks into one whole version, in memory that is not visible to others until then.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "../frame.hpp"

namespace echo_tcp::worker {

// Bytes that grow by moving page tables instead of copying. They start on a page, so the arrays in
// them have the alignment of their offsets.
class Pages {
public:
    Pages() = default;
    Pages(Pages&& other) noexcept { swap(other); }
    Pages& operator=(Pages&& other) noexcept {
        swap(other);
        return *this;
    }
    ~Pages() {
        if (data_) ::munmap(data_, room_);
    }

    const std::byte* data() const noexcept { return data_; }
    std::size_t size() const noexcept { return size_; }

    // False if memory cannot be had.
    bool append(const std::byte* from, std::size_t n) noexcept {
        if (n > room_ - size_ && !reserve(std::max(size_ + n, 2 * room_))) return false;
        std::memcpy(data_ + size_, from, n);
        size_ += n;
        return true;
    }

    bool reserve(std::size_t bytes) noexcept {
        bytes = (bytes + page - 1) / page * page;
        if (bytes <= room_) return true;
        void* moved = data_ ? ::mremap(data_, room_, bytes, MREMAP_MAYMOVE)
                            : ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (moved == MAP_FAILED) return false;
        data_ = static_cast<std::byte*>(moved);
        room_ = bytes;
        return true;
    }

private:
    static constexpr std::size_t page = 4096;

    void swap(Pages& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
        std::swap(room_, other.room_);
    }

    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::size_t room_ = 0;
};

struct WeightsBlob {
    std::uint64_t version = 0;
    std::string meta;  // JSON
    Pages payload;
};

// A version is u32 m, m bytes of meta, and then its payload. Chunks may end at any byte.
class WeightsAssembly {
public:
    void restart() {
        open_ = false;
        blob_ = {};
    }

    const char* begin_chunk(const FrameHeader& header) {
        if (header.flags & flag_first_chunk) {
            if (open_) return "it began weights before the version before them was whole";
            blob_ = {};
            blob_.version = header.seq;
            head_ = 0;
            meta_bytes_ = 0;
            open_ = true;
            return nullptr;
        }
        if (!open_ || header.seq != blob_.version) return "it sent weights without their beginning";
        return nullptr;
    }

    const char* add(const std::byte* data, std::size_t n) {
        while (n && head_ < sizeof meta_bytes_) {
            reinterpret_cast<std::byte*>(&meta_bytes_)[head_++] = *data++;
            --n;
        }
        if (head_ == sizeof meta_bytes_ && meta_bytes_ > max_meta_bytes) {
            return "it sent weights with an impossibly long description";
        }
        std::size_t part = std::min<std::size_t>(n, meta_bytes_ - blob_.meta.size());
        blob_.meta.append(reinterpret_cast<const char*>(data), part);
        if (part == n) return nullptr;
        // Versions mostly have the same size, so the size of the last one is mapped at once.
        if (!blob_.payload.size()) blob_.payload.reserve(expected_);
        if (!blob_.payload.append(data + part, n - part)) return "its weights take too much memory";
        return nullptr;
    }

    const char* finish(std::optional<WeightsBlob>& out) {
        if (head_ < sizeof meta_bytes_ || blob_.meta.size() < meta_bytes_) {
            return "it sent weights without a whole description";
        }
        expected_ = blob_.payload.size();
        out = std::move(blob_);
        restart();
        return nullptr;
    }

private:
    static constexpr std::uint32_t max_meta_bytes = 16u << 20;

    bool open_ = false;
    WeightsBlob blob_;
    std::size_t head_ = 0;  // bytes of meta_bytes_ that have come
    std::uint32_t meta_bytes_ = 0;
    std::size_t expected_ = 0;
};

}  // namespace echo_tcp::worker
