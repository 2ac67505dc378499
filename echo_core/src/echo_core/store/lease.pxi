# Part of sample.pyx: the lease, which is the right to read the memory of a stream's batch. When the last array of the batch is freed, the lease
# returns the memory to the writers. Replay tables have a lease of their own (replay/replay_lease.pxi).
#
# The lease is in one shared object with `Sample`: a learner works on megabytes between two calls of sample(), so this code is out of the
# caches at each call. A shared object of its own cost 100 ns per call, for a batch of 42 leaves.

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
