# Part of flattener.pyx: Python scalars as leaves.

cdef bint put_scalar(object value, PyArrayObject* array) except -1:
    """Stores a Python scalar in a 0-d array of a frequent dtype. Returns False if it has to be converted in another way."""
    cdef int number = PyArray_TYPE(array), overflow = 0
    cdef void* target = PyArray_DATA(array)
    cdef double real
    cdef int64_t integer
    if type(value) is float:
        real = PyFloat_AS_DOUBLE(<PyObject*>value)
        if number == NPY_FLOAT64:
            (<double*>target)[0] = real
            return True
        if number == NPY_FLOAT32 and (-3.4e38 < real < 3.4e38 or real - real != 0):
            (<float*>target)[0] = <float>real
            return True
    elif type(value) is bool:
        if number == NPY_BOOL:
            (<uint8_t*>target)[0] = value is True
            return True
    elif type(value) is int:
        integer = PyLong_AsLongLongAndOverflow(value, &overflow)
        if overflow == 0:
            if number == NPY_INT64:
                (<int64_t*>target)[0] = integer
                return True
            if number == NPY_INT32 and integer == <int32_t>integer:
                (<int32_t*>target)[0] = <int32_t>integer
                return True
            if number == NPY_FLOAT32 and -(1 << 24) <= integer <= 1 << 24:
                (<float*>target)[0] = <float>integer
                return True
            if number == NPY_FLOAT64 and -(1LL << 53) <= integer <= 1LL << 53:
                (<double*>target)[0] = <double>integer
                return True
    return False
