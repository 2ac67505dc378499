/* A plugin by somebody else, in C: it knows echo_capi.h and nothing more. Its threads never hold the GIL. */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <echo_capi.h>

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

static const echo_capi *echo;

typedef struct {
    pthread_t thread;
    echo_store *store;
    int64_t maker, count; /* samples 0 to count - 1 */
    uint32_t wanted;      /* slots asked for at once */
    int use_eventfd;
    int status;
} pour;

/* Leaves in the order of the spec: filler uint8 (n,), maker int64 (), number int64 (). */
static void write_sample(const pour *p, const echo_run *run, uint32_t i, int64_t number) {
    const uint64_t bytes = echo->leaf_bytes(p->store, 0);
    uint8_t *filler = (uint8_t *)echo->leaf(p->store, run, 0) + i * bytes;
    for (uint64_t k = 0; k < bytes; ++k) filler[k] = (uint8_t)((uint64_t)p->maker * 31 + (uint64_t)number * 7 + k);
    memcpy((char *)echo->leaf(p->store, run, 1) + i * 8, &p->maker, 8);
    memcpy((char *)echo->leaf(p->store, run, 2) + i * 8, &number, 8);
}

static int wait_for_space(pour *p, int fd) {
    uint64_t times;
    int status;
    if (fd < 0) return echo->wait_space(p->store, 100000000);
    status = echo->arm_space(p->store, fd);
    if (status != ECHO_OK) return status;
    while (read(fd, &times, sizeof times) < 0 && errno == EINTR) {}
    return ECHO_OK; /* or a write from before: the caller looks again */
}

static void *work(void *argument) {
    pour *p = argument;
    const int fd = p->use_eventfd ? eventfd(0, EFD_CLOEXEC) : -1;
    int64_t number = 0;
    int turn = 0;
    p->status = ECHO_OK;
    while (number < p->count && p->status >= 0) {
        echo_run run, rest;
        const int64_t left = p->count - number;
        const int status = echo->claim(p->store, left < p->wanted ? (uint32_t)left : p->wanted, &run);
        if (status == ECHO_CLOSED) {
            p->status = ECHO_CLOSED;
            break;
        }
        if (status == ECHO_FULL) {
            if (wait_for_space(p, fd) < 0) p->status = -1;
            continue;
        }
        for (uint32_t i = 0; i < run.count; ++i) write_sample(p, &run, i, number + i);
        /* A run may be split, and its parts end apart: the second half is given back now and then. */
        rest = run;
        rest.slot += run.count / 2;
        rest.count -= run.count / 2;
        if (++turn % 5 == 0) {
            echo->abort(p->store, &rest);
            run.count -= rest.count;
        }
        if (run.count != 0) echo->commit(p->store, &run);
        number += run.count;
    }
    if (fd >= 0) {
        echo->disarm_space(p->store, fd);
        close(fd);
    }
    return NULL;
}

static echo_store *store_of(PyObject *capsule) { return PyCapsule_GetPointer(capsule, ECHO_STORE_NAME); }

/* start(capsule, maker, count, wanted, eventfd) -> job */
static PyObject *start(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    long long maker, count;
    unsigned wanted;
    int use_eventfd;
    pour *p;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OLLIp", &capsule, &maker, &count, &wanted, &use_eventfd)) return NULL;
    p = calloc(1, sizeof *p);
    if (p == NULL) return PyErr_NoMemory();
    p->store = store_of(capsule);
    if (p->store == NULL) {
        free(p);
        return NULL;
    }
    echo->retain(p->store); /* the thread may outlive the capsule, and the server */
    p->maker = maker, p->count = count, p->wanted = wanted, p->use_eventfd = use_eventfd;
    if (pthread_create(&p->thread, NULL, work, p) != 0) {
        echo->release(p->store);
        free(p);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return PyCapsule_New(p, "outsider.job", NULL);
}

/* join(job) -> the status it ended with */
static PyObject *join(PyObject *self, PyObject *capsule) {
    pour *p = PyCapsule_GetPointer(capsule, "outsider.job");
    int status;
    (void)self;
    if (p == NULL) return NULL;
    Py_BEGIN_ALLOW_THREADS;
    pthread_join(p->thread, NULL);
    Py_END_ALLOW_THREADS;
    status = p->status;
    echo->release(p->store);
    free(p);
    PyCapsule_SetName(capsule, "outsider.job.joined");
    return PyLong_FromLong(status);
}

/* figures(capsule) -> (leaf sizes, sample_bytes, batch_size) */
static PyObject *figures(PyObject *self, PyObject *capsule) {
    const echo_store *store = store_of(capsule);
    PyObject *sizes;
    (void)self;
    if (store == NULL) return NULL;
    sizes = PyList_New(0);
    for (uint32_t i = 0; sizes != NULL && i < echo->leaf_count(store); ++i) {
        PyObject *size = PyLong_FromUnsignedLongLong(echo->leaf_bytes(store, i));
        if (size == NULL || PyList_Append(sizes, size) < 0) Py_CLEAR(sizes);
        Py_XDECREF(size);
    }
    if (sizes == NULL) return NULL;
    return Py_BuildValue("NKI", sizes, (unsigned long long)echo->sample_bytes(store), echo->batch_size(store));
}

/* count(capsule, queued, depth, nanoseconds): what a transport reports */
static PyObject *count(PyObject *self, PyObject *arguments) {
    PyObject *capsule;
    long long queued, depth, nanoseconds;
    echo_store *store;
    (void)self;
    if (!PyArg_ParseTuple(arguments, "OLLL", &capsule, &queued, &depth, &nanoseconds)) return NULL;
    if ((store = store_of(capsule)) == NULL) return NULL;
    echo->gauge_add(store, ECHO_GAUGE_QUEUED, queued);
    echo->queue_depth(store, (uint64_t)depth);
    echo->observe(store, ECHO_HIST_INGEST_ROUND, (uint64_t)nanoseconds);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS, NULL},
    {"join", join, METH_O, NULL},
    {"figures", figures, METH_O, NULL},
    {"count", count, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "outsider_c", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_outsider_c(void);
PyMODINIT_FUNC PyInit_outsider_c(void) {
    echo = PyCapsule_Import(ECHO_CAPI_NAME, 0);
    if (echo == NULL) return NULL;
    if (echo->version != ECHO_CAPI_VERSION || echo->size < sizeof(echo_capi)) {
        PyErr_SetString(PyExc_ImportError, "built for another version of Echo's C API");
        return NULL;
    }
    return PyModule_Create(&module);
}
