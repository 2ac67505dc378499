// What Echo asks of CUDA's driver, for tests without a GPU, and stricter than the driver: the memory of its two devices lies in pages that no
// processor can read, work is done when its stream is waited for and not before, and every call wants the right context to be current.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712,
       NOT_REGISTERED = 713 };
enum { DEVICES = 2, MOST = 64, WORKS = 256 };

typedef struct { int device; } Context;
typedef struct { char *address, *alias; size_t size; Context *context; int pooled; } Memory;
typedef struct Stream { Context *context; struct Stream *after; int freed; } Stream;
typedef struct { Stream *stream; char *target; const char *source; size_t size; int fill; } Work;
typedef struct { uintptr_t address; size_t size; } Range;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pid_t process;
static Context contexts[DEVICES + 1] = {{0}, {1}, {0}};  // the last: one of its own on device 0, as PyCUDA makes them
static Memory memories[MOST];
static Stream streams[MOST], defaults[DEVICES + 1];
static Work works[WORKS];
static Range locked[MOST];
static int memory_count, stream_count, work_count, late_unlocks, copies;
static uintptr_t last_target;
static int failing_status;
static char failing[64];
static _Thread_local Context *current[16];
static _Thread_local int depth;

#define ENTER(name)                                                          \
    if (process != getpid()) return NOT_INITIALIZED;                         \
    if (failing_status && strcmp(failing, name) == 0) return failing_status; \
    pthread_mutex_lock(&mutex)
#define LEAVE(status) do { int result_ = (status); pthread_mutex_unlock(&mutex); return result_; } while (0)

static Context *here(void) { return depth ? current[depth - 1] : NULL; }

static Memory *memory_at(const char *address, size_t size) {
    for (int i = 0; i < memory_count; ++i)
        if (address >= memories[i].address && address + size <= memories[i].address + memories[i].size) return &memories[i];
    return NULL;
}

static Stream *stream_of(void *handle) {
    if ((uintptr_t)handle <= 2) return here() ? &defaults[here() - contexts] : NULL;  // default, legacy, per thread
    Stream *stream = handle;
    return stream >= streams && stream < streams + stream_count && !stream->freed ? stream : NULL;
}

static void finish(Stream *stream) {
    if (stream->after) finish(stream->after);
    for (int i = 0; i < work_count; ++i) {
        Work *work = &works[i];
        if (work->stream != stream) continue;
        work->stream = NULL;
        if (work->source) {
            const Memory *from = memory_at(work->source, work->size);
            memcpy(work->target, from->alias + (work->source - from->address), work->size);
        } else {
            const Memory *to = memory_at(work->target, work->size);
            memset(to->alias + (work->target - to->address), work->fill, work->size);
        }
    }
    while (work_count && !works[work_count - 1].stream) --work_count;
}

// ---- the driver

