# Part of flattener.pyx: the program, which represents the example's containers as a tree of C nodes.

cdef enum:
    LEAF = 0
    DICT = 1
    LIST = 2
    TUPLE = 3
    NONE = 4


cdef bint compile_node(Node* node, object treedef, Py_ssize_t* next_leaf, list owned) except -1:
    """Fills `node` from `treedef`; returns False if it has containers that the program does not know. `owned` keeps alive what nodes point to."""
    cdef Py_ssize_t i, first
    kind = treedef.kind
    if kind == PyTreeKind.LEAF:
        node.kind, node.leaf = LEAF, next_leaf[0]
        next_leaf[0] += 1
        return True
    if kind == PyTreeKind.NONE:
        node.kind = NONE
        return True
    children = treedef.children()
    count = len(children)
    node.children = <Node*>PyMem_Calloc(count + 1, sizeof(Node))
    if node.children == NULL:
        raise MemoryError()
    node.count = count
    place = list(range(count))  # the place among node.children of child i, in optree's order
    if kind == PyTreeKind.DICT:
        node.kind = DICT
        order = dict_order(treedef)
        keys = tuple(key for key, _ in order)
        # The lookup of another type of key could run Python code and change the sample while we read it.
        if not all(type(key) is str or type(key) is int for key in keys):
            return False
        template = dict.fromkeys(keys)
        owned += [keys, template]
        node.keys = <PyObject**>PyMem_Calloc(count + 1, sizeof(PyObject*))
        if node.keys == NULL:
            raise MemoryError()
        node.template = <PyObject*>template
        for i, (key, child) in enumerate(order):
            node.keys[i] = <PyObject*>keys[i]
            place[child] = i
    elif kind == PyTreeKind.LIST:
        node.kind = LIST
    elif kind == PyTreeKind.TUPLE or kind == PyTreeKind.NAMEDTUPLE:
        node.kind = TUPLE
        cls = treedef.type
        owned.append(cls)
        node.type = <PyObject*>cls
    else:
        return False
    for i in range(count):
        if not compile_node(&node.children[<Py_ssize_t>place[i]], children[i], next_leaf, owned):
            return False
    return True


cdef void free_node(Node* node) noexcept:
    cdef Py_ssize_t i
    for i in range(node.count):
        free_node(&node.children[i])
    PyMem_Free(node.children)
    PyMem_Free(node.keys)
