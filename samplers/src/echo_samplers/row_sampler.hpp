// The common parts of all native samplers: rows of a replay table as keys, memory, random numbers, and the native interface.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "echo_pages.h"
#include "echo_sampler.h"

// Hot loops exist once for AVX2 and once for all other machines, and the loader selects one. Both do the same operations in the same order
// without fused multiply-add (-ffp-contract=off), so a seed draws the same rows on every machine. Sanitizers cannot start with such functions.
#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ECHO_SAMPLERS_WIDE __attribute__((target_clones("avx2", "default")))
#else
#define ECHO_SAMPLERS_WIDE
#endif

namespace echo_samplers {

using Row = uint32_t;

inline constexpr uint64_t kMaxRows = (uint64_t{1} << 32) - 3;  // two more numbers are reserved as marks

using echo::PageArray;

// A whole number below `bound`, drawn uniformly (Lemire 2019, "Fast Random Integer Generation in an Interval").
inline uint32_t below(bitgen_t *random, uint32_t bound) {
    uint64_t product = uint64_t{random->next_uint32(random->state)} * bound;
    if (static_cast<uint32_t>(product) < bound) {
        const uint32_t threshold = -bound % bound;
        while (static_cast<uint32_t>(product) < threshold) product = uint64_t{random->next_uint32(random->state)} * bound;
    }
    return static_cast<uint32_t>(product >> 32);
}

// The contents of a checkpoint. A sampler uses the members that `members()` names, and leaves the others empty.
struct State {
    std::vector<Row> keys;           // in an order such that inserting them again gives the same sampler.
    std::vector<double> priorities;  // the priorities of `keys`.
    std::vector<double> weights;     // prioritized: the weights of `keys`.
    std::vector<double> numbers;     // all further state that is not an option.
    std::vector<Row> hot;            // hot_cold: the hot keys, in the order in which they became hot.
    std::vector<double> entered;     // hot_cold: the number of the insert at which each key of `hot` became hot.
};

// The base of the native samplers. Callers check the arguments: the table at the native interface, _native.pyx at the Python interface.
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
    // The sum that the probabilities of a draw divide by; NaN if there is none.
    virtual double mass() const { return std::numeric_limits<double>::quiet_NaN(); }

    virtual void published(uint64_t) {}  // a version of the policy

    virtual std::string members() const = 0;  // the names of the members of State, separated by spaces
    virtual void save(State &state) const = 0;
    // The problem of a state, or "" if it is valid. The caller has checked that its keys are rows without repetition and its priorities valid.
    virtual std::string check(const State &) const { return {}; }
    virtual void load(const State &state) = 0;  // loads a state that passed check()

    uint64_t capacity() const { return capacity_; }

    // The native interface of this sampler; `evicts` says whether it has victims.
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
        out.published = [](void *self, uint64_t version) { of(self)->published(version); };
        out.mass = [](const void *self) { return of(self)->mass(); };
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
