/* The native door for samplers: how a compiled sampler serves a replay table without Python on the way.
 *
 * A sampler class whose `native()` returns a PyCapsule named ECHO_SAMPLER_NAME around an `echo_sampler` is called through it; the table
 * keeps the capsule, and so the memory, for as long as it lives. numpy's bitgen_t is the model: functions and a state pointer.
 * A remover is a sampler too: what `sample` of 1 says goes (fifo: the oldest, min_heap: the lowest priority, uniform: anyone).
 *
 * Keys:      as in echo_core.store.sampler: a replay sampler's keys are the rows of its table, from 0 to capacity - 1.
 * Threading: the functions of one sampler are never called concurrently, and none needs the GIL.
 * Errors:    none. The table has checked its arguments: inserted keys are not held, all others are; no key occurs twice, except in
 *            `update`, where the last entry of a key counts; priorities are finite and not negative.
 * Evolution: fields are only ever appended, and `size` grows with them; a change of meaning raises ECHO_SAMPLER_VERSION.
 */
#ifndef ECHO_SAMPLER_H
#define ECHO_SAMPLER_H

#include <stddef.h>
#include <stdint.h>

#include <numpy/random/bitgen.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ECHO_SAMPLER_VERSION 1
#define ECHO_SAMPLER_NAME "echo_core.sampler"

typedef struct echo_sampler {
    uint32_t version;
    uint32_t size;
    void *state;

    /* n new keys in order of arrival; priorities may be NULL: the sampler chooses what a new sample gets. */
    void (*insert)(void *state, const uint32_t *keys, const double *priorities, size_t n);
    void (*remove)(void *state, const uint32_t *keys, size_t n);
    void (*update)(void *state, const uint32_t *keys, const double *priorities, size_t n);
    /* Draw n keys and with which probability each was drawn; as Sampler.sample(). Returns n, or 0, and has drawn nothing, when there is
     * not enough to draw from: fewer than n without replacement, none with it, or none whose priority lets it be drawn. */
    size_t (*sample)(void *state, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities);
    size_t (*count)(const void *state);
    /* The priority of each key as last given, in the precision the sampler keeps; 1 where it has none. */
    void (*priorities)(const void *state, const uint32_t *keys, double *priorities, size_t n);
    /* The n keys to give up first when the table is full, as Sampler.victims(); returns n, or 0 when fewer are held. NULL in a sampler that
     * leaves this to a remover. */
    size_t (*victims)(const void *state, size_t n, uint32_t *keys);
} echo_sampler;

#ifdef __cplusplus
}
#endif
#endif
