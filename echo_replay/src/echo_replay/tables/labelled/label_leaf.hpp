// The additional leaf of samples that have labels: it holds what a worker in another process says about each sample, and comes after the
// sample's own leaves. See echo_core/wire/labels.py for the other end.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace echo::replay {

struct Incoming {
    static constexpr uint64_t kNone = UINT64_MAX;  // the bits of a priority that was not given (a NaN that no computation produces)

    uint64_t priority;  // the bits of a double
    uint64_t version;   // version of the policy; UINT64_MAX: the version published last

    // Returns the priority, or NaN if none was given.
    double value() const {
        double out;
        std::memcpy(&out, &priority, sizeof out);
        return priority == kNone ? std::numeric_limits<double>::quiet_NaN() : out;
    }
    bool good(bool refuses_zero) const {
        return priority == kNone || (value() >= 0 && std::isfinite(value()) && !(refuses_zero && value() == 0));
    }
};
static_assert(sizeof(Incoming) == 16);

struct FreeIncoming {
    void operator()(Incoming *labels) const { std::free(labels); }
};

}  // namespace echo::replay
