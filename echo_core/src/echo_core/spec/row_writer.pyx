# cython: language_level=3, boundscheck=False, wraparound=False
"""Writing samples into the rows of arrays, to collect a trajectory."""
cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uintptr_t
from libc.string cimport memmove

from echo_core.spec.pytree.flattener cimport Flattener

cdef enum: FEW = 64  # number of leaves whose addresses fit on the stack


@cython.final
cdef class RowWriter:
    """Writes samples into the rows of existing arrays. A sample is checked completely before it is copied, so
    that a sample that does not fit changes nothing.

    Args:
        flattener: that of the spec of one row.
        arrays: per leaf a writable C-contiguous array of the leaf's dtype whose size is a whole
            number of rows, the same for every leaf.
    """

    cdef readonly Flattener flattener
    cdef readonly Py_ssize_t rows
    cdef char** base
    cdef list owned

    def __cinit__(self, Flattener flattener, arrays):
        cdef Py_ssize_t i
        self.flattener = flattener
        self.owned = list(arrays)
        self.rows = -1
        if len(self.owned) != flattener.count:
            raise ValueError(f"{len(self.owned)} arrays for {flattener.count} leaves")
        self.base = <char**>PyMem_Calloc(flattener.count + 1, sizeof(char*))
        if self.base == NULL:
            raise MemoryError()
        for i in range(flattener.count):
            array, spec = self.owned[i], flattener.specs[i]
            flags = array.flags
            if not (flags.c_contiguous and flags.writeable) or array.dtype != spec.dtype:
                raise ValueError(f"leaf {spec.path!r}: not a writable C-contiguous {spec.dtype} array")
            if flattener.leaf[i].nbytes:
                rows = array.nbytes // flattener.leaf[i].nbytes
                if rows * flattener.leaf[i].nbytes != array.nbytes or self.rows not in (-1, rows):
                    raise ValueError(f"leaf {spec.path!r}: {array.nbytes} bytes are not whole rows")
                self.rows = rows
            self.base[i] = <char*><uintptr_t>array.ctypes.data

    def __dealloc__(self):
        PyMem_Free(self.base)

    def write(self, Py_ssize_t row, sample) -> None:
        """Copy `sample` (leaves of the spec's shapes, or with one more leading axis of length 1)
        into row `row`. Raises SpecError, IndexError."""
        cdef const void* few[FEW]
        cdef const void** out = few
        cdef Py_ssize_t i, nbytes
        if row < 0 or (row >= self.rows and self.rows >= 0):
            raise IndexError(f"row {row} of {self.rows}")
        if self.flattener.count > FEW:
            out = <const void**>PyMem_Calloc(self.flattener.count, sizeof(void*))
            if out == NULL:
                raise MemoryError()
        keep = []
        try:
            self.flattener.row_pointers(sample, out, keep)
            for i in range(self.flattener.count):
                nbytes = self.flattener.leaf[i].nbytes
                memmove(self.base[i] + row * nbytes, out[i], nbytes)
        finally:
            if out != few:
                PyMem_Free(out)
