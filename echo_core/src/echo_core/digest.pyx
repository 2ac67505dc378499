# cython: language_level=3
"""The digest by which a worker knows that the weights it holds are whole: see digest.hpp."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

cdef extern from "digest.hpp" nogil:
    uint64_t echo_digest "echo::digest"(const void*, size_t, uint64_t)

# Below this the digest is done before another thread would have noticed.
cdef enum: HOLD_GIL_BYTES = 16384


def digest(buffer, uint64_t seed=0) -> int:
    """64-bit digest of a contiguous buffer's bytes; other threads run meanwhile.

    `seed` chains digests: `digest(b, digest(a))` depends on both buffers and on where they meet.
    Raises BufferError or TypeError when `buffer` has no contiguous bytes.
    """
    cdef Py_buffer view
    cdef uint64_t result
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if view.len < HOLD_GIL_BYTES:
            result = echo_digest(view.buf, view.len, seed)
        else:
            with nogil:
                result = echo_digest(view.buf, view.len, seed)
    finally:
        PyBuffer_Release(&view)
    return result
