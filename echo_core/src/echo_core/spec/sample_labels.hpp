// The labels of samples that this process inserts into a replay table. Samples of a stream have none.
#pragma once

#include <cstddef>
#include <cstdint>

namespace echo {

struct Labels {
    static constexpr uint64_t kNewest = UINT64_MAX;

    const double *priorities = nullptr;  // one for each sample, finite and not negative, or NULL: the sampler chooses
    uint64_t *keys = nullptr;            // room for the key of each sample, or NULL
    uint64_t version = kNewest;          // version of the policy that made the samples; kNewest: the one published last

    Labels from(size_t done) const { return {priorities ? priorities + done : nullptr, keys ? keys + done : nullptr, version}; }
};

}  // namespace echo
