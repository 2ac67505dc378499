// A vector of four doubles on every machine. Without AVX2, GCC makes two pairs of it; the results are the same.
#pragma once

#include <cstdint>

namespace echo_samplers::wide {

typedef double Lanes __attribute__((vector_size(32)));
typedef int64_t Masks __attribute__((vector_size(32)));
typedef float Floats __attribute__((vector_size(16)));

#define ECHO_SAMPLERS_INLINE __attribute__((always_inline)) inline

// Loads or stores a whole vector at once. If it were copied in other pieces, a load would have to wait for the earlier stores.
ECHO_SAMPLERS_INLINE Lanes read(const double *from) {
    typedef double Unaligned __attribute__((vector_size(32), aligned(8), may_alias));
    return *reinterpret_cast<const Unaligned *>(from);
}
ECHO_SAMPLERS_INLINE Lanes read(const float *from) {
    typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
    return __builtin_convertvector(*reinterpret_cast<const Unaligned *>(from), Lanes);
}

ECHO_SAMPLERS_INLINE void write(double *to, const Lanes &lanes) {
    typedef double Unaligned __attribute__((vector_size(32), aligned(8), may_alias));
    *reinterpret_cast<Unaligned *>(to) = lanes;
}
ECHO_SAMPLERS_INLINE void write(float *to, const Floats &floats) {
    typedef float Unaligned __attribute__((vector_size(16), aligned(4), may_alias));
    *reinterpret_cast<Unaligned *>(to) = floats;
}

}  // namespace echo_samplers::wide
