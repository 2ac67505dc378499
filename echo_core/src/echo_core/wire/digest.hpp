// A 64-bit digest of bytes: fast, well mixed, the same on every machine. It is not cryptographic: it
// detects damaged or mixed-up weights, but not weights that an adversary changed.
//
// Four lanes each take 16 bytes of every 64-byte block and fold a 64x64 -> 128-bit product. The four
// multiplications of a block run in parallel, and each lane depends on one multiplication per block. The
// last block is padded with zeros; the length is mixed in at the end to distinguish different paddings.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace echo {

// The fractional parts of the square roots of the first eight primes, made odd.
constexpr uint64_t DIGEST_KEY[8] = {
    0x6a09e667f3bcc909u, 0xbb67ae8584caa73bu, 0x3c6ef372fe94f82bu, 0xa54ff53a5f1d36f1u,
    0x510e527fade682d1u, 0x9b05688c2b3e6c1fu, 0x1f83d9abfb41bd6bu, 0x5be0cd19137e2179u,
};

inline uint64_t digest_word(const unsigned char* p) {
    uint64_t word;
    std::memcpy(&word, p, 8);
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

inline uint64_t digest_rotate(uint64_t x, int bits) { return (x << bits) | (x >> (64 - bits)); }

inline uint64_t digest_fold(uint64_t a, uint64_t b) {
    const unsigned __int128 product = static_cast<unsigned __int128>(a) * b;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
}

// One lane takes two words. A product loses one factor if the other is zero. The added sum keeps both,
// so that no data can erase the lane's earlier state.
inline uint64_t digest_step(uint64_t lane, uint64_t first, uint64_t second, uint64_t key) {
    const uint64_t mixed = lane ^ first;
    return digest_fold(mixed, second ^ key) + (digest_rotate(mixed, 29) ^ second);
}

inline void digest_block(uint64_t lane[4], const unsigned char* p) {
    // The lanes are written out because gcc keeps them in registers only if no loop indexes them.
    lane[0] = digest_step(lane[0], digest_word(p), digest_word(p + 8), DIGEST_KEY[0]);
    lane[1] = digest_step(lane[1], digest_word(p + 16), digest_word(p + 24), DIGEST_KEY[1]);
    lane[2] = digest_step(lane[2], digest_word(p + 32), digest_word(p + 40), DIGEST_KEY[2]);
    lane[3] = digest_step(lane[3], digest_word(p + 48), digest_word(p + 56), DIGEST_KEY[3]);
}

// The digest of bytes that are added in pieces. The size of every piece but the last is a multiple of 64 bytes.
class Digester {
public:
    explicit Digester(uint64_t seed) : seed_(seed) {
        for (int i = 0; i < 4; ++i) lane_[i] = seed ^ DIGEST_KEY[4 + i];
    }

    void update(const void* data, size_t length) {
        const unsigned char* p = static_cast<const unsigned char*>(data);
        uint64_t lane[4] = {lane_[0], lane_[1], lane_[2], lane_[3]};
        size_t left = length;
        for (; left >= 64; left -= 64, p += 64) digest_block(lane, p);
        if (left != 0) {
            unsigned char last[64] = {0};
            std::memcpy(last, p, left);
            digest_block(lane, last);
        }
        for (int i = 0; i < 4; ++i) lane_[i] = lane[i];
        length_ += length;
    }

    // Copies, and digests the bytes of the copy, so that concurrent writes to `from` cannot make the two differ.
    void copy(void* to, const void* from, size_t length) {
        char* target = static_cast<char*>(to);
        const char* source = static_cast<const char*>(from);
        const size_t streamed = stream(target, source, length);
        target += streamed, source += streamed, length -= streamed;
        while (length != 0) {
            const size_t piece = length < kPiece ? length : kPiece;
            std::memcpy(target, source, piece);
            update(target, piece);
            target += piece, source += piece, length -= piece;
        }
    }

    uint64_t value() const {
        uint64_t sum = seed_ + length_ * DIGEST_KEY[0];
        for (int i = 0; i < 4; ++i) sum = digest_fold(sum ^ lane_[i], DIGEST_KEY[4 + i]) + digest_rotate(lane_[i], 23);
        sum = (sum ^ (sum >> 32)) * DIGEST_KEY[1];
        sum = (sum ^ (sum >> 29)) * DIGEST_KEY[2];
        return sum ^ (sum >> 32);
    }

private:
    static constexpr size_t kPiece = 16384, kLarge = 1 << 20;  // multiples of 64
    static constexpr size_t kSoon = 512, kAhead = 4096;

#if defined(__SSE2__)
    static uint64_t stream_step(uint64_t lane, char* to, const char* from, uint64_t key) {
        uint64_t first, second;
        std::memcpy(&first, from, 8);
        std::memcpy(&second, from + 8, 8);
        asm volatile("" : "+r"(first), "+r"(second));  // read only once, so that the stored bytes are the digested bytes
        _mm_stream_si64(reinterpret_cast<long long*>(to), static_cast<long long>(first));
        _mm_stream_si64(reinterpret_cast<long long*>(to + 8), static_cast<long long>(second));
        return digest_step(lane, first, second, key);
    }
#endif

    // Copies the whole cache lines of data that is too large for the caches anyway, and bypasses the caches: reading the old contents of
    // the target would make the copy 1.5 times as expensive. Returns how many bytes it copied.
    size_t stream(char* to, const char* from, size_t length) {
#if defined(__SSE2__)
        if (length < kLarge || reinterpret_cast<uintptr_t>(to) % 64 != 0) return 0;
        const size_t whole = length / 64 * 64;
        uint64_t lane[4] = {lane_[0], lane_[1], lane_[2], lane_[3]};
        for (size_t i = 0; i < whole; i += 64) {
            // The processor's own prefetching stops at every page. This prefetch saves a tenth of the time, and a third if another core wrote
            // the source and bypassed its caches, so that it comes from main memory. A prefetch past the end accesses nothing.
            _mm_prefetch(from + i + kAhead, _MM_HINT_T1);
            _mm_prefetch(from + i + kSoon, _MM_HINT_T0);
            lane[0] = stream_step(lane[0], to + i, from + i, DIGEST_KEY[0]);
            lane[1] = stream_step(lane[1], to + i + 16, from + i + 16, DIGEST_KEY[1]);
            lane[2] = stream_step(lane[2], to + i + 32, from + i + 32, DIGEST_KEY[2]);
            lane[3] = stream_step(lane[3], to + i + 48, from + i + 48, DIGEST_KEY[3]);
        }
        _mm_sfence();
        for (int i = 0; i < 4; ++i) lane_[i] = lane[i];
        length_ += whole;
        return whole;
#else
        (void)to, (void)from, (void)length;
        return 0;
#endif
    }

    uint64_t seed_, length_ = 0, lane_[4];
};

inline uint64_t digest(const void* data, size_t length, uint64_t seed) {
    Digester digester(seed);
    digester.update(data, length);
    return digester.value();
}

}  // namespace echo
