// Computes powers, four at a time. It uses only operations that IEEE 754 defines, always in the same order, so that a weight is the same on
// every machine; no mathematical library promises that for its pow(). The error is below 1e-9 and disappears in the rounding to a float.
#pragma once

#include "simd.hpp"

namespace echo_samplers::wide {

// x ** y of positive normal doubles; it is correct if the result is also a positive normal double.
ECHO_SAMPLERS_INLINE Lanes power(const Lanes &x, double y) {
    typedef uint64_t Words __attribute__((vector_size(32)));
    constexpr uint64_t kOne = uint64_t{1023} << 52, kMantissa = (uint64_t{1} << 52) - 1, kWhole = uint64_t{1075} << 52;
    // x = m * 2**e, with m from sqrt(1/2) to sqrt(2), and log m = 2 atanh((m - 1) / (m + 1)). Putting a number below 2**52 into the
    // mantissa of 2**52 converts a whole number into a double without a special instruction.
    const Words bits = (Words)x;
    Lanes m = (Lanes)((bits & kMantissa) | kOne);
    Lanes e = (Lanes)((bits >> 52) | kWhole) - (4503599627370496.0 + 1023.0);
    const auto large = m > 1.4142135623730951;
    m = large ? m * 0.5 : m;
    e = large ? e + 1.0 : e;
    const Lanes s = (m - 1.0) / (m + 1.0), q = s * s;
    const Lanes series = 1.0 + q * (1.0 / 3 + q * (1.0 / 5 + q * (1.0 / 7 + q * (1.0 / 9 + q * (1.0 / 11 + q * (1.0 / 13))))));
    const Lanes z = (e + s * series * 2.8853900817779268) * y;  // 2 / ln 2
    // 2**z = 2**k * exp(f), with whole k: a sum as large as kRound has no bits for a fraction, and its last bits hold k.
    constexpr double kRound = 6755399441055744.0;
    const Lanes rounded = z + kRound, f = (z - (rounded - kRound)) * 0.69314718055994531;
    const Lanes small = f * (1.0 / 120 + f * (1.0 / 720 + f * (1.0 / 5040 + f * (1.0 / 40320))));
    const Lanes exponential = 1.0 + f * (1.0 + f * (1.0 / 2 + f * (1.0 / 6 + f * (1.0 / 24 + small))));
    return (Lanes)((Words)exponential + ((Words)rounded << 52));
}

}  // namespace echo_samplers::wide
