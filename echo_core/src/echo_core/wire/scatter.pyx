# cython: language_level=3, boundscheck=False, wraparound=False
"""The learner's side of frames of samples: it scatters them into slots at the speed of memory. `echo_core.wire.gather` is the worker's side.

The payload of a DATA frame holds, for each leaf, the leaf of all its samples one after another. This module reads such payloads without
touching a sample from Python, for every transport that speaks `echo_core.wire.protocol` (see `echo_core.wire.channel`).
"""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, ECHO_CLOSED, ECHO_OK, echo_capi, echo_run, echo_store, echo_store_of, echo_table

cdef extern from "echo_copy.h" namespace "echo" nogil:
    void copy_sample(void* to, const void* source, size_t size)

from echo_core.base.errors import ClosedError


@cython.final
cdef class Inserter:
    """Inserts frames into a store: `Inserter(sink.native)`. Several threads may use it at the same time."""

    cdef const echo_capi* api
    cdef echo_store* store
    cdef object capsule     # keeps the store's memory alive
    cdef vector[uint64_t] sizes
    cdef readonly Py_ssize_t sample_bytes

    def __cinit__(self, native):
        cdef uint32_t leaf
        self.api = echo_table(ECHO_CAPI_VERSION)
        self.store = echo_store_of(native)
        self.capsule = native
        for leaf in range(self.api.leaf_count(self.store)):
            self.sizes.push_back(self.api.leaf_bytes(self.store, leaf))
        self.sample_bytes = self.api.sample_bytes(self.store)

    def insert(self, payload, Py_ssize_t count, Py_ssize_t first=0, Py_ssize_t most=-1) -> int:
        """Copy samples of a frame into slots and commit them, without waiting for space.

        Args:
            payload: the payload of a DATA frame of `count` samples: any contiguous buffer.
            first: the sample to begin with, counted from 0.
            most: the most samples to insert; -1: all that follow.

        Returns:
            how many were inserted, in order; fewer than requested if the store is full.

        Raises:
            ClosedError: the store is closed, and none was inserted.
            ValueError: the payload does not have the bytes of `count` samples.
        """
        cdef Py_buffer view
        cdef Py_ssize_t wanted, done = 0
        cdef bint closed = False
        if not 0 <= first <= count:
            raise ValueError(f"sample {first} is not in a frame of {count} samples")
        wanted = count - first if most < 0 else min(most, count - first)
        PyObject_GetBuffer(payload, &view, PyBUF_SIMPLE)
        try:
            if view.len != count * self.sample_bytes:
                raise ValueError(f"{view.len} bytes for {count} samples of {self.sample_bytes}")
            with nogil:
                done = self.copy(<const char*>view.buf, count, first, wanted, &closed)
        finally:
            PyBuffer_Release(&view)
        if closed and not done:
            raise ClosedError("the server is closed and accepts no more samples")
        return done

    cdef Py_ssize_t copy(self, const char* data, Py_ssize_t count, Py_ssize_t first, Py_ssize_t wanted, bint* closed) noexcept nogil:
        cdef Py_ssize_t done = 0
        cdef uint64_t size
        cdef uint32_t leaf
        cdef echo_run run
        cdef int status
        cdef const char* rows
        while done < wanted:
            status = self.api.claim(self.store, <uint32_t>min(wanted - done, 1 << 30), &run)
            if status != ECHO_OK:
                closed[0] = status == ECHO_CLOSED
                break
            rows = data
            for leaf in range(<uint32_t>self.sizes.size()):
                size = self.sizes[leaf]
                copy_sample(self.api.leaf(self.store, &run, leaf), rows + (first + done) * size, run.count * size)
                rows += count * size
            self.api.commit(self.store, &run)
            done += run.count
        return done

    def wait_space(self, double seconds) -> None:
        """Sleep until there may be space or the store is closed, for at most `seconds`."""
        cdef int64_t ns = <int64_t>(min(seconds, 1e6) * 1e9)
        with nogil:
            self.api.wait_space(self.store, ns)
