// When an acknowledgement becomes due to one worker: what it says, and how far the worker may be ahead.
//
// It is due once something was committed, or came again, or when the worker waits for a first word: then the first credit goes out with
// it. It is written when nothing more arrives just now, or when enough is committed. One acknowledgement for a stretch of messages costs
// both ends a fraction of one for each.
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

    // The worker has to be told; `whether` so that conditions can be passed on.
    void owe(bool whether = true) { due_ |= whether; }

    // To be written now, with `committed` samples in the store; `quiet`: nothing more arrives just now.
    bool due(uint64_t committed, bool quiet) const { return due_ && (quiet || (committed - told_) * sample_bytes_ >= ENOUGH_BYTES); }

    // Something is committed that the worker was not told of.
    bool behind(uint64_t committed) const { return committed > told_; }

    // What to write.
    Head say(uint64_t committed, uint8_t flags) {
        due_ = false;
        told_ = committed;
        limit_ = committed + credit_;
        return Head{.kind = ACK, .flags = flags, .number = told_, .limit = limit_};
    }

    // The last sample that the worker may send.
    uint64_t limit() const { return limit_; }

  private:
    static constexpr uint64_t ENOUGH_BYTES = 256 << 10; // while more arrives, so many are acknowledged together

    const uint64_t sample_bytes_, credit_;
    uint64_t told_ = 0, limit_;
    bool due_ = true; // the first credit
};

} // namespace echo_rdma
