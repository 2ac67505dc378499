# Part of flattener.pyx: makes trees of new arrays from the program.

# Arrays without elements and without memory point here; with NULL, numpy would allocate.
cdef long long nowhere[8]


cdef object build(Leaf* leaves, Node* node, char** data, Py_ssize_t n, object base):
    """Makes the tree below `node`; see `Flattener.arrays`."""
    cdef Py_ssize_t i
    cdef object child, tree
    if node.kind == LEAF:
        return new_array(&leaves[node.leaf], data[node.leaf], n, base)
    if node.kind == DICT:
        # A clone of a dict that has the keys already never resizes, and keeps their order.
        tree = PyDict_Copy(<object>node.template)
        for i in range(node.count):
            PyDict_SetItem(tree, <object>node.keys[i], build(leaves, &node.children[i], data, n, base))
        return tree
    if node.kind == LIST:
        tree = PyList_New(node.count)
        for i in range(node.count):
            child = build(leaves, &node.children[i], data, n, base)
            Py_INCREF(child)  # SET_ITEM takes it over
            PyList_SET_ITEM(<PyObject*>tree, i, <PyObject*>child)
        return tree
    if node.kind == TUPLE:
        tree = PyTuple_New(node.count)
        for i in range(node.count):
            child = build(leaves, &node.children[i], data, n, base)
            Py_INCREF(child)
            PyTuple_SET_ITEM(<PyObject*>tree, i, <PyObject*>child)
        if <PyObject*>tuple != node.type:
            return PyObject_CallObject(<object>node.type, tree)
        return tree
    return None


cdef object new_array(Leaf* leaf, char* data, Py_ssize_t n, object base):
    """Makes one array of `Flattener.arrays`; if `base` is None, numpy allocates and owns its memory."""
    cdef npy_intp shape[MAX_NDIM + 1]
    cdef int ndim = leaf.ndim
    cdef object array
    if n >= 0:
        shape[0] = n
        memcpy(shape + 1, leaf.shape, ndim * sizeof(npy_intp))
        ndim += 1
    else:
        memcpy(shape, leaf.shape, ndim * sizeof(npy_intp))
    if data == NULL and base is not None:
        data = <char*>nowhere
    XINCREF(leaf.dtype)  # NewFromDescr takes it over, also when it fails
    array = PyArray_NewFromDescr(&PyArray_Type, <PyArray_Descr*>leaf.dtype, ndim, shape, NULL,
                                 data, NPY_ARRAY_CARRAY, NULL)
    if base is not None:
        XINCREF(<PyObject*>base)  # SetBaseObject takes it over, also when it fails
        PyArray_SetBaseObject(<PyArrayObject*>array, <PyObject*>base)
    return array
