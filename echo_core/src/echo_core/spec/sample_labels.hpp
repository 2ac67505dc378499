// What goes with samples of one process into a replay table; a stream has none of it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace echo {

struct Labels {
    static constexpr uint64_t kNewest = UINT64_MAX;

    const double *priorities = nullptr;  // one for each sample, finite and not negative, or NULL: the sampler chooses
    uint64_t *keys = nullptr;            // room for one for each sample, or NULL
    uint64_t version = kNewest;          // of the policy that made them; kNewest: the one published last

    Labels from(size_t done) const { return {priorities ? priorities + done : nullptr, keys ? keys + done : nullptr, version}; }
};

}  // namespace echo
