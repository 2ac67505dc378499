# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Sends samples of varying length: checks each one, cuts it into chunks, and passes the chunks to a connection.

All chunks of one call go into one `Connection.send_batch`, which takes all or none of them unless it is interrupted. So a call that raises after a
timeout has sent no part of a record. After Ctrl-C it may have sent all of it, or the first records of a batch.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.deque cimport deque
from libcpp.vector cimport vector

from echo_core.spec.pytree.flattener cimport GIL_BYTES
from echo_core.spec.pytree.python_api cimport PyArray_DATA, PyArray_ImportNumPyAPI, PyArrayObject
from echo_core.spec.pytree.ragged_flattener cimport RaggedFlattener

import math
import threading

import numpy as np

from echo_core.base.errors import SpecError
from echo_core.base.forks import Origin
from echo_core.base.plural import counted
from echo_core.base.waiting import Wait, timed_out
from echo_core.wire.identity import client_number
from echo_core.wire.labels import label_of, labels_of
from echo_core.wire.protocol import LABEL_BYTES as _LABEL_BYTES

PyArray_ImportNumPyAPI()

cdef extern from "client/record_cutter.hpp" namespace "echo" nogil:
    const size_t CHUNK_BYTES
    const uint64_t UNLABELLED

    cdef struct RecordHeader:
        uint32_t[4] lengths
        uint64_t priority
        uint64_t version

    uint64_t chunks_of(uint64_t record_bytes)

    cdef cppclass RecordCutter:
        RecordCutter(uint8_t* chunks, uint64_t stream)
        void cut(const RecordHeader& header, const void* const* leaves, const uint64_t* bytes, size_t count)
        uint64_t stream()

cdef enum:
    KEPT_CHUNKS = 32768    # memory for more chunks is allocated for one call
    OPEN_RECORDS = 4096    # so many unacknowledged records are kept before the connection is asked which of them are acknowledged

cdef tuple COUNTERS = ("samples", "acknowledged", "unacknowledged")


