# Part of sample.pyx: the lease, which is the right to read a batch's memory. When the last array of a batch is freed, the lease returns the
# memory to the writers of a stream, or to the next batch of a replay table.
#
# The leases are in one shared object with `Sample`: a learner works on megabytes between two calls of sample(), so this code is out of the
# caches at each call. A shared object of its own cost 100 ns per call, for a batch of 42 leaves.

cdef Flattener COLUMNS = Spec.from_example(
    {"keys": np.uint64(0), "probabilities": np.float64(0), "versions": np.uint64(0), "weights": np.float32(0)}).flattener


@cython.final
@cython.freelist(16)
cdef class StreamLease:
    """The right to read one batch's memory. It is the base object of every array of the batch.

    The buffer goes back to the writers when the last of those arrays (or of the views made from them) is freed. The lease itself keeps the
    store's memory alive, so that it is safe to drop the server while a batch is still in use.
    """

    def __dealloc__(self):
        if self.ring != NULL:
            self.ring.give_back(self.buffer)
            self.ring.release()


cdef StreamLease stream_lease(Ring* ring, int buffer):
    cdef StreamLease lease = StreamLease.__new__(StreamLease)
    ring.retain()
    lease.ring = ring
    lease.buffer = buffer
    return lease


@cython.final
@cython.freelist(16)
cdef class ReplayLease:
    """The right to read one batch's memory, and base object of its arrays: the next batch uses the memory once the last of them is freed."""

    def __dealloc__(self):
        if self.table != NULL:
            self.table.give_back(self.batch)
            self.table.release()

    cdef dict columns(self):
        cdef char* data[4]
        data[0] = <char*>self.batch.keys
        data[1] = <char*>self.batch.probabilities
        data[2] = <char*>self.batch.versions
        data[3] = <char*>self.batch.weights
        return COLUMNS.arrays(data, self.batch.n, self)

    def draw_columns(self) -> dict:
        """Returns `keys`, `probabilities`, `versions` and `weights` as arrays over the batch's memory."""
        return self.columns()

    def copied(self) -> DrawColumnsCopy:
        cdef DrawColumnsCopy copy = DrawColumnsCopy.__new__(DrawColumnsCopy)
        copy.arrays = {name: array.copy() for name, array in self.columns().items()}
        return copy


@cython.final
cdef class DrawColumnsCopy:
    """Copies of a batch's `keys`, `probabilities`, `versions` and `weights`."""

    def draw_columns(self) -> dict:
        return self.arrays

    def copied(self) -> DrawColumnsCopy:
        return self


cdef ReplayLease replay_lease(Table* table, Batch* batch):
    cdef ReplayLease lease = ReplayLease.__new__(ReplayLease)
    table.retain()
    lease.table = table
    lease.batch = batch
    return lease
