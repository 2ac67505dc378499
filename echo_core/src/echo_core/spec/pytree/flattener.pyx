# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""From a pytree to the addresses of its arrays, and back, without allocating per sample.

A `Flattener` turns the example's containers into a small tree of C nodes, the program. `pointers()`
walks that tree beside a sample of plain dicts, lists, tuples and namedtuples; checking a leaf takes
a few comparisons on an exact ndarray. Everything else (other containers, array-likes, Python
scalars, another byte order, strided arrays) takes the careful path: optree takes the containers
apart, and numpy converts the leaf, or a SpecError names what is wrong.

Threading: every method is called with the GIL held, and none keeps state between calls, so one
flattener serves any number of threads.
Lifetime: an address is valid while its array lives. `pointers()` borrows from the sample, so its
addresses are valid while nobody can change the sample: until the GIL is released. `pointers_held()`
and `batch_pointers()` put every array into `keep` too, for callers that release the GIL or wait.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_Copy, PyDict_SetItem
from cpython.list cimport PyList_New
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_New
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

from echo_core.spec.pytree.python_api cimport *

from optree import PyTreeKind

from echo_core.spec.device import Lent
from echo_core.base.errors import SpecError
from echo_core.spec.structure import dict_order, explain

PyArray_ImportNumPyAPI()

cdef enum:
    MAX_NDIM = 32  # spec.MAX_NDIM

include "program.pxi"
include "walk.pxi"
include "build.pxi"
include "scalars.pxi"