@cython.final
cdef class RecordSender:
    """Sends records over one connection. Thread-safe.

    Args:
        spec: the `RaggedSpec` of the samples.
        send_batch: of the connection, whose spec is `spec.chunk_spec`.
        unacknowledged: returns the number of chunks that the connection has taken and that are not acknowledged.
        client_id: 32 hex digits; the learner knows by it which chunks follow one another.
        held: its attribute `version` is the policy version of samples that are sent without one.
    """

    cdef RaggedFlattener flattener
    cdef object send_chunks, unacknowledged, held, origin, scratch
    cdef object lock      # the call that sends holds it, perhaps for long
    cdef object counting  # it guards `chunks`, `records` and `ends`, so that statistics need not wait for `lock`
    cdef uint64_t stream           # the head of the next chunk: it goes on only when chunks were taken
    cdef uint64_t chunks, records  # that the connection has taken
    cdef deque[uint64_t] ends      # the value of `chunks` after each record that may be unacknowledged
    cdef Py_ssize_t prune_at

    def __cinit__(self, object spec, object send_batch, object unacknowledged, str client_id, object held):
        self.flattener = RaggedFlattener(spec)
        self.send_chunks, self.unacknowledged, self.held = send_batch, unacknowledged, held
        self.lock, self.counting, self.origin = threading.Lock(), threading.Lock(), Origin("this sender of records")
        self.scratch = np.empty((64, CHUNK_BYTES), np.uint8)
        self.stream = <uint64_t>client_number(client_id) << 16
        self.prune_at = OPEN_RECORDS

    def send(self, sample, timeout=None, priority=None, policy_version=None):
        """See `Client.send`."""
        cdef vector[const void*] leaves
        cdef RecordHeader header
        leaves.resize(self.flattener.count)
        held = self.flattener.pointers(sample, leaves.data(), header.lengths)  # which keeps the arrays while they are cut
        self.label(label_of(priority, self.held.version if policy_version is None else policy_version), &header, 1)
        self.pass_on(leaves.data(), &header, 1, timeout)

    def send_batch(self, samples, timeout=None, priorities=None, policy_version=None, labels=None):
        """See `Client.send_batch`; `samples` is a list or tuple of samples. `labels` are in the form of wire/labels.py, in place of the others."""
        cdef vector[const void*] leaves
        cdef vector[RecordHeader] headers
        cdef Py_ssize_t i, n
        cdef list held = []
        if not isinstance(samples, (list, tuple)):
            raise SpecError(f"send_batch takes a list of samples where they vary in length, not a {type(samples).__name__}: send_batch([one, two, ...])")
        samples = list(samples)  # another thread may change the caller's
        n = len(samples)
        if policy_version is None:
            policy_version = self.held.version
        if labels is None:
            labels = labels_of(n, priorities, policy_version)
        elif len(labels) != n * _LABEL_BYTES:
            raise ValueError(f"the labels of {counted(n, 'sample')} have {n * _LABEL_BYTES} bytes, not {len(labels)}")
        if n == 0:
            return
        leaves.resize(n * self.flattener.count)
        headers.resize(n)
        self.label(labels, headers.data(), n)
        for i in range(n):
            try:
                held.append(self.flattener.pointers(samples[i], leaves.data() + i * self.flattener.count, headers[i].lengths))
            except SpecError as error:
                raise SpecError(f"sample {i} of the batch: {error}") from error
        self.pass_on(leaves.data(), headers.data(), n, timeout)

    cdef int label(self, bytes labels, RecordHeader* headers, Py_ssize_t n) except -1:
        """Writes labels, in the form of wire/labels.py, into headers. None: the samples have none."""
        cdef const uint64_t* pairs = NULL
        cdef Py_ssize_t i
        if labels is not None:
            pairs = <const uint64_t*><const char*>labels
        for i in range(n):
            headers[i].priority = UNLABELLED if pairs == NULL else pairs[2 * i]
            headers[i].version = UNLABELLED if pairs == NULL else pairs[2 * i + 1]
        return 0

    cdef int pass_on(self, const void** leaves, const RecordHeader* headers, Py_ssize_t n, object timeout) except -1:
        """Cut `n` records, and pass their chunks to the connection."""
        cdef vector[uint64_t] sizes, counts
        cdef Py_ssize_t i, leaf, at = 0
        cdef uint64_t total = 0, record
        cdef uint64_t stream
        sizes.resize(n * self.flattener.count)
        counts.resize(n)
        for i in range(n):
            record = sizeof(RecordHeader)
            for leaf in range(self.flattener.count):
                sizes[at] = self.flattener.rules[leaf].nbytes
                if self.flattener.rules[leaf].axis >= 0:
                    sizes[at] *= headers[i].lengths[self.flattener.rules[leaf].axis]
                record += sizes[at]
                at += 1
            counts[i] = chunks_of(record)
            total += counts[i]
        timeout = self.enter(timeout)
        try:
            chunks = self.scratch
            if total > <uint64_t>len(chunks):
                chunks = np.empty((total, CHUNK_BYTES), np.uint8)
                if total <= KEPT_CHUNKS:
                    self.scratch = chunks
            stream = self.cut(chunks, leaves, sizes.data(), headers, n, total)
            self.send_chunks(chunks[:total], timeout)
            self.stream = stream
            with self.counting:
                self.records += n
                for i in range(n):
                    self.chunks += counts[i]
                    self.ends.push_back(self.chunks)
                if <Py_ssize_t>self.ends.size() >= self.prune_at:
                    self.prune()
                    self.prune_at = max(<Py_ssize_t>OPEN_RECORDS, 2 * <Py_ssize_t>self.ends.size())
        finally:
            self.lock.release()
        return 0

    cdef uint64_t cut(self, object chunks, const void** leaves, const uint64_t* sizes, const RecordHeader* headers, Py_ssize_t n, uint64_t total) except? 0:
        cdef uint8_t* memory = <uint8_t*>PyArray_DATA(<PyArrayObject*><PyObject*>chunks)
        cdef uint64_t stream = self.stream
        if total * CHUNK_BYTES <= GIL_BYTES:
            return cut_all(memory, stream, leaves, sizes, headers, n, self.flattener.count)
        with nogil:
            stream = cut_all(memory, stream, leaves, sizes, headers, n, self.flattener.count)
        return stream

    cdef object enter(self, object timeout):
        """Take the lock; return what is left of `timeout` for the connection."""
        if self.lock.acquire(False):
            return timeout
        self.origin.check()
        if timeout is None or timeout == math.inf:
            self.lock.acquire()
            return timeout
        wait = Wait(timeout)
        if not self.lock.acquire(timeout=max(0.0, timeout)):
            raise timed_out("send()", timeout, "another thread's send of this client; give each thread its own client")
        return wait.left()

    cdef int prune(self) except -1:
        """Forget records that are acknowledged. The caller holds `counting`."""
        cdef int64_t done = <int64_t>self.chunks - <int64_t>self.unacknowledged()
        while not self.ends.empty() and <int64_t>self.ends.front() <= done:
            self.ends.pop_front()
        return 0

    def counted(self, stats):
        """Return the connection's `stats()` with its counters of samples in records; those of chunks get names of their own."""
        self.origin.check()
        with self.counting:
            self.prune()
            left = <Py_ssize_t>self.ends.size()
            return {
                **stats, "samples": self.records, "acknowledged": self.records - left, "unacknowledged": left,
                **{f"chunks_{name}" if name != "samples" else "chunks": stats[name] for name in COUNTERS if name in stats},
            }


cdef uint64_t cut_all(
    uint8_t* memory, uint64_t stream, const void** leaves, const uint64_t* sizes, const RecordHeader* headers, Py_ssize_t n, Py_ssize_t count
) noexcept nogil:
    """Write all records into `memory`; returns the head of the chunk after them."""
    cdef RecordCutter* cutter = new RecordCutter(memory, stream)
    cdef Py_ssize_t i
    for i in range(n):
        cutter.cut(headers[i], leaves + i * count, sizes + i * count, count)
    stream = cutter.stream()
    del cutter
    return stream
