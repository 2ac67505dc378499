/* The native interface for samplers: how a compiled sampler serves a replay table without any call into Python.
 *
 * A sampler class whose `native()` returns a PyCapsule named ECHO_SAMPLER_NAME around an `echo_sampler` is called through that struct. The table
 * keeps the capsule, and so the memory, for as long as the table lives. The model is numpy's bitgen_t: functions and a state pointer.
 * A remover is a sampler too: the item that `sample` draws with n = 1 is removed (fifo: the oldest, min_heap: the lowest priority, uniform: any).
 *
 * Keys:      as in echo_core.store.sampler: a replay sampler's keys are the rows of its table, from 0 to capacity - 1.
 * Threading: the functions of one sampler are never called concurrently, and none needs the GIL.
 * Errors:    there are none. The table has checked its arguments: inserted keys are not held, all others are; no key occurs twice, except in
 *            `update`, where the last entry of a key counts; priorities are finite and not negative.
 * Evolution: fields are only ever appended, and `size` grows with them. A change of meaning raises ECHO_SAMPLER_VERSION.
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

    /* Adds n new keys in order of arrival. If `priorities` is NULL, the sampler chooses the priority of each new sample. */
    void (*insert)(void *state, const uint32_t *keys, const double *priorities, size_t n);
    void (*remove)(void *state, const uint32_t *keys, size_t n);
    void (*update)(void *state, const uint32_t *keys, const double *priorities, size_t n);
    /* Draws n keys, with the probability with which each was drawn; see Sampler.sample(). Returns n, or 0 if there is not enough to draw from;
     * then it has drawn nothing. That is so with fewer than n keys (without replacement), with no key (with replacement), or if no key has a
     * priority with which it can be drawn. */
    size_t (*sample)(void *state, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities);
    size_t (*count)(const void *state);
    /* Fills in the priority of each key as it was last given, in the precision that the sampler keeps; 1 where the sampler has no priorities. */
    void (*priorities)(const void *state, const uint32_t *keys, double *priorities, size_t n);
    /* Fills in the n keys to give up first when the table is full; see Sampler.victims(). Returns n, or 0 if fewer are held. The pointer is NULL
     * in a sampler that leaves this to a remover. */
    size_t (*victims)(const void *state, size_t n, uint32_t *keys);
    /* The sum that the probabilities of the next draw divide by; see Sampler.mass(). NaN, or a NULL pointer, says that there is no such sum. */
    double (*mass)(const void *state);
    /* A version of the policy was published; see Sampler.published(). A NULL pointer says that the sampler does not care. */
    void (*published)(void *state, uint64_t version);
} echo_sampler;

#ifdef __cplusplus
}
#endif
#endif
