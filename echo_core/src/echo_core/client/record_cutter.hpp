// Cuts records into chunks: the worker's end of spec/record_format.hpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "spec/record_format.hpp"

namespace echo {

inline uint64_t chunks_of(uint64_t record_bytes) noexcept { return (record_bytes + CHUNK_PAYLOAD - 1) / CHUNK_PAYLOAD; }

// Writes records one after another into `chunks`, memory of whole chunks that is large enough.
class RecordCutter {
public:
    // `stream` is that of the first chunk's head; only its lowest 16 bits count on from chunk to chunk.
    RecordCutter(uint8_t* chunks, uint64_t stream) noexcept : next_(chunks), stream_(stream) {}

    // `bytes[i]` are read at `leaves[i]`.
    void cut(const RecordHeader& header, const void* const* leaves, const uint64_t* bytes, size_t count) noexcept {
        flags_ = RECORD_BEGINS;
        open_chunk();
        put(&header, sizeof header);
        for (size_t i = 0; i < count; ++i) put(leaves[i], bytes[i]);
        std::memset(at_, 0, room());  // else old memory of this process would travel
        close_chunk(RECORD_ENDS);
    }

    uint64_t stream() const noexcept { return stream_; }

private:
    size_t room() const noexcept { return static_cast<size_t>(next_ - at_); }

    void open_chunk() noexcept {
        head_ = next_;
        at_ = head_ + sizeof(ChunkHead);
        next_ += CHUNK_BYTES;
    }

    void close_chunk(uint32_t end) noexcept {
        const ChunkHead head{static_cast<uint32_t>(CHUNK_PAYLOAD - room()), flags_ | end, stream_};
        std::memcpy(head_, &head, sizeof head);
        stream_ = (stream_ & ~uint64_t(0xffff)) | ((stream_ + 1) & 0xffff);
        flags_ = 0;
    }

    // A chunk that is full is closed only when more comes: the last one of a record needs its mark.
    void put(const void* data, uint64_t bytes) noexcept {
        auto from = static_cast<const uint8_t*>(data);
        while (bytes > 0) {
            if (room() == 0) {
                close_chunk(0);
                open_chunk();
            }
            const size_t some = std::min<uint64_t>(bytes, room());
            std::memcpy(at_, from, some);
            at_ += some;
            from += some;
            bytes -= some;
        }
    }

    uint8_t* next_;  // the chunk after the open one
    uint8_t* head_ = nullptr;
    uint8_t* at_ = nullptr;
    uint64_t stream_;
    uint32_t flags_ = 0;
};

}  // namespace echo
