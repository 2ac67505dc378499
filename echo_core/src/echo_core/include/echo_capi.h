/* The native door into Echo's store: the only stable native surface of echo-core.
 *
 * Obtain the table with PyCapsule_Import("echo_core.capi._table", 0), check `version`, and keep the pointer: it lives as long as the process.
 * A store comes as a PyCapsule named "echo_core.store" (sink.native); call retain() before using it from a thread of your own and release() when done.
 *
 * Threading: every function may be called from any thread, without the GIL, concurrently.
 * Errors:    functions never throw; the int ones answer with an echo_status.
 * Evolution: fields are only ever appended, and `size` grows with them; a change of meaning raises ECHO_CAPI_VERSION, which plugins compare at import.
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

typedef struct echo_store echo_store; /* opaque: its insides change freely */

typedef enum echo_status {
    ECHO_OK = 0,
    ECHO_FULL = 1,    /* no free slot at present */
    ECHO_CLOSED = 2,  /* the store takes no more samples, for good */
    ECHO_TIMEOUT = 3,
    ECHO_READY = 4    /* arm_space: there is space already, nothing was armed */
} echo_status;

/* A run of consecutive slots of one batch buffer. Plain data: a run may be split, and its parts committed or aborted apart,
 * as long as every slot of it is committed or aborted exactly once. */
typedef struct echo_run {
    uint32_t buffer;
    uint32_t slot;
    uint32_t count;
    uint32_t reserved;
} echo_run;

typedef enum echo_gauge {
    ECHO_GAUGE_QUEUED = 0 /* samples that arrived and wait for a slot, all connections together */
} echo_gauge;

typedef enum echo_histogram {
    ECHO_HIST_COPY = 0,         /* nanoseconds to copy one sample into its slot */
    ECHO_HIST_INGEST_ROUND = 1  /* nanoseconds a transport spends on one round of reading */
} echo_histogram;

typedef struct echo_capi {
    uint32_t version;
    uint32_t size;

    void (*retain)(echo_store *);
    void (*release)(echo_store *);

    uint32_t (*leaf_count)(const echo_store *);
    uint64_t (*leaf_bytes)(const echo_store *, uint32_t leaf); /* of one sample */
    uint64_t (*sample_bytes)(const echo_store *);              /* sum over leaves */
    uint32_t (*batch_size)(const echo_store *);

    /* Claim 1..wanted consecutive slots without waiting. ECHO_OK fills *out (out->count may be less than wanted). */
    int (*claim)(echo_store *, uint32_t wanted, echo_run *out);
    /* Address of `leaf` in the run's first slot; the next slots follow every leaf_bytes(). Valid until the run is committed or aborted. */
    void *(*leaf)(echo_store *, const echo_run *, uint32_t leaf);
    /* The run's samples are whole and may be read by the learner. */
    void (*commit)(echo_store *, const echo_run *);
    /* Give the slots back: the next writers fill them, and the batch they belong to waits only for that. */
    void (*abort)(echo_store *, const echo_run *);

    /* Sleep until there may be space (ECHO_OK), the store is closed, or timeout_ns has passed; negative waits for ever. */
    int (*wait_space)(echo_store *, int64_t timeout_ns);
    /* Ask for one write of 8 bytes (value 1) to `eventfd` when space appears or the store closes. ECHO_OK: armed. ECHO_READY: space is there now. One-shot. */
    int (*arm_space)(echo_store *, int eventfd);
    void (*disarm_space)(echo_store *, int eventfd);

    void (*gauge_add)(echo_store *, int gauge, int64_t delta);
    void (*queue_depth)(echo_store *, uint64_t depth); /* of one connection: keeps the maximum seen */
    void (*observe)(echo_store *, int histogram, uint64_t nanoseconds);
} echo_capi;

#ifdef __cplusplus
}
#endif
#endif
