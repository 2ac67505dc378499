# cython: language_level=3
"""Shared memory that is mapped, the arrays that are copied into it and out of it, and how waits end. Nothing in this package opens files.

The classes in this package are what cell.py, ring.py and rows.py are made of: they check arrays, wait without the interpreter's lock, and let Ctrl-C
end every wait.
"""
cimport numpy as np
from cpython.buffer cimport PyBuffer_FillInfo
from cpython.exc cimport PyErr_Clear
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_IsValid
from libc.errno cimport errno
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libcpp.vector cimport vector

import sys
from os import strerror

import numpy as np

from echo_core.base.errors import ClosedError

np.import_array()

cdef extern from "<sys/mman.h>" nogil:
    int munmap(void*, size_t)
    int PROT_READ, PROT_WRITE, MAP_SHARED, MAP_POPULATE
    void* MAP_FAILED

cdef extern from "process.hpp" namespace "echo_ipc" nogil:
    int64_t start_of "echo_ipc::start_of"(int64_t)

cdef extern from "echo_huge_pages.h" namespace "echo" nogil:
    void* map_aligned(size_t, int, int, int)

cdef extern from *:
    """
    #include "segment.hpp"
    static inline void new_segment(char *base, uint64_t size, uint32_t kind, uint64_t nonce, const char *schema, uint64_t bytes, const uint64_t *words) {
        uint64_t eight[8];
        for (int i = 0; i < 8; ++i) eight[i] = words[i];
        echo_ipc::make(base, size, echo_ipc::Kind(kind), nonce, schema, bytes, eight);
    }
    static inline const char *is_wrong(const char *base, uint64_t size, uint32_t kind) { return echo_ipc::wrong(base, size, echo_ipc::Kind(kind)); }
    """
    void new_segment(char*, uint64_t, uint32_t, uint64_t, const char*, uint64_t, const uint64_t*) nogil
    const char* is_wrong(const char*, uint64_t, uint32_t) nogil

cdef extern from "segment.hpp" namespace "echo_ipc" nogil:
    uint64_t kPage
    uint64_t kPopulated

cdef extern from "dlpack.hpp" namespace "echo_ipc::dlpack":
    const char* kCapsule
    int kCpu
    ctypedef struct Tensor:
        void* data
        int device, dimensions
        unsigned char code, bits
        uint16_t lanes
        int64_t* shape
        uint64_t offset
    ctypedef struct Api:
        int (*look)(void*, Tensor*)
    const Api* usable(const Api*)
    int code_of(char)
    bint packed(const Tensor&)

CELL, RING, ROWS = 1, 2, 3
PAGE = kPage
DONE, LATER, NOTHING, FULL, HELD = kDone, kLater, kNothing, kFull, kHeld


cdef class Mapping:
    """The memory of a descriptor, mapped as long as this object or an array over it lives.

    Raises OSError if it cannot be mapped.
    """

    def __cinit__(self, int fd, uint64_t size, bint writable):
        # All pages are there already. Entering them now saves a fault at the first use of each; for very large memory, that would take long.
        cdef int how = MAP_SHARED | (MAP_POPULATE if size <= kPopulated else 0)
        cdef void* memory = map_aligned(size, PROT_READ | (PROT_WRITE if writable else 0), how, fd)
        if memory == MAP_FAILED:
            raise OSError(errno, f"cannot map {size:,} bytes of shared memory: {strerror(errno)}")
        self.memory, self.size, self.writable, self.place = <char*>memory, size, writable, -1

    def __dealloc__(self):
        if self.memory != NULL:
            munmap(self.memory, self.size)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.memory, self.size, not self.writable, flags)

    def make(self, uint32_t kind, uint64_t nonce, bytes schema, words) -> None:
        """Write the first page and the description. `words`: up to eight sizes."""
        cdef uint64_t[8] sizes
        cdef int i
        for i in range(8):
            sizes[i] = words[i] if i < len(words) else 0
        new_segment(self.memory, self.size, kind, nonce, schema, len(schema), sizes)

    cdef Parties* parties(self) noexcept:
        return &(<Header*>self.memory).parties

    cdef void did(self, Role role) noexcept:
        if not self.roles & role and self.place >= 0:
            self.roles |= role
            self.parties().did(self.place, role)

    def expect(self) -> None:
        """A process is being started that gets this memory; its first `enter` is awaited."""
        if self.writable:
            self.parties().expect(now_ns())

    def enter(self, bint party=False, bint expected=False) -> None:
        """This process uses the memory from now on, so that waits of others know it. In a forked child, call it again.

        `party`: it made the memory, or was started with it. `expected`: `expect` was called for it.
        """
        cdef int pid = getpid()
        if self.writable:
            self.place, self.roles = self.parties().enter(pid, start_of(pid), kParty if party else 0), 0
            if expected:
                self.parties().arrived()

    def leave(self, bint last) -> None:
        """No handle of this process uses it any more; `last`: nobody can attach through this process either."""
        if self.place >= 0:
            self.parties().leave(self.place, last)
            self.place = -1

    def wrong(self, uint32_t kind):
        """What is wrong with this memory, in words; None if it is a segment of this kind."""
        cdef const char* found = is_wrong(self.memory, self.size, kind)
        return None if found == NULL else found.decode()

    @property
    def nonce(self) -> int:
        return (<Header*>self.memory).nonce

    @property
    def words(self) -> tuple:
        return tuple((<Header*>self.memory).words[i] for i in range(8))

    @property
    def schema(self) -> bytes:
        """The description. Ask only after `wrong()` has found nothing."""
        return self.memory[kPage:kPage + (<Header*>self.memory).schema_bytes]


