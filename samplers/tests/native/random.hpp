// A small generator behind numpy's interface, for programs without Python (Marsaglia's xorshift, starred).
#pragma once

#include <cstdint>

#include <numpy/random/bitgen.h>

struct Random {
    uint64_t word = 88172645463325252ull;
    bitgen_t door{this, next64, next32, next_double, next64};

    uint64_t operator()() { return next64(this); }
    uint64_t operator()(uint64_t below) { return next64(this) % below; }
    double real() { return next_double(this); }

private:
    static uint64_t next64(void *self) {
        uint64_t &word = static_cast<Random *>(self)->word;
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        return word * 0x2545F4914F6CDD1Dull;
    }
    static uint32_t next32(void *self) { return static_cast<uint32_t>(next64(self) >> 32); }
    static double next_double(void *self) { return static_cast<double>(next64(self) >> 11) * (1.0 / 9007199254740992.0); }
};
