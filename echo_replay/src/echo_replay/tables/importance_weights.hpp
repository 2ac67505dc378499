// Importance weights of a batch: (1 / (N p))^beta over the largest of them (Schaul et al. 2016, section 3.4).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

namespace echo::replay {

// `probabilities` and `weights` have `n` elements, at least one.
inline void importance_weights(const double *probabilities, uint64_t n, double beta, float *weights) {
    double least = probabilities[0], most = least;
    for (uint64_t i = 1; i < n; ++i) {
        least = std::min(least, probabilities[i]);
        most = std::max(most, probabilities[i]);
    }
    if (least == most || beta == 0) {
        std::fill_n(weights, n, 1.0f);
        return;
    }
    // The largest weight is that of the least probability, and N cancels out.
    for (uint64_t i = 0; i < n; ++i) {
        const float ratio = float(least / probabilities[i]);
        weights[i] = beta == 1 ? ratio : powf(ratio, float(beta));
    }
}

}  // namespace echo::replay
