# cython: language_level=3, boundscheck=False, wraparound=False
"""The learner's side of frames of samples: it scatters them into slots at the speed of memory. `echo_net.gather` is the worker's side.

The payload of a DATA frame holds, for each leaf, the leaf of all its samples one after another. This module reads such payloads without
touching a sample from Python, for every transport that speaks `echo_core.wire.protocol` (see `echo_net.channel`).
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, ECHO_CLOSED, ECHO_OK, echo_capi, echo_run, echo_store, echo_store_of, echo_table

cdef extern from "echo_copy.h" namespace "echo" nogil:
    void copy_sample(void* to, const void* source, size_t size)

from echo_core.base.errors import ClosedError

cdef enum:
    LABEL_BYTES = 16  # of one sample; see echo_core.wire.labels


@cython.final
cdef class Inserter:
    """Inserts frames into a store: `Inserter(sink.native, sink.labelled)`. Several threads may use it at the same time.

    Attributes:
        labels: whether the store takes samples with labels.
    """

    cdef const echo_capi* api
    cdef echo_store* store
    cdef echo_store* labelled  # the same store with one more leaf, for samples with labels; NULL if it takes none
    cdef object capsules     # they keep the store's memory alive
    cdef readonly bint labels
    cdef vector[uint64_t] sizes
    cdef readonly Py_ssize_t sample_bytes

    def __cinit__(self, native, labelled=None):
        cdef uint32_t leaf
        self.api = echo_table(ECHO_CAPI_VERSION)
        self.store = echo_store_of(native)
        self.capsules = native, labelled
        self.labels = labelled is not None
        if self.labels:
            self.labelled = echo_store_of(labelled)
        for leaf in range(self.api.leaf_count(self.store)):
            self.sizes.push_back(self.api.leaf_bytes(self.store, leaf))
        self.sample_bytes = self.api.sample_bytes(self.store)

    def insert(self, payload, Py_ssize_t count, Py_ssize_t first=0, Py_ssize_t most=-1, bint labelled=False) -> int:
        """Copy samples of a frame into slots and commit them, without waiting for space.

        Args:
            payload: the payload of a DATA frame of `count` samples: any contiguous buffer.
            first: the sample to begin with, counted from 0.
            most: the most samples to insert; -1: all that follow.
            labelled: whether the samples' labels follow their leaves.

        Returns:
            how many were inserted, in order; fewer than requested if the store is full.

        Raises:
            ClosedError: the store is closed, and none was inserted.
            ValueError: the payload does not have the bytes of `count` samples, or the store takes no labels.
        """
        cdef Py_buffer view
        cdef Py_ssize_t wanted, done = 0, row_bytes = self.sample_bytes + (LABEL_BYTES if labelled else 0)
        cdef bint closed = False
        if not 0 <= first <= count:
            raise ValueError(f"sample {first} is not in a frame of {count} samples")
        if labelled and self.labelled == NULL:
            raise ValueError("this store takes no labels")
        wanted = count - first if most < 0 else min(most, count - first)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if view.len != count * row_bytes:
                raise ValueError(f"{view.len} bytes for {count} samples of {row_bytes}")
            with nogil:
                done = self.copy(<const char*>view.buf, count, first, wanted, labelled, &closed)
        finally:
            PyBuffer_Release(&view)
        if closed and not done:
            raise ClosedError("the server is closed and accepts no more samples")
        return done

    cdef Py_ssize_t copy(
        self, const char* data, Py_ssize_t count, Py_ssize_t first, Py_ssize_t wanted, bint labelled, bint* closed
    ) noexcept nogil:
        cdef Py_ssize_t done = 0
        cdef echo_store* store = self.labelled if labelled else self.store
        cdef uint32_t leaves = <uint32_t>self.sizes.size() + (1 if labelled else 0)
        cdef uint64_t size
        cdef uint32_t leaf
        cdef echo_run run
        cdef int status
        cdef const char* rows
        while done < wanted:
            status = self.api.claim(store, <uint32_t>min(wanted - done, 1 << 30), &run)
            if status != ECHO_OK:
                closed[0] = status == ECHO_CLOSED
                break
            rows = data
            for leaf in range(leaves):
                size = self.sizes[leaf] if leaf < self.sizes.size() else LABEL_BYTES
                copy_sample(self.api.leaf(store, &run, leaf), rows + (first + done) * size, run.count * size)
                rows += count * size
            self.api.commit(store, &run)
            done += run.count
        return done

    def wait_space(self, double seconds) -> None:
        """Sleep until there may be space or the store is closed, for at most `seconds`."""
        cdef int64_t ns = <int64_t>(min(seconds, 1e6) * 1e9)
        with nogil:
            self.api.wait_space(self.store, ns)
