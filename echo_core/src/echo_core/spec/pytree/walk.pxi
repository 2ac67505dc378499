# Part of flattener.pyx: the walk along the program beside a sample, for plain containers and arrays.

cdef enum:
    # The results of visit() and fit().
    FITS = 0
    OTHERWISE = 1  # perhaps right, perhaps wrong: the careful path decides


cdef inline Walk new_walk(const void** out, int lead) noexcept:
    cdef Walk walk
    walk.out = out
    walk.values = NULL
    walk.lead = lead
    walk.n = -1
    walk.lent = -1
    return walk


cdef int visit(Leaf* leaves, Node* node, PyObject* value, Walk* walk) except -1:
    """Walks `value` beside `node`. Returns FITS, or OTHERWISE at the first thing that is not plain.

    It runs no Python code, so the objects that it borrows cannot be freed meanwhile.
    """
    cdef Py_ssize_t i = 0, position = 0
    cdef PyObject* key
    cdef PyObject* item
    if node.kind == LEAF:
        if walk.values == NULL:
            return fit(leaves, node.leaf, value, walk)
        XINCREF(value)
        PyList_SET_ITEM(walk.values, node.leaf, value)
    elif node.kind == DICT:
        if Py_TYPE(value) != &PyDict_Type or PyDict_Size(value) != node.count:
            return OTHERWISE
        # Most samples are written by one piece of code, with keys in the example's order and
        # interned: then no key is ever hashed.
        while i < node.count and PyDict_Next(value, &position, &key, &item):
            if key != node.keys[i]:
                break
            if visit(leaves, &node.children[i], item, walk) != FITS:
                return OTHERWISE
            i += 1
        while i < node.count:
            item = PyDict_GetItemWithError(value, node.keys[i])
            if item == NULL or visit(leaves, &node.children[i], item, walk) != FITS:
                return OTHERWISE
            i += 1
    elif node.kind == LIST:
        if Py_TYPE(value) != &PyList_Type or PyList_GET_SIZE(value) != node.count:
            return OTHERWISE
        for i in range(node.count):
            if visit(leaves, &node.children[i], PyList_GET_ITEM(value, i), walk) != FITS:
                return OTHERWISE
    elif node.kind == TUPLE:
        if <PyObject*>Py_TYPE(value) != node.type or PyTuple_GET_SIZE(value) != node.count:
            return OTHERWISE
        for i in range(node.count):
            if visit(leaves, &node.children[i], PyTuple_GET_ITEM(value, i), walk) != FITS:
                return OTHERWISE
    elif value != Py_None:
        return OTHERWISE
    return FITS


cdef int fit(Leaf* leaves, Py_ssize_t index, PyObject* value, Walk* walk) noexcept:
    """Returns FITS if `value` is an ndarray whose memory can be used as it is."""
    cdef Leaf* leaf = &leaves[index]
    cdef PyArrayObject* array = <PyArrayObject*>value
    cdef npy_intp* shape
    cdef int axis
    if Py_TYPE(value) != &PyArray_Type or not PyArray_FLAGS(array) & NPY_ARRAY_C_CONTIGUOUS:
        return OTHERWISE
    # Equivalent dtypes have the same byte order. Unaligned memory is fine, because it is only copied from.
    if (<PyObject*>PyArray_DESCR(array) != leaf.dtype
            and not PyArray_EquivTypes(PyArray_DESCR(array), <PyArray_Descr*>leaf.dtype)):
        return OTHERWISE
    shape = PyArray_DIMS(array)
    if PyArray_NDIM(array) == leaf.ndim:
        if walk.lead == STACKED:
            return OTHERWISE
    else:
        if PyArray_NDIM(array) != leaf.ndim + 1 or walk.lead == EXACT:
            return OTHERWISE
        if walk.lead == ONE_OPTIONAL:
            if shape[0] != 1:
                return OTHERWISE
        elif walk.n < 0:
            walk.n = shape[0]
        elif shape[0] != walk.n:
            return OTHERWISE
        shape += 1
    for axis in range(leaf.ndim):
        if shape[axis] != leaf.shape[axis]:
            return OTHERWISE
    if walk.out != NULL:
        walk.out[index] = PyArray_DATA(array)
    return FITS
