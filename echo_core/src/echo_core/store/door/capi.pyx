# cython: language_level=3
"""The native interface (include/echo_capi.h): its capsule for C and C++, and the few further functions that Cython plugins need."""
from cpython.pycapsule cimport PyCapsule_GetPointer, PyCapsule_New

from echo_core.spec.pytree.flattener cimport Flattener

from echo_core.base.errors import PluginVersionError

cdef extern from "store/door/capi_table.hpp" namespace "echo" nogil:
    const echo_capi* capi_table()

#: PyCapsule "echo_core.capi._table": `const echo_capi *`.
_table = PyCapsule_New(<void*>capi_table(), "echo_core.capi._table", NULL)
VERSION = ECHO_CAPI_VERSION


cdef const echo_capi* echo_table(uint32_t version) except NULL:
    """Returns the function table if it has the version that the caller was compiled against (`ECHO_CAPI_VERSION`)."""
    if version != ECHO_CAPI_VERSION:
        raise PluginVersionError(
            f"a native plugin was built against echo C API {version}, this echo-core has {ECHO_CAPI_VERSION}; rebuild or upgrade the plugin"
        )
    return capi_table()


cdef echo_store* echo_store_of(object capsule) except NULL:
    """Returns the store behind `sink.native`. Retain it if a thread of yours may outlive the capsule."""
    return <echo_store*>PyCapsule_GetPointer(capsule, "echo_core.store")


cdef int echo_leaf_pointers(object spec, object sample, const void** out, list keep) except -1:
    """Fills in one pointer per leaf of a checked sample: contiguous, native-endian. `keep` receives the arrays that had to be converted.

    The other arrays still belong to the sample. Their addresses are valid until the GIL is released, because another thread may then take
    an array out of the sample. Callers that go on without the GIL use `echo_leaf_pointers_held` instead.
    """
    return (<Flattener?>spec.flattener).pointers(sample, out, keep)


cdef int echo_leaf_pointers_held(object spec, object sample, const void** out, list keep) except -1:
    """Like `echo_leaf_pointers`, but `keep` then holds every array, so that the addresses stay valid without the GIL."""
    return (<Flattener?>spec.flattener).pointers_held(sample, out, keep)


cdef Py_ssize_t echo_batch_pointers(object spec, object samples, const void** out, list keep) except -1:
    """The same for leaves with a leading axis N; returns N. `keep` then holds every array, also without the GIL."""
    return (<Flattener?>spec.flattener).batch_pointers(samples, out, keep)
