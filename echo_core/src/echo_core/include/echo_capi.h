/* The native interface to Echo's store: the only stable native surface of echo-core.
 *
 * Obtain the table with PyCapsule_Import("echo_core.capi._table", 0), check `version`, and keep the pointer: it lives as long as the process.
 * A store comes as a PyCapsule named "echo_core.store" (sink.native). Call retain() before you use it from a thread of your own, and release()
 * when that thread is done.
 *
 * Threading: every function may be called from any thread, without the GIL, concurrently.
 * Errors:    functions never throw; those that return an int return an echo_status.
 * Evolution: fields are only ever appended, and `size` grows with them. A change of meaning raises ECHO_CAPI_VERSION, which plugins compare at
 *            import.
 */
#ifndef ECHO_CAPI_H
#define ECHO_CAPI_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ECHO_CAPI_VERSION 1
#define ECHO_CAPI_NAME "echo_core.capi._table"
#define ECHO_STORE_NAME "echo_core.store"

typedef struct echo_store echo_store; /* opaque: its members may change with any release */

typedef enum echo_status {
    ECHO_OK = 0,
    ECHO_FULL = 1,    /* no slot is free at present */
    ECHO_CLOSED = 2,  /* the store is closed and takes no more samples */
    ECHO_TIMEOUT = 3,
    ECHO_READY = 4    /* arm_space: there is space already, and nothing was armed */
} echo_status;

/* A run of consecutive slots of one batch buffer. It is plain data: a run may be split, and its parts may be committed or aborted separately,
 * as long as every slot of it is committed or aborted exactly once. */
typedef struct echo_run {
    uint32_t buffer;
    uint32_t slot;
    uint32_t count;
    uint32_t reserved;
} echo_run;

typedef enum echo_gauge {
    ECHO_GAUGE_QUEUED = 0 /* samples that arrived and wait for a slot, summed over all connections */
} echo_gauge;

typedef enum echo_histogram {
    ECHO_HIST_COPY = 0,         /* nanoseconds that copying one sample into its slot takes */
    ECHO_HIST_INGEST_ROUND = 1  /* nanoseconds a transport spends on one round of reading */
} echo_histogram;

typedef struct echo_capi {
    uint32_t version;
    uint32_t size;

    void (*retain)(echo_store *);
    void (*release)(echo_store *);

    uint32_t (*leaf_count)(const echo_store *);
    uint64_t (*leaf_bytes)(const echo_store *, uint32_t leaf); /* bytes of this leaf in one sample */
    uint64_t (*sample_bytes)(const echo_store *);              /* the sum over all leaves */
    uint32_t (*batch_size)(const echo_store *);

    /* Claims 1..wanted consecutive slots without waiting. ECHO_OK fills *out (out->count may be less than wanted). */
    int (*claim)(echo_store *, uint32_t wanted, echo_run *out);
    /* Returns the address of `leaf` in the run's first slot; each next slot follows leaf_bytes() later. The address is valid until the run is
     * committed or aborted. */
    void *(*leaf)(echo_store *, const echo_run *, uint32_t leaf);
    /* Says that the run's samples are complete and that the learner may read them. */
    void (*commit)(echo_store *, const echo_run *);
    /* Gives the slots back. The next writers fill them, and the batch that contains them waits for nothing else. An empty run (count 0) gives nothing
     * back, and only wakes those who wait for space. */
    void (*abort)(echo_store *, const echo_run *);

    /* Sleeps until there may be space (ECHO_OK), the store is closed, or timeout_ns has passed. A negative timeout waits for ever. */
    int (*wait_space)(echo_store *, int64_t timeout_ns);
    /* Asks for one write of 8 bytes (value 1) to `eventfd` when space appears or the store closes. ECHO_OK: the eventfd is armed, for one write.
     * ECHO_READY: there is space now, and nothing was armed. */
    int (*arm_space)(echo_store *, int eventfd);
    void (*disarm_space)(echo_store *, int eventfd);

    void (*gauge_add)(echo_store *, int gauge, int64_t delta);
    void (*queue_depth)(echo_store *, uint64_t depth); /* of one connection; the store keeps the maximum */
    void (*observe)(echo_store *, int histogram, uint64_t nanoseconds);

    /* Copies 1..n samples (n > 0) from memory of the caller without waiting: claim, copy and commit in one call. leaves[i] is the address of leaf i
     * in the first sample, and each next sample follows leaf_bytes() later. ECHO_OK fills *taken. Others may change the bytes meanwhile: then the
     * samples have other bytes, and nothing worse happens. */
    int (*put)(echo_store *, const void *const *leaves, uint32_t n, uint32_t *taken);
} echo_capi;

#ifdef __cplusplus
}
#endif
#endif
