// What every native sampler here has in common: the rows of a replay table as keys, memory, randomness, and the native door.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <string>
#include <vector>

#include "echo_sampler.h"

// Hot loops exist once for AVX2 and once for whatever else; the loader picks. The same operations in the same order in both, and no
// fused multiply-add (-ffp-contract=off), so a seed draws the same rows on every machine. Sanitizers cannot start with such functions.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ECHO_SAMPLERS_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define ECHO_SAMPLERS_WIDE
#endif

namespace echo_samplers {

using Row = uint32_t;

inline constexpr uint64_t kMaxRows = (uint64_t{1} << 32) - 3;  // two numbers are left for marks

// A zeroed array of fixed size. Pages are the kernel's until they are written, so a large table costs what it holds, not what it could.
template <class T>
class Array {
public:
    explicit Array(size_t size) : size_(size), bytes_(pages(size)) {
        if (size > (std::numeric_limits<size_t>::max() - 2 * kHuge) / sizeof(T)) throw std::bad_alloc();
        const size_t room = bytes_ < kHuge ? bytes_ : bytes_ + kHuge;
        void *memory = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) throw std::bad_alloc();
        char *begin = static_cast<char *>(memory);
        if (room > bytes_) {
            // From a huge page's border on: of an array of two huge pages that began anywhere else, only one would be one.
            const size_t skipped = (kHuge - reinterpret_cast<uintptr_t>(begin) % kHuge) % kHuge;
            if (skipped) munmap(begin, skipped);
            begin += skipped;
            if (skipped < kHuge) munmap(begin + bytes_, kHuge - skipped);
#ifdef MADV_HUGEPAGE
            madvise(begin, bytes_, MADV_HUGEPAGE);  // a random row misses the TLB at every level of a tree otherwise
#endif
        }
        data_ = reinterpret_cast<T *>(begin);
    }
    ~Array() { munmap(static_cast<void *>(data_), bytes_); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;

    T &operator[](size_t index) { return data_[index]; }
    const T &operator[](size_t index) const { return data_[index]; }
    T *data() { return data_; }
    const T *data() const { return data_; }
    size_t size() const { return size_; }
    void clear() { std::memset(static_cast<void *>(data_), 0, size_ * sizeof(T)); }

private:
    static constexpr size_t kPage = 4096;
    static constexpr size_t kHuge = 2u << 20;

    // Whole pages; whole huge ones where that costs at most an eighth more.
    static size_t pages(size_t size) {
        const size_t bytes = size * sizeof(T), huge = (bytes + kHuge - 1) / kHuge * kHuge;
        return bytes >= kHuge && huge - bytes <= bytes / 8 ? huge : (bytes + kPage - 1) / kPage * kPage + (size ? 0 : kPage);
    }

    size_t size_;
    size_t bytes_;
    T *data_;
};

// A whole number below `bound`, each equally likely (Lemire 2019, "Fast Random Integer Generation in an Interval").
inline uint32_t below(bitgen_t *random, uint32_t bound) {
    uint64_t product = uint64_t{random->next_uint32(random->state)} * bound;
    if (static_cast<uint32_t>(product) < bound) {
        const uint32_t threshold = -bound % bound;
        while (static_cast<uint32_t>(product) < threshold) product = uint64_t{random->next_uint32(random->state)} * bound;
    }
    return static_cast<uint32_t>(product >> 32);
}

// What a checkpoint holds; a sampler uses the members that `members()` names and leaves the others empty.
struct State {
    std::vector<Row> keys;           // in the order in which inserting them again gives the same sampler
    std::vector<double> priorities;  // of `keys`
    std::vector<double> weights;     // prioritized: of `keys`, what its priorities became
    std::vector<double> numbers;     // whatever else is not an option
    std::vector<Row> hot;            // hot_cold: the hot keys, in the order in which they became hot
    std::vector<double> entered;     // of `hot`: at which insert that was
};

// Base of the native samplers. Arguments are checked by whoever calls: the table at the native door, _native.pyx at Python's.
class RowSampler {
public:
    explicit RowSampler(uint64_t capacity) : capacity_(capacity) {}
    virtual ~RowSampler() = default;
    RowSampler(const RowSampler &) = delete;
    RowSampler &operator=(const RowSampler &) = delete;

    virtual void insert(const Row *keys, const double *priorities, size_t n) = 0;
    virtual void remove(const Row *keys, size_t n) = 0;
    virtual void update(const Row *, const double *, size_t) {}
    virtual size_t sample(bitgen_t *random, size_t n, Row *keys, double *probabilities) = 0;
    virtual size_t victims(size_t, Row *) const { return 0; }
    virtual size_t count() const = 0;
    virtual bool held(Row key) const = 0;
    virtual double priority(Row) const { return 1.0; }

    virtual std::string members() const = 0;  // of State, separated by spaces
    virtual void save(State &state) const = 0;
    // The problem with a state whose keys are known to be rows, once each, and whose priorities are good; empty when there is none.
    virtual std::string check(const State &) const { return {}; }
    virtual void load(const State &state) = 0;  // of a state that passed check()

    uint64_t capacity() const { return capacity_; }

    // The native door to this sampler; `evicts`: whether it has victims.
    echo_sampler door(bool evicts) {
        echo_sampler out{};
        out.version = ECHO_SAMPLER_VERSION;
        out.size = sizeof(echo_sampler);
        out.state = this;
        out.insert = [](void *self, const uint32_t *keys, const double *priorities, size_t n) { of(self)->insert(keys, priorities, n); };
        out.remove = [](void *self, const uint32_t *keys, size_t n) { of(self)->remove(keys, n); };
        out.update = [](void *self, const uint32_t *keys, const double *priorities, size_t n) { of(self)->update(keys, priorities, n); };
        out.sample = [](void *self, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities) {
            return n ? of(self)->sample(random, n, keys, probabilities) : 0;
        };
        out.count = [](const void *self) { return of(self)->count(); };
        out.priorities = [](const void *self, const uint32_t *keys, double *priorities, size_t n) {
            for (size_t i = 0; i < n; ++i) priorities[i] = of(self)->priority(keys[i]);
        };
        if (evicts) out.victims = [](const void *self, size_t n, uint32_t *keys) { return of(self)->victims(n, keys); };
        return out;
    }

protected:
    const uint64_t capacity_;

private:
    static RowSampler *of(void *self) { return static_cast<RowSampler *>(self); }
    static const RowSampler *of(const void *self) { return static_cast<const RowSampler *>(self); }
};

}  // namespace echo_samplers
