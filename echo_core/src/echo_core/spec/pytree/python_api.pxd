# cython: language_level=3
# The C API of Python and numpy as flattener.pyx uses it: with borrowed references, which Cython's own declarations would count.
from cpython.object cimport PyObject, PyTypeObject

cdef extern from "Python.h":
    PyTypeObject PyDict_Type, PyList_Type
    PyTypeObject* Py_TYPE(PyObject*)
    PyObject* Py_None
    int PyDict_Next(PyObject*, Py_ssize_t*, PyObject**, PyObject**)
    Py_ssize_t PyDict_Size(PyObject*)
    PyObject* PyDict_GetItemWithError(PyObject*, PyObject*) except? NULL
    Py_ssize_t PyList_GET_SIZE(PyObject*)
    PyObject* PyList_GET_ITEM(PyObject*, Py_ssize_t)
    void PyList_SET_ITEM(PyObject*, Py_ssize_t, PyObject*)
    Py_ssize_t PyTuple_GET_SIZE(PyObject*)
    PyObject* PyTuple_GET_ITEM(PyObject*, Py_ssize_t)
    void PyTuple_SET_ITEM(PyObject*, Py_ssize_t, PyObject*)
    void XINCREF "Py_XINCREF"(PyObject*)
    double PyFloat_AS_DOUBLE(PyObject*)
    int PyObject_TypeCheck(PyObject*, PyTypeObject*)
    long long PyLong_AsLongLongAndOverflow(object, int*) except? -1
    object PyObject_CallObject(object, object)
    object PyMemoryView_FromObject(object)
    Py_buffer* PyMemoryView_GET_BUFFER(object)
    int PyBuffer_IsContiguous(const Py_buffer*, char)

cdef extern from "numpy/arrayobject.h":
    ctypedef Py_ssize_t npy_intp
    ctypedef struct PyArrayObject
    ctypedef struct PyArray_Descr
    PyTypeObject PyArray_Type
    int NPY_ARRAY_C_CONTIGUOUS, NPY_ARRAY_CARRAY
    int NPY_BOOL, NPY_INT32, NPY_INT64, NPY_FLOAT32, NPY_FLOAT64
    PyTypeObject PyGenericArrType_Type
    int PyArray_ImportNumPyAPI() except -1
    PyArray_Descr* PyArray_DESCR(PyArrayObject*)
    int PyArray_NDIM(PyArrayObject*)
    npy_intp* PyArray_DIMS(PyArrayObject*)
    void* PyArray_DATA(PyArrayObject*)
    int PyArray_FLAGS(PyArrayObject*)
    int PyArray_TYPE(PyArrayObject*)
    bint PyArray_EquivTypes(PyArray_Descr*, PyArray_Descr*)
    object PyArray_FromScalar(object, PyArray_Descr*)
    # Steals the reference to the descr.
    object PyArray_NewFromDescr(PyTypeObject*, PyArray_Descr*, int, npy_intp*, npy_intp*, void*, int, PyObject*)
    # Steals the reference to the base.
    int PyArray_SetBaseObject(PyArrayObject*, PyObject*) except -1
    int NPY_ARRAY_ALIGNED
    void PyArray_UpdateFlags(PyArrayObject*, int)
