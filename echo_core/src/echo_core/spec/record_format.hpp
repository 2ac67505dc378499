// How a sample of varying length travels: as one record, cut into chunks of one size.
//
//   record = RecordHeader, then the bytes of each leaf in the spec's order without padding (a ragged leaf has lengths[axis] rows)
//   chunk  = ChunkHead, then a part of the record; the tail of the last chunk is zero
//
// The numbers below are also in spec/ragged.py. All numbers have the byte order of the machine, as
// the leaves have.
#pragma once

#include <cstddef>
#include <cstdint>

namespace echo {

constexpr uint32_t MOST_AXES = 4;
constexpr size_t CHUNK_BYTES = 1024;
constexpr uint64_t UNLABELLED = ~uint64_t(0);  // as a priority: the sampler chooses; as a policy version: the newest

constexpr uint32_t RECORD_BEGINS = 1;
constexpr uint32_t RECORD_ENDS = 2;

struct ChunkHead {
    uint32_t used;    // payload bytes of this chunk
    uint32_t flags;   // RECORD_BEGINS, RECORD_ENDS
    uint64_t stream;  // (the number of the client, 48 bits) << 16 | the number of this chunk in the client's stream to this table, modulo 2^16
};

struct RecordHeader {
    uint32_t lengths[MOST_AXES];  // rows by axis, in order of the axes; 0 for an axis that does not exist
    uint64_t priority;            // the bits of a double, or UNLABELLED
    uint64_t version;             // of the policy, or UNLABELLED
};

static_assert(sizeof(ChunkHead) == 16 && sizeof(RecordHeader) == 32);

constexpr size_t CHUNK_PAYLOAD = CHUNK_BYTES - sizeof(ChunkHead);

}  // namespace echo