cdef object _tensor = None  # torch.Tensor and what goes with it, once a program has imported torch
cdef object _parameter = None
cdef object _strided = None
cdef const Api* _dlpack = NULL
cdef dict _of_numpy = {}  # the dtype of an array with the same bits, for each dtype of a tensor that was seen


cdef bint is_tensor(item) except -1:
    """Whether this is an ordinary tensor of torch, and not of a subclass. A caller that has a tensor has imported torch."""
    global _tensor, _parameter, _strided, _dlpack
    if _tensor is None:
        torch = sys.modules.get("torch")
        if not hasattr(torch, "nn") or not hasattr(torch.nn, "Parameter"):  # it may be in the middle of being imported
            return False
        capsule = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
        if PyCapsule_IsValid(capsule, kCapsule):
            _dlpack = usable(<const Api*>PyCapsule_GetPointer(capsule, kCapsule))
        _tensor, _parameter, _strided = torch.Tensor, torch.nn.Parameter, torch.strided
    return type(item) is _tensor or type(item) is _parameter


cdef object dtype_with_the_bits_of(of_torch):
    """None if numpy has no such dtype."""
    if of_torch not in _of_numpy:
        from echo_ipc.arrays import tensors
        try:
            _of_numpy[of_torch] = tensors.dtype_of(sys.modules["torch"].empty(0, dtype=of_torch))
        except (TypeError, RuntimeError):
            _of_numpy[of_torch] = None
    return _of_numpy[of_torch]


