# The bytes of weights that a worker has received. Part of _worker.pyx.

cdef class Blob:
    """The payload of one version of weights: read-only bytes, which are freed with the last array that uses them."""

    def __getbuffer__(self, Py_buffer* view, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("weights are read-only; copy what you want to change")
        PyBuffer_FillInfo(
            view, self, <void*>self.blob.payload.data(), self.blob.payload.size(), True, flags
        )