@cython.final
cdef class Flattener:
    """Takes samples of one spec apart and puts batches together.

    Args:
        treedef: optree's treedef of the example.
        specs: its leaves (`echo_core.spec.leaf.LeafSpec`), in the treedef's order.
        namespace: optree namespace of the example's classes.
    """

    def __cinit__(self, object treedef, tuple specs, str namespace=""):
        cdef Py_ssize_t i, axis, next_leaf = 0
        if treedef.num_leaves != len(specs):
            raise ValueError(f"{treedef.num_leaves} leaves in the tree, {len(specs)} described")
        self.treedef, self.specs, self.namespace = treedef, specs, namespace
        self.count = len(specs)
        self.owned = []
        self.leaf = <Leaf*>PyMem_Calloc(self.count + 1, sizeof(Leaf))
        if self.leaf == NULL:
            raise MemoryError()
        for i in range(self.count):
            spec = specs[i]
            if len(spec.shape) > MAX_NDIM:
                raise ValueError(f"more than {MAX_NDIM} axes")
            dtype = spec.dtype
            self.owned.append(dtype)
            self.leaf[i].dtype = <PyObject*>dtype
            self.leaf[i].ndim = len(spec.shape)
            self.leaf[i].nbytes = spec.nbytes
            self.sample_bytes += self.leaf[i].nbytes
            self.leaf[i].shape = <Py_ssize_t*>PyMem_Calloc(self.leaf[i].ndim + 1, sizeof(Py_ssize_t))
            if self.leaf[i].shape == NULL:
                raise MemoryError()
            for axis in range(self.leaf[i].ndim):
                self.leaf[i].shape[axis] = spec.shape[axis]
        self.root = <Node*>PyMem_Calloc(1, sizeof(Node))
        if self.root == NULL:
            raise MemoryError()
        if not compile_node(self.root, treedef, &next_leaf, self.owned):
            free_node(self.root)
            PyMem_Free(self.root)
            self.root = NULL

    def __dealloc__(self):
        cdef Py_ssize_t i
        if self.root != NULL:
            free_node(self.root)
            PyMem_Free(self.root)
        if self.leaf != NULL:
            for i in range(self.count):
                PyMem_Free(self.leaf[i].shape)
            PyMem_Free(self.leaf)

    # --- taking apart -------------------------------------------------------------------------

    cdef int pointers(self, object sample, const void** out, list keep) except -1:
        """Put the address of every leaf of `sample` into `out` (`count` of them).

        Each points to `nbytes` contiguous native-endian bytes. `keep` receives the arrays that were
        converted. It must live as long as `out` is used, and so must the sample. Raises SpecError.
        """
        cdef Walk walk = new_walk(out, EXACT)
        if self.root == NULL or visit(self.leaf, self.root, <PyObject*>sample, &walk) != FITS:
            self.carefully(sample, &walk, keep)
        return 0

    cdef int pointers_held(self, object sample, const void** out, list keep) except -1:
        """`pointers()`, but `keep` also holds every array, so that the addresses stay valid
        without the GIL even if another thread replaces arrays in the sample."""
        cdef Walk walk = new_walk(out, EXACT)
        self.carefully(sample, &walk, keep)
        return 0

    cdef int row_pointers(self, object sample, const void** out, list keep) except -1:
        """`pointers()` for leaves that may have one more leading axis of length 1."""
        cdef Walk walk = new_walk(out, ONE_OPTIONAL)
        if self.root == NULL or visit(self.leaf, self.root, <PyObject*>sample, &walk) != FITS:
            self.carefully(sample, &walk, keep)
        return 0

    cdef Py_ssize_t batch_pointers(self, object samples, const void** out, list keep) except -1:
        """`pointers_held()` for leaves with one more leading axis of the same length N; returns N."""
        cdef Walk walk = new_walk(out, STACKED)
        if self.count == 0:
            raise SpecError("a tree without arrays has no batch size; send such samples one by one")
        self.carefully(samples, &walk, keep)
        return walk.n

    cdef int pointers_or_lent(self, object sample, const void** out, list keep, bint held) except -1:
        """`pointers()`, or `pointers_held()` if `held`, but leaves in the memory of a device stay there; returns how many do. Their addresses
        are NULL, and `keep` has a `device.Lent` for each, in their order."""
        cdef Walk walk = new_walk(out, EXACT)
        walk.lent = 0
        if held or self.root == NULL or visit(self.leaf, self.root, <PyObject*>sample, &walk) != FITS:
            self.carefully(sample, &walk, keep)
        return walk.lent

    cdef Py_ssize_t batch_pointers_or_lent(self, object samples, const void** out, list keep, int* lent) except -1:
        """The same for `batch_pointers()`."""
        cdef Walk walk = new_walk(out, STACKED)
        walk.lent = 0
        if self.count == 0:
            raise SpecError("a tree without arrays has no batch size; send such samples one by one")
        self.carefully(samples, &walk, keep)
        lent[0] = walk.lent
        return walk.n

    cdef int carefully(self, object sample, Walk* walk, list keep) except -1:
        """The path on which Python code may run: `keep` first takes a reference to every leaf."""
        cdef Py_ssize_t i
        cdef list values = self.values(sample)
        keep.append(values)
        for i in range(self.count):
            value = values[i]
            if fit(self.leaf, i, <PyObject*>value, walk) != FITS:
                value = self.convert(i, value, walk)
                keep.append(value)
                if fit(self.leaf, i, <PyObject*>value, walk) != FITS:
                    self.leave(i, value, walk)
        return 0

    cdef list values(self, object sample):
        """Return the objects that are the leaves of `sample`, whatever they are. Raises SpecError if the containers differ."""
        cdef Walk walk = new_walk(NULL, EXACT)
        cdef list values
        if self.root != NULL:
            values = PyList_New(self.count)
            walk.values = <PyObject*>values
            if visit(self.leaf, self.root, <PyObject*>sample, &walk) == FITS:
                return values
        return self.split(sample)

    cdef int leave(self, Py_ssize_t index, object value, Walk* walk) except -1:
        """Accept `value`, which is no array of the host, if it is an array of a device that fits and may stay there."""
        if not isinstance(value, Lent):
            raise SpecError(f"leaf {self.specs[index].path!r} cannot be read as {self.specs[index]}")
        if walk.lead == STACKED:
            walk.n = value.shape[0]  # `convert` has compared it with walk.n
        if walk.out != NULL:
            walk.out[index] = NULL
        walk.lent += 1
        return 0

    cdef list split(self, object sample):
        """optree's flatten_up_to, with an error that names the place in the tree."""
        try:
            return self.treedef.flatten_up_to(sample)
        except (ValueError, TypeError) as error:
            reason = explain(self.treedef, sample, self.namespace)
            raise SpecError(reason or str(error)) from error

    cdef object convert(self, Py_ssize_t index, object value, Walk* walk):
        """Return `value` as an array that fits, through `LeafSpec.convert`, or without it for frequent scalars."""
        if self.leaf[index].ndim == 0 and walk.lead != STACKED:
            if PyObject_TypeCheck(<PyObject*>value, &PyGenericArrType_Type):
                array = PyArray_FromScalar(value, NULL)
                if fit(self.leaf, index, <PyObject*>array, walk) == FITS:
                    return array
            else:
                array = new_array(&self.leaf[index], NULL, -1, None)
                if put_scalar(value, <PyArrayObject*><PyObject*>array):
                    return array
        array = self.specs[index].convert(value, walk.lead, walk.n)
        if walk.lent < 0 and isinstance(array, Lent):
            return array.landed()
        return array

    # --- putting together ---------------------------------------------------------------------

    cdef object arrays(self, char** data, Py_ssize_t n, object base):
        """Make the tree with writable arrays of shape `(n, *shape)` over `data[leaf]` (n = -1: of shape
        `shape`). `base` is the base object of each array, so that each keeps it alive.

        `data[leaf]` must be aligned for the dtype and hold n samples' bytes; it may be NULL only
        for leaves without bytes. `base` must not be an ndarray.
        """
        cdef Py_ssize_t i
        if self.root != NULL:
            return build(self.leaf, self.root, data, n, base)
        return self.treedef.unflatten([new_array(&self.leaf[i], data[i], n, base) for i in range(self.count)])

    # --- for Python ---------------------------------------------------------------------------

    def check(self, sample) -> None:
        """Raise SpecError that names the first leaf of `sample` that does not fit."""
        self.pointers_or_lent(sample, NULL, [], False)

    def check_batch(self, samples) -> int:
        """Return N of a batch of samples (every leaf of shape `(N, *shape)`). Raises SpecError."""
        cdef int lent = 0
        return self.batch_pointers_or_lent(samples, NULL, [], &lent)

    def flatten(self, sample) -> list:
        """Return the leaves of `sample` as checked C-contiguous arrays of the spec's dtypes.

        An array that fits already is returned itself, not copied. Raises SpecError.
        """
        cdef Py_ssize_t i
        cdef Walk walk = new_walk(NULL, EXACT)
        cdef list leaves = self.split(sample)
        for i in range(self.count):
            value = leaves[i]
            if fit(self.leaf, i, <PyObject*>value, &walk) != FITS:
                leaves[i] = self.convert(i, value, &walk)
        return leaves

    def unflatten(self, leaves):
        """Return the tree with these leaves (any objects), which are in the spec's order."""
        return self.treedef.unflatten(leaves)

    def tobytes(self, sample) -> bytes:
        """Return the bytes of one sample: its leaves end to end. Raises SpecError."""
        return gather(self, sample, False)[1]

    def batch_tobytes(self, samples) -> tuple[int, bytes]:
        """Return `(N, bytes)` of a batch: for each leaf its N samples one after another."""
        return gather(self, samples, True)

    def view(self, buffer, Py_ssize_t n=-1):
        """Return the tree of arrays over `buffer`, which holds the result of `batch_tobytes` (n >= 0) or
        `tobytes` (n = -1). Nothing is copied: the arrays keep the buffer exported, and are read-only if
        it is. Raises ValueError if its size is not that of n samples."""
        cdef object view = PyMemoryView_FromObject(buffer)
        cdef Py_buffer* memory = PyMemoryView_GET_BUFFER(view)
        cdef Py_ssize_t i, rows = 1 if n < 0 else n
        cdef char* at = <char*>memory.buf
        cdef char** data
        if not PyBuffer_IsContiguous(memory, b"C"):
            raise ValueError("the buffer is not contiguous; copy it first")
        if memory.len != rows * self.sample_bytes:
            raise ValueError(
                f"{rows} samples take {rows * self.sample_bytes} bytes, the buffer has {memory.len}"
            )
        data = <char**>PyMem_Calloc(self.count + 1, sizeof(char*))
        if data == NULL:
            raise MemoryError()
        try:
            for i in range(self.count):
                data[i] = at
                at += rows * self.leaf[i].nbytes
            tree = self.arrays(data, n, view)
        finally:
            PyMem_Free(data)
        for array in self.treedef.flatten_up_to(tree):
            # The leaves are end to end, so a leaf may begin at any address.
            PyArray_UpdateFlags(<PyArrayObject*><PyObject*>array, NPY_ARRAY_ALIGNED)
            if memory.readonly:
                array.flags.writeable = False
        return tree

    def __reduce__(self):
        return Flattener, (self.treedef, self.specs, self.namespace)


cdef tuple gather(Flattener self, object sample, bint stacked):
    cdef const void** out = <const void**>PyMem_Calloc(self.count + 1, sizeof(void*))
    cdef list keep = []
    cdef Py_ssize_t n = 1
    cdef char* target
    if out == NULL:
        raise MemoryError()
    try:
        if stacked:
            n = self.batch_pointers(sample, out, keep)
        elif self.sample_bytes > GIL_BYTES:
            self.pointers_held(sample, out, keep)
        else:
            self.pointers(sample, out, keep)
        data = PyBytes_FromStringAndSize(NULL, n * self.sample_bytes)
        target = PyBytes_AS_STRING(data)
        if n * self.sample_bytes > GIL_BYTES:
            with nogil:
                lay_out(self, out, n, target)
        else:
            lay_out(self, out, n, target)
        return n, data
    finally:
        PyMem_Free(out)


cdef void lay_out(Flattener self, const void** out, Py_ssize_t n, char* target) noexcept nogil:
    """Copies the `n` samples of each leaf, one leaf after another."""
    cdef Py_ssize_t i
    for i in range(self.count):
        memcpy(target, out[i], n * self.leaf[i].nbytes)
        target += n * self.leaf[i].nbytes
