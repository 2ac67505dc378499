# cython: language_level=3
"""How pure Python code writes into the store: it claims a slot, writes its leaves in place, and commits."""
from cpython.buffer cimport PyBuffer_FillInfo
from libc.stdint cimport uint32_t

from echo_core.store.door.door cimport Door
from echo_core.store.door.echo_run cimport echo_run
from echo_core.store.local_insert cimport LocalInsert

cdef enum:
    OPEN
    COMMITTED
    ABORTED


cdef class Slot:
    """One claimed slot, to be filled in place.

        with sink.claim(timeout=1.0) as slot:
            for index in range(len(sink.spec.leaves)):
                sock.recv_into(slot.buffer(index))
            slot.commit()

    A slot that is left uncommitted at the end of the block is aborted, and the next writer fills it. A slot is not thread-safe: use it in one thread.
    """

    cdef Door* door
    cdef echo_run run
    cdef int state
    cdef Py_ssize_t views   # memoryviews of this slot that are still alive: they must not reach memory that belongs to another sample

    def __dealloc__(self):
        if self.door != NULL:
            if self.state == OPEN:  # no view is left: each one holds a reference to this slot
                self.door.abort(self.run)
            self.door.release()

    def buffer(self, leaf: int) -> memoryview:
        """Return a writable view of the bytes of leaf number `leaf` (in the order of `spec.leaves`). The memory is uninitialised.

        Raises:
            IndexError: there is no such leaf.
            ValueError: the slot was committed or aborted.
        """
        if self.state != OPEN:
            raise ValueError("this slot was committed or aborted already; claim another")
        if not 0 <= leaf < self.door.leaf_count():
            raise IndexError(f"leaf {leaf}: the spec has {self.door.leaf_count()} leaves")
        cdef LeafBytes bytes_ = LeafBytes.__new__(LeafBytes)
        bytes_.slot = self
        bytes_.data = self.door.leaf(self.run, leaf)
        bytes_.size = self.door.leaf_bytes(leaf)
        return memoryview(bytes_)

    def commit(self) -> None:
        """Commit the sample: its bytes are complete, and the learner may see it.

        Raises:
            BufferError: a view from `buffer()` is still alive (release it, or let it go out of scope).
            ValueError: the slot was committed or aborted already.
        """
        self._finish(COMMITTED)
        self.door.commit(self.run)

    def abort(self) -> None:
        """Give the slot back for the next writer. Raises the same errors as `commit`."""
        self._finish(ABORTED)
        self.door.abort(self.run)

    cdef int _finish(self, int state) except -1:
        if self.state != OPEN:
            raise ValueError("this slot was committed or aborted already; claim another")
        if self.views:
            raise BufferError(f"{self.views} views of this slot are still alive: release them before commit or abort")
        self.state = state
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        # While views are alive the slot cannot go back yet. It goes back when the last view, and this object, are gone.
        if self.state == OPEN and not self.views:
            self.abort()


cdef class LeafBytes:
    """Exports the bytes of one leaf, and counts the views that are alive."""

    cdef Slot slot
    cdef char* data
    cdef Py_ssize_t size

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 0, flags)
        self.slot.views += 1

    def __releasebuffer__(self, Py_buffer* view):
        self.slot.views -= 1


def claim(storage, timeout=30.0) -> Slot:
    """Claim one slot of a storage, waiting up to `timeout` seconds (None: for ever).

    Raises:
        EchoTimeoutError: the storage stayed full. ClosedError: it is closed.
    """
    cdef Slot slot = Slot.__new__(Slot)
    cdef echo_run run
    cdef LocalInsert into = <LocalInsert?>storage
    cdef Door* door = into.door_for()
    into.wait_claim(1, &run, timeout, "claim()")
    slot.door = door
    slot.door.retain()
    slot.run = run
    slot.state = OPEN
    return slot