int cuInit(unsigned flags) { process = getpid(); return flags ? INVALID_VALUE : OK; }
int cuDeviceGetCount(int *count) { ENTER("cuDeviceGetCount"); *count = DEVICES; LEAVE(OK); }
int cuGetErrorName(int status, const char **text) { *text = status == INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : status == ILLEGAL_ADDRESS ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR"; return OK; }
int cuGetErrorString(int status, const char **text) { *text = status == ILLEGAL_ADDRESS ? "an illegal memory access was encountered" : "refused"; return OK; }
int cuPointerGetAttribute(void *value, int attribute, char *address) {
    ENTER("cuPointerGetAttribute");
    const Memory *memory = memory_at(address, 1);
    if (!memory) LEAVE(INVALID_VALUE);
    if (attribute == 1) *(void **)value = memory->pooled ? NULL : memory->context;
    else if (attribute == 9) *(int *)value = memory->context->device;
    else LEAVE(INVALID_VALUE);
    LEAVE(OK);
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    if (device < 0 || device >= DEVICES) LEAVE(INVALID_VALUE);
    *context = &contexts[device];
    LEAVE(OK);
}
int cuCtxGetCurrent(void **context) { ENTER("cuCtxGetCurrent"); *context = here(); LEAVE(OK); }
int cuCtxPushCurrent_v2(void *context) { ENTER("cuCtxPushCurrent"); current[depth++] = context; LEAVE(OK); }
int cuCtxPopCurrent_v2(void **context) {
    ENTER("cuCtxPopCurrent");
    if (!depth) LEAVE(INVALID_CONTEXT);
    *context = current[--depth];
    LEAVE(OK);
}
int cuStreamCreate(void **stream, unsigned flags) {
    ENTER("cuStreamCreate");
    if (!here() || flags > 1 || stream_count == MOST) LEAVE(here() ? INVALID_VALUE : INVALID_CONTEXT);
    streams[stream_count].context = here();
    *stream = &streams[stream_count++];
    LEAVE(OK);
}
int cuStreamSynchronize(void *handle) {
    ENTER("cuStreamSynchronize");
    Stream *stream = stream_of(handle);
    if (!here() || !stream) LEAVE(here() ? INVALID_HANDLE : INVALID_CONTEXT);
    finish(stream);
    LEAVE(OK);
}
int cuMemcpyDtoHAsync_v2(char *target, const char *source, size_t size, void *handle) {
    ENTER("cuMemcpyDtoHAsync");
    Stream *stream = stream_of(handle);
    const Memory *memory = memory_at(source, size);
    if (!here()) LEAVE(INVALID_CONTEXT);
    if (!stream || ((uintptr_t)handle > 2 && stream->context != here())) LEAVE(INVALID_HANDLE);
    if (!memory || memory->context->device != here()->device || work_count == WORKS) LEAVE(INVALID_VALUE);
    works[work_count++] = (Work){stream, target, source, size, 0};
    last_target = (uintptr_t)target;
    ++copies;
    LEAVE(OK);
}
int cuMemHostRegister_v2(char *address, size_t size, unsigned flags) {
    unsigned char there;
    ENTER("cuMemHostRegister");
    if (!here()) LEAVE(INVALID_CONTEXT);
    if (!size || flags > 1 || (uintptr_t)address % 4096 || mincore(address, 1, &there) != 0) LEAVE(INVALID_VALUE);
    for (int i = 0; i < MOST; ++i)
        if (locked[i].size && (uintptr_t)address < locked[i].address + locked[i].size && (uintptr_t)address + size > locked[i].address) LEAVE(ALREADY_REGISTERED);
    for (int i = 0; i < MOST; ++i)
        if (!locked[i].size) {
            locked[i] = (Range){(uintptr_t)address, size};
            LEAVE(OK);
        }
    LEAVE(INVALID_VALUE);
}
int cuMemHostUnregister(char *address) {
    unsigned char there;
    ENTER("cuMemHostUnregister");
    if (!here()) LEAVE(INVALID_CONTEXT);
    for (int i = 0; i < MOST; ++i)
        if (locked[i].size && locked[i].address == (uintptr_t)address) {
            if (mincore(address, 1, &there) != 0) ++late_unlocks;
            locked[i].size = 0;
            LEAVE(OK);
        }
    LEAVE(NOT_REGISTERED);
}

// ---- what a library of arrays on devices does, and what tests want to know

void *test_allocate(size_t size, int context, int pooled) {
    const size_t whole = (size + 4095) / 4096 * 4096;
    const int fd = memfd_create("device", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)whole) != 0 || memory_count == MOST) return NULL;
    Memory *memory = &memories[memory_count++];
    *memory = (Memory){mmap(NULL, whole, PROT_NONE, MAP_SHARED, fd, 0), mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0), size, &contexts[context], pooled};
    close(fd);
    return memory->address;
}
void test_upload(char *address, const char *from, size_t size) {
    const Memory *memory = memory_at(address, size);
    memcpy(memory->alias + (address - memory->address), from, size);
}
void *test_stream(int context) {
    streams[stream_count].context = &contexts[context];
    return &streams[stream_count++];
}
void test_launch_fill(void *stream, int context, char *address, int value, size_t size) {  // of stream 1: the default one
    works[work_count++] = (Work){(uintptr_t)stream <= 2 ? &defaults[context] : stream, address, NULL, size, value};
}
void test_order(Stream *waits, Stream *first) { waits->after = first; }
void test_fail(const char *function, int status) {
    strncpy(failing, function, sizeof failing - 1);
    failing_status = status;
}
void test_make_current(int context) { depth = 0; if (context >= 0) current[depth++] = &contexts[context]; }
int test_depth(void) { return depth; }
int test_is_locked(uintptr_t address, size_t size) {
    for (int i = 0; i < MOST; ++i)
        if (locked[i].size && address >= locked[i].address && address + size <= locked[i].address + locked[i].size) return 1;
    return 0;
}
int test_locked_ranges(void) { int n = 0; for (int i = 0; i < MOST; ++i) n += locked[i].size != 0; return n; }
int test_late_unlocks(void) { return late_unlocks; }
int test_copies(void) { return copies; }
uintptr_t test_last_target(void) { return last_target; }
void test_reset(void) {
    for (int i = 0; i < memory_count; ++i) munmap(memories[i].address, (memories[i].size + 4095) / 4096 * 4096), munmap(memories[i].alias, (memories[i].size + 4095) / 4096 * 4096);
    memset(memories, 0, sizeof memories), memset(locked, 0, sizeof locked), memset(works, 0, sizeof works);
    for (int i = 0; i < stream_count; ++i) streams[i] = (Stream){0};
    for (int i = 0; i <= DEVICES; ++i) defaults[i] = (Stream){&contexts[i], NULL, 0};
    memory_count = stream_count = work_count = late_unlocks = copies = failing_status = depth = 0;
    last_target = 0;
}