cdef class FieldLayout:
    """Where the arrays of a value lie: for each its dtype, shape and offset in bytes.

    `rows`: the arrays have one more dimension in front, the rows of a batch.
    """

    def __init__(self, dtypes, shapes, offsets, bint rows=False):
        self.dtypes = list(dtypes)
        self.of_torch = [None] * len(self.dtypes)
        self.widths = [np.dtype(dtype).itemsize for dtype in self.dtypes]
        self.codes = [code_of(ord(dtype.kind)) if dtype.isnative else -1 for dtype in map(np.dtype, self.dtypes)]
        self.shapes = tuple(tuple(shape) for shape in shapes)
        self.offsets = list(offsets)
        self.rows = rows
        self.count = len(self.dtypes)
        self.sizes = [int(np.dtype(dtype).itemsize * np.prod(shape, dtype=np.int64)) for dtype, shape in zip(self.dtypes, self.shapes)]

    cdef int fill(self, list arrays, Part* parts, bint write, int64_t* rows) except -1:
        """Pointers to the memory of arrays, and of tensors of the CPU. Returns 0, or 1 + the index of the first one that does not fit.

        A tensor that does not fit may do so as an array: only what is usual and quickly found out is looked at here.
        """
        cdef int i, d, extra = 1 if self.rows else 0
        cdef np.ndarray array
        cdef object item
        cdef tuple shape
        if len(arrays) != self.count:
            raise ValueError(f"{len(arrays)} arrays instead of {self.count}")
        for i in range(self.count):
            item = arrays[i]
            parts[i].offset = self.offsets[i]
            parts[i].bytes = self.sizes[i]
            if not isinstance(item, np.ndarray):
                if not is_tensor(item) or not self.fits(i, item, &parts[i], write, rows):
                    return i + 1
                continue
            array = <np.ndarray>item
            shape = <tuple>self.shapes[i]
            if np.PyArray_NDIM(array) != len(shape) + extra or not np.PyArray_IS_C_CONTIGUOUS(array):
                return i + 1
            if <object>np.PyArray_DESCR(array) is not self.dtypes[i] and <object>np.PyArray_DESCR(array) != self.dtypes[i]:
                return i + 1
            if write and not np.PyArray_ISWRITEABLE(array):
                return i + 1
            for d in range(len(shape)):
                if np.PyArray_DIM(array, d + extra) != <Py_ssize_t>shape[d]:
                    return i + 1
            if extra:
                if rows[0] < 0:
                    rows[0] = np.PyArray_DIM(array, 0)
                elif rows[0] != np.PyArray_DIM(array, 0):
                    return i + 1
            parts[i].memory = <char*>np.PyArray_DATA(array)
        return 0

    cdef bint fits(self, int index, object tensor, Part* part, bint write, int64_t* rows) except -1:
        """Point the part to the memory of a tensor, if an array over the tensor would lie there. To make such an array takes longer than to copy a row."""
        cdef int d, extra = 1 if self.rows else 0
        cdef object there, dtype
        cdef tuple shape = <tuple>self.shapes[index]
        # Before a write, torch itself must be asked: it may first have to give the tensor memory of its own.
        if not write and _dlpack != NULL and <int>self.codes[index] >= 0:
            return self.fits_by_dlpack(index, tensor, part, rows)
        dtype = tensor.dtype
        if dtype is not self.of_torch[index]:
            same = dtype_with_the_bits_of(dtype)
            if same is None or same != self.dtypes[index] or dtype.is_complex:  # complex tensors may be conjugated in name only
                return False
            self.of_torch[index] = dtype
        if not tensor.is_cpu or tensor.layout is not _strided or not tensor.is_contiguous() or tensor.is_neg():
            return False
        there = tensor.shape  # of a subclass of tuple
        if len(there) != len(shape) + extra:
            return False
        for d in range(len(shape)):
            if <Py_ssize_t>(<tuple>there)[d + extra] != <Py_ssize_t>shape[d]:
                return False
        if extra:
            if rows[0] < 0:
                rows[0] = <Py_ssize_t>(<tuple>there)[0]
            elif rows[0] != <Py_ssize_t>(<tuple>there)[0]:
                return False
        try:
            part.memory = <char*><uintptr_t>tensor.data_ptr()
        except RuntimeError:  # a transformation of torch.func traces it, and it has no memory
            return False
        return part.memory != NULL


    cdef bint fits_by_dlpack(self, int index, object tensor, Part* part, int64_t* rows) except -1:
        """`fits`, with one call in place of most of its own."""
        cdef Tensor there
        cdef int d, extra = 1 if self.rows else 0
        cdef tuple shape = <tuple>self.shapes[index]
        if _dlpack.look(<void*>tensor, &there) != 0:
            PyErr_Clear()  # it is sparse or traced, for example; the caller tries it as an array, which says what is wrong
            return False
        if there.device != kCpu or there.code != <int>self.codes[index] or there.lanes != 1 or there.bits != 8 * <int>self.widths[index]:
            return False
        if there.dimensions != len(shape) + extra or not packed(there) or tensor.is_neg():
            return False
        for d in range(len(shape)):
            if there.shape[d + extra] != <int64_t>shape[d]:
                return False
        if extra:
            if rows[0] < 0:
                rows[0] = there.shape[0]
            elif rows[0] != there.shape[0]:
                return False
        part.memory = <char*>there.data + there.offset
        return there.data != NULL


cdef class _Closing:
    """What has a `close()` that makes every later call, and every wait that is going on, raise ClosedError.

    Attributes:
        name: of the memory, for errors.
        watch: returns the error with which waits shall end, or None; it is asked in place of the list of processes in the memory.
    """

    def close(self) -> None:
        """Make every call raise ClosedError, those too that wait in another thread."""
        self.closed = True

    cdef int check(self) except -1:
        if self.closed:
            raise ClosedError("this was closed; open it again with its name, or keep it open as long as it is used")
        return 0

    def gone(self):
        """As `ended` says for those that give, at once."""
        cdef int64_t looked = 1  # long ago
        return self.ended(kGives, &looked)

    cdef object ended(self, Role role, int64_t* looked):
        """The error that a wait for somebody of this role has to raise if nothing has come until now, as nobody is left who could end it; or None.

        It looks once in a slice of the wait at most, and not at its beginning, because it asks the system about every process.
        """
        cdef vector[uint64_t] dead
        cdef int64_t now = now_ns()
        if looked[0] == 0 or now - looked[0] < kSlice:
            looked[0] = looked[0] or now
            return None
        looked[0] = now
        if self.watch is not None:
            return self.watch()
        if not self.mapping.parties().are_gone(role, getpid(), now, &dead):
            return None
        from echo_ipc.segments.gone import gone_error
        return gone_error(self.name, role == kGives, [pid for pid in dead])


cdef int64_t deadline_of(timeout) except? -2:
    """A time of now_ns(); -1 for none."""
    if timeout is None:
        return -1
    cdef double seconds = timeout
    if seconds != seconds:
        raise ValueError("a timeout must be a number of seconds, not nan")
    if seconds > 1e9:
        return -1
    return now_ns() + <int64_t>(max(seconds, 0.0) * 1e9)


cdef int damaged() except -1:
    raise RuntimeError("the shared memory is damaged: a process has written over words that only echo-ipc may write")
