# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""From a sample of varying length to the addresses of its arrays and the lengths of its axes.

Threading: every method is called with the GIL held, and none keeps state between calls, so one object serves any number of threads.
"""
cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t

from echo_core.spec.pytree.flattener cimport EXACT, Leaf, Walk
from echo_core.spec.pytree.python_api cimport *

from echo_core.base.errors import SpecError
from echo_core.spec.structure import leaf_name

PyArray_ImportNumPyAPI()


@cython.final
cdef class RaggedFlattener:
    """Checks samples of one `RaggedSpec`, and finds their leaves' memory.

    Args:
        spec: the `RaggedSpec`, made from an example.
    """

    def __cinit__(self, object spec):
        cdef RaggedRule rule
        self.spec, self.plain = spec, spec.flattener
        self.count = len(spec.leaves)
        for leaf in spec.leaves:
            rule.axis, rule.most, rule.nbytes = leaf.axis, leaf.most, leaf.nbytes
            self.rules.push_back(rule)

    cdef list pointers(self, object sample, const void** out, uint32_t* lengths):
        """Put the address of every leaf of `sample` into `out` (`count` of them), and the length of every axis into `lengths` (4; 0 for those that
        do not exist). Return the arrays. The addresses are valid while they live, with the GIL and without.

        Raises SpecError that names the leaf: one does not fit, has not the length of another one of its axis, or is longer than `most`.
        """
        cdef Walk walk
        cdef list values = self.plain.values(sample)
        cdef Py_ssize_t i, n
        cdef int64_t[4] found = [-1, -1, -1, -1]
        cdef RaggedRule* rule
        walk.out = NULL
        walk.values = NULL
        walk.lead, walk.n, walk.lent = EXACT, -1, -1
        for i in range(self.count):
            rule = &self.rules[i]
            value = values[i]
            if not self.fits(i, <PyObject*>value):
                value = self.spec.leaves[i].array_of(value) if rule.axis >= 0 else self.plain.convert(i, value, &walk)
                if not self.fits(i, <PyObject*>value):
                    raise SpecError(f"{leaf_name(self.spec.leaves[i].path)} cannot be read as {self.spec.leaves[i]}")
                values[i] = value
            out[i] = PyArray_DATA(<PyArrayObject*><PyObject*>value)
            if rule.axis >= 0:
                n = PyArray_DIMS(<PyArrayObject*><PyObject*>value)[0]
                if n > rule.most:
                    raise self.too_long(i, n)
                if found[rule.axis] < 0:
                    found[rule.axis] = n
                elif found[rule.axis] != n:
                    raise self.unequal(i, n, values)
        for i in range(4):
            lengths[i] = <uint32_t>max(found[i], 0)
        return values

    cdef bint fits(self, Py_ssize_t index, PyObject* value) noexcept:
        """Whether `value` is an array whose memory can be used as it is."""
        cdef Leaf* leaf = &self.plain.leaf[index]
        cdef PyArrayObject* array = <PyArrayObject*>value
        cdef int lead = self.rules[index].axis >= 0, axis
        if Py_TYPE(value) != &PyArray_Type or not PyArray_FLAGS(array) & NPY_ARRAY_C_CONTIGUOUS:
            return False
        if (<PyObject*>PyArray_DESCR(array) != leaf.dtype
                and not PyArray_EquivTypes(PyArray_DESCR(array), <PyArray_Descr*>leaf.dtype)):
            return False
        if PyArray_NDIM(array) != leaf.ndim + lead:
            return False
        for axis in range(leaf.ndim):
            if PyArray_DIMS(array)[axis + lead] != leaf.shape[axis]:
                return False
        return True

    cdef object too_long(self, Py_ssize_t index, Py_ssize_t n):
        leaf = self.spec.leaves[index]
        return SpecError(
            f"{leaf_name(leaf.path)} has {n} rows, and {leaf.axis_name!r} is at most {leaf.most}; cut the sample, or raise most= in the example at both ends"
        )

    cdef object unequal(self, Py_ssize_t index, Py_ssize_t n, list values):
        leaf = self.spec.leaves[index]
        first = next(i for i in range(self.count) if self.rules[i].axis == leaf.axis)
        return SpecError(
            f"{leaf_name(leaf.path)} has {n} rows, but {leaf_name(self.spec.leaves[first].path)} has {len(values[first])}; "
            f"leaves of the axis {leaf.axis_name!r} have the same length in a sample (give one of them another axis= if they need not)"
        )

    def check(self, sample) -> dict:
        """Return the length of each axis of `sample`, by its name. Raises SpecError that names the first leaf that does not fit."""
        cdef vector[const void*] out
        cdef uint32_t[4] lengths
        out.resize(self.count)
        self.pointers(sample, out.data(), lengths)
        return {name: lengths[i] for i, name in enumerate(self.spec.axes)}

    def flatten(self, sample) -> list:
        """Return the leaves of `sample` as checked C-contiguous arrays of the spec's dtypes. An array that fits already is returned itself.
        Raises SpecError."""
        cdef vector[const void*] out
        cdef uint32_t[4] lengths
        out.resize(self.count)
        return self.pointers(sample, out.data(), lengths)
