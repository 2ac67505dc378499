/* The native door for samplers: how a compiled sampler serves a replay table without Python on the way.
 *
 * A sampler class whose `native()` returns a PyCapsule named ECHO_SAMPLER_NAME around an `echo_sampler` is called through it; the table
 * keeps the capsule, and so the memory, for as long as it lives. numpy's bitgen_t is the model: functions and a state pointer.
 *
 * Keys:      as in echo_core.sampler: a replay sampler's keys are the rows of its table, from 0 to capacity - 1.
 * Threading: the functions of one sampler are never called concurrently, and never with the GIL needed.
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
    /* Draw n keys and with which probability each was drawn; as Sampler.sample(). Returns n, or 0 when there are not enough. */
    size_t (*sample)(void *state, bitgen_t *random, size_t n, uint32_t *keys, double *probabilities);
    size_t (*count)(const void *state);
    /* The priority of each key as last given (1 where the sampler has none). */
    void (*priorities)(const void *state, const uint32_t *keys, double *priorities, size_t n);
} echo_sampler;

#ifdef __cplusplus
}
#endif
#endif
