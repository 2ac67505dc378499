// Decides when an acknowledgement to one worker is due, which numbers it contains, and how far the worker may be ahead.
//
// It is due after samples were committed or came again, and at the beginning, because the worker waits for its first credit, which goes out with
// it. It is written when nothing more arrives at the moment, or when enough bytes are committed. One acknowledgement for several messages costs
// both ends much less than one for each message.
#pragma once

#include <algorithm>
#include <cstdint>

#include "message.hpp"

namespace echo_rdma {

class Acknowledgement {
  public:
    // `committed` samples of the session are in the store; the worker may be `credit_bytes` ahead of it.
    Acknowledgement(uint64_t committed, uint64_t credit_bytes, uint64_t sample_bytes)
        : sample_bytes_(sample_bytes), credit_(std::max<uint64_t>(2, credit_bytes / std::max<uint64_t>(1, sample_bytes))), limit_(committed + credit_) {}

    // An acknowledgement is due if `whether` is true; callers can pass a condition.
    void owe(bool whether = true) { due_ |= whether; }

    // True if it has to be written now, with `committed` samples in the store. `quiet`: nothing more arrives at the moment.
    bool due(uint64_t committed, bool quiet) const { return due_ && (quiet || (committed - told_) * sample_bytes_ >= ENOUGH_BYTES); }

    // True if samples are committed that were not acknowledged to the worker.
    bool behind(uint64_t committed) const { return committed > told_; }

    // Makes the acknowledgement.
    Head say(uint64_t committed, uint8_t flags) {
        due_ = false;
        told_ = committed;
        limit_ = committed + credit_;
        return Head{.kind = ACK, .flags = flags, .number = told_, .limit = limit_};
    }

    // The last sample that the worker may send.
    uint64_t limit() const { return limit_; }

  private:
    static constexpr uint64_t ENOUGH_BYTES = 256 << 10; // while more arrives, so many bytes are acknowledged together

    const uint64_t sample_bytes_, credit_;
    uint64_t told_ = 0, limit_;
    bool due_ = true; // for the first credit
};

} // namespace echo_rdma
