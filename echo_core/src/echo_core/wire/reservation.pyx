# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Memory of one sample that an environment fills in place, for every owner of such memory: see `Client.reserve`."""
import numpy as np

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from libc.stdint cimport uint32_t
from libcpp.vector cimport vector


@cython.no_gc_clear
cdef class Leaf:
    """Exports the bytes of one leaf of a slot. It lives as long as any array on them, because numpy keeps the exporter and not the buffer."""

    def __cinit__(self, Reservation slot):
        self.slot = slot
        slot.views += 1

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)

    def __dealloc__(self):
        self.slot.views -= 1


cdef class Reservation:
    """One sample of this worker: fill `sample` in place, then `commit()`.

        with client.reserve() as slot:
            env.step(action, out=slot.sample["obs"])
            slot.sample["reward"][...] = reward
            slot.commit()

    Leaving the block without a commit aborts the slot. Use a slot from one thread only.

    Attributes:
        sample: the example's pytree of writable arrays, uninitialised.
    """

    @property
    def sample(self):
        if not self.open:
            raise ValueError("this slot was committed or aborted already; reserve another")
        return self.tree()

    cdef object tree(self):
        cdef Leaf leaf
        leaves = []
        for index, spec in enumerate(self.spec.leaves):
            leaf = Leaf.__new__(Leaf, self)
            leaf.data = self.leaf(index)
            leaf.size = spec.nbytes
            leaves.append(np.ndarray(spec.shape, spec.dtype, leaf))
        return self.spec.flattener.unflatten(leaves)

    def commit(self):
        """Send the sample, which is now complete.

        Raises:
            BufferError: an array of `sample` is still alive; it could write to memory that belongs to another sample by then.
            ValueError: the slot was already committed or aborted.
            EchoTimeoutError, ConnectionClosedError, ClosedError: the same as in `Client.send`; nothing was sent.
            EchoError: the slot was held for too long and was revoked, or the learner is gone; nothing was sent.
        """
        self.finish()
        self.put()

    def abort(self):
        """Give the slot back. Raises BufferError and ValueError like `commit`."""
        self.finish()
        self.leave()

    cdef int finish(self) except -1:
        if not self.here():
            raise ValueError("this slot was reserved before a fork and belongs to the parent process")
        if not self.open:
            raise ValueError("this slot was committed or aborted already; reserve another")
        if self.views:
            raise BufferError(f"{self.views} arrays of this slot are still alive: drop them (and all views of them) before commit or abort")
        self.open = False
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        if self.open and not self.views:
            self.abort()

    def __del__(self):
        if self.open and self.here():  # no array is alive, because each would hold a reference to this slot
            self.open = False
            self.drop()

    cdef char* leaf(self, uint32_t index) noexcept:
        return NULL

    cdef bint here(self) noexcept:
        return True

    cdef int put(self) except -1:
        raise NotImplementedError

    cdef int leave(self) except -1:
        return 0

    cdef int drop(self) except -1:
        return self.leave()


@cython.final
cdef class CopiedReservation(Reservation):
    """A slot with its own memory, for transports that cannot lend memory. `send` copies it when it is committed.

    Args:
        spec: the spec of the sample.
        send: called with the tree and `timeout`.
    """

    cdef vector[char*] leaves
    cdef char* data
    cdef object send
    cdef object timeout

    def __cinit__(self, spec, send, timeout):
        cdef Py_ssize_t size = 0
        starts = []
        for leaf in spec.leaves:
            starts.append(size)
            size += (leaf.nbytes + 63) // 64 * 64
        self.data = <char*>PyMem_RawMalloc(size + 64)
        if self.data == NULL:
            raise MemoryError()
        base = (64 - <size_t>self.data % 64) % 64
        for start in starts:
            self.leaves.push_back(self.data + <Py_ssize_t>(base + start))
        self.spec, self.send, self.timeout, self.open = spec, send, timeout, True

    def __dealloc__(self):
        PyMem_RawFree(self.data)

    cdef char* leaf(self, uint32_t index) noexcept:
        return self.leaves[index]

    cdef int put(self) except -1:
        self.send(self.tree(), self.timeout)
        return 0
