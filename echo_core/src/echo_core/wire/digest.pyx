# cython: language_level=3
"""The digest with which a worker checks that its weights are complete: see digest.hpp."""
cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint64_t

cdef extern from "wire/digest.hpp" namespace "echo" nogil:
    cdef cppclass CppDigester "echo::Digester":
        CppDigester(uint64_t)
        void update(const void*, size_t)
        void copy(void*, const void*, size_t)
        uint64_t value()
    uint64_t echo_digest "echo::digest"(const void*, size_t, uint64_t)

# Below this size, the digest is computed faster than another thread could take over.
cdef enum: HOLD_GIL_BYTES = 16384


def digest(buffer, uint64_t seed=0) -> int:
    """64-bit digest of a contiguous buffer's bytes; other threads run meanwhile.

    `seed` chains digests: `digest(b, digest(a))` depends on both buffers and on the boundary between them.
    Raises BufferError or TypeError if `buffer` has no contiguous bytes.
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


@cython.final
cdef class Digester:
    """The digest of bytes that are added in pieces: adding `a` and then `b` gives `digest(a + b, seed)`.

    The size of every piece but the last must be a multiple of 64 bytes; otherwise ValueError. Raises BufferError or TypeError like `digest`.
    """

    cdef CppDigester* digester
    cdef bint over   # a last piece was added

    def __cinit__(self, uint64_t seed=0):
        self.digester = new CppDigester(seed)

    def __dealloc__(self):
        del self.digester

    cdef int piece(self, Py_ssize_t length) except -1:
        if self.over and length:
            raise ValueError("no piece may follow one whose size is not a multiple of 64 bytes")
        self.over = length % 64 != 0
        return 0

    def update(self, buffer) -> None:
        """Add the bytes of `buffer`."""
        cdef Py_buffer view
        PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
        try:
            self.piece(view.len)
            with nogil:
                self.digester.update(view.buf, view.len)
        finally:
            PyBuffer_Release(&view)

    def copy(self, to, source) -> None:
        """Copy `source` to `to`, of the same size, and add the copied bytes. If others change `source` meanwhile, the bytes in `to` count."""
        cdef Py_buffer target, view
        PyObject_GetBuffer(to, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
        try:
            PyObject_GetBuffer(source, &view, PyBUF_SIMPLE)
            try:
                if view.len != target.len:
                    raise ValueError(f"the source has {view.len} bytes and the target {target.len}; they must have the same size")
                self.piece(view.len)
                with nogil:
                    self.digester.copy(target.buf, view.buf, view.len)
            finally:
                PyBuffer_Release(&view)
        finally:
            PyBuffer_Release(&target)

    @property
    def value(self) -> int:
        """The digest of all added bytes."""
        return self.digester.value()
