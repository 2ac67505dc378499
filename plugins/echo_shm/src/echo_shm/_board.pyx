# cython: language_level=3
"""Access to the words on the first page of a board, with the memory order that they need: see board.hpp."""
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libcpp cimport bool as cbool

from echo_core.base.errors import ProtocolError

cdef extern from "board.hpp" namespace "echo_shm" nogil:
    cdef cppclass Version:
        uint64_t version, digest, payload, meta
    cdef cppclass Found(Version):
        uint64_t place, turn
    cdef cppclass Board:
        Board(void*, uint64_t)
        uint64_t capacity()
        uint64_t start(uint64_t)
        cbool fits(uint64_t, uint64_t)
        void begin(uint32_t)
        void finish(uint32_t, const Version&)
        int look(Found*)
        cbool copy(const Found&, char*, char*)
    enum:
        kBoardPage
        kPlaces
    int kWhole "echo_shm::Board::kWhole"
    int kAgain "echo_shm::Board::kAgain"

PAGE = kBoardPage
PLACES = kPlaces


cdef class Places:
    """A board in `memory`, a buffer that this object keeps: a page and `PLACES` places.

    Raises ValueError if `memory` is too small for those; `begin` and `finish` raise ValueError if it is read-only.

    Attributes:
        capacity: size of a place in bytes.
    """

    cdef Py_buffer view
    cdef Board* board

    def __cinit__(self, memory, bint write=False):
        PyObject_GetBuffer(memory, &self.view, PyBUF_WRITABLE if write else PyBUF_SIMPLE)
        if <uint64_t>self.view.len < (1 + kPlaces) * kBoardPage:
            raise ValueError(f"{self.view.len} bytes are no board")
        self.board = new Board(self.view.buf, self.view.len)

    def __dealloc__(self):
        del self.board
        PyBuffer_Release(&self.view)

    cdef int writing(self, uint32_t place) except -1:
        if self.view.readonly or place >= kPlaces:
            raise ValueError(f"place {place} cannot be written to here")
        return 0

    @property
    def capacity(self) -> int:
        return self.board.capacity()

    def start(self, uint32_t place) -> int:
        """The offset at which `place` begins, in bytes from the beginning of the memory."""
        return self.board.start(place)

    def begin(self, uint32_t place) -> None:
        """Mark that `place` is being written until `finish`; readers avoid it meanwhile."""
        self.writing(place)
        self.board.begin(place)

    def finish(self, uint32_t place, uint64_t version, uint64_t digest, uint64_t payload, uint64_t meta) -> None:
        """Publish `place`: it holds the whole of this newest version, `payload` bytes and, at the next page, a description of `meta` bytes."""
        cdef Version found
        self.writing(place)
        if not self.board.fits(payload, meta):
            raise ValueError(f"{payload} and {meta} bytes do not fit in a place")
        found.version, found.digest, found.payload, found.meta = version, digest, payload, meta
        self.board.finish(place, found)

    def look(self):
        """The newest version, to be copied; None if it is just being overwritten. Then a newer one is coming, so look again.

        Raises ProtocolError if the version would reach past its place.
        """
        cdef Copyable found = Copyable.__new__(Copyable)
        cdef int outcome = self.board.look(&found.found)
        if outcome == kAgain:
            return None
        if outcome != kWhole:
            raise ProtocolError("the learner's weights reach past its memory; install the same echo-shm at both ends")
        found.places = self
        return found


cdef class Copyable:
    """A version that was whole on the board.

    Attributes:
        version, digest: the numbers that the learner wrote.
        payload: number of its bytes, without the description.
    """

    cdef Found found
    cdef Places places

    @property
    def version(self) -> int:
        return self.found.version

    @property
    def digest(self) -> int:
        return self.found.digest

    @property
    def payload(self) -> int:
        return self.found.payload

    def copy(self, to):
        """Copy the payload into `to`, without the GIL. Returns the description; None if the version was overwritten meanwhile, and then `to` is invalid."""
        cdef Py_buffer target
        cdef bytes meta = PyBytes_FromStringAndSize(NULL, self.found.meta)
        cdef char* described = PyBytes_AS_STRING(meta)
        cdef bint whole
        if self.places is None:
            raise ValueError("made by nobody")
        PyObject_GetBuffer(to, &target, PyBUF_WRITABLE)
        try:
            if <uint64_t>target.len != self.found.payload:
                raise ValueError(f"{self.found.payload} bytes do not fill {target.len}")
            with nogil:
                whole = self.places.board.copy(self.found, <char*>target.buf, described)
        finally:
            PyBuffer_Release(&target)
        return meta if whole else None
