# Part of replay_info.pyx: the right to read the memory of a replay table's batch, and the columns that come with it.

cdef Flattener COLUMNS = Spec.from_example(
    {"keys": np.uint64(0), "probabilities": np.float64(0), "versions": np.uint64(0), "weights": np.float32(0)}).flattener


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
