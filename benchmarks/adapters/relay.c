/* What bare processes reach that copy each sample twice, as a transport has to that keeps it until it is acknowledged: see relay.py.
 *
 *   relay WORKERS BYTES POOL AHEAD SLOTS HOW SECONDS
 *       WORKERS processes copy pieces of BYTES, POOL different ones each, into AHEAD pieces of memory of their own; one more copies them from there into
 *       SLOTS pieces. HOW: memcpy, all of it in shared memory; or vm_readv, which reads the workers' memory by the kernel. Prints bytes per second.
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct window {
    _Alignas(64) _Atomic uint64_t filled; /* pieces, by the worker */
    _Alignas(64) _Atomic uint64_t taken;  /* by the reader */
    char *pieces;
};

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static char *memory(size_t size) {
    char *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (at == MAP_FAILED) exit(1);
    memset(at, 1, size);
    return at;
}

/* Of one process alone: on large pages, as a store is. */
static char *private_memory(size_t size) {
    size_t large = 2 << 20, whole = (size + large - 1) / large * large;
    char *at = aligned_alloc(large, whole);
    if (at == NULL) exit(1);
    madvise(at, whole, MADV_HUGEPAGE);
    memset(at, 1, size);
    return at;
}

static void work(struct window *window, size_t bytes, size_t pool, size_t ahead) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    char *from = private_memory(bytes * pool);
    for (uint64_t i = 0;; i++) {
        while (i - atomic_load_explicit(&window->taken, memory_order_acquire) >= ahead) sched_yield();
        memcpy(window->pieces + i % ahead * bytes, from + i % pool * bytes, bytes);
        atomic_store_explicit(&window->filled, i + 1, memory_order_release);
    }
}

int main(int count, char **word) {
    if (count != 8) return 2;
    int workers = atoi(word[1]);
    size_t bytes = atoll(word[2]), pool = atoll(word[3]), ahead = atoll(word[4]), slots = atoll(word[5]);
    int by_kernel = strcmp(word[6], "vm_readv") == 0;
    double seconds = atof(word[7]);
    pid_t *pids = calloc(workers, sizeof *pids);
    struct window *windows = (struct window *)memory(sizeof(struct window) * workers);
    char *rows = private_memory(bytes * slots);
    for (int i = 0; i < workers; i++) {
        windows[i].filled = windows[i].taken = 0;
        windows[i].pieces = memory(bytes * ahead);
        if ((pids[i] = fork()) == 0) work(&windows[i], bytes, pool, ahead);
    }
    uint64_t done = 0, counted = 0;
    double begin = now() + 0.2, t; /* the first lap touches pages */
    for (int turn = 0;; turn = (turn + 1) % workers) {
        struct window *window = &windows[turn];
        uint64_t taken = window->taken, here = atomic_load_explicit(&window->filled, memory_order_acquire);
        if (here == taken) sched_yield();
        for (; taken < here; taken++, done++) {
            char *from = window->pieces + taken % ahead * bytes, *to = rows + done % slots * bytes;
            struct iovec local = {to, bytes}, remote = {from, bytes};
            if (!by_kernel)
                memcpy(to, from, bytes);
            else if (process_vm_readv(pids[turn], &local, 1, &remote, 1, 0) != (ssize_t)bytes)
                return perror("process_vm_readv"), 1;
        }
        atomic_store_explicit(&window->taken, taken, memory_order_release);
        t = now();
        if (t < begin) counted = done;
        if (t >= begin + seconds && done > counted) break; /* on a busy machine nothing may be copied in a short time */
    }
    printf("%g\n", (double)(done - counted) * (double)bytes / (t - begin));
    for (int i = 0; i < workers; i++) kill(pids[i], SIGKILL);
    while (wait(NULL) > 0) {}
    return 0;
}
