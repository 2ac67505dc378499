# The learner's end of samples for Python. Part of _ucx.pyx. The code that works without Python is in ucx/intake.hpp.

cdef extern from "ucx/intake.hpp" namespace "echo_rdma" nogil:
    cdef struct IntakeFigures "echo_rdma::Intake::Figures":
        uint64_t committed, inserted, duplicates, bytes, messages, direct, shown
        int64_t waiting_since, heard_at

    cdef cppclass CIntake "echo_rdma::Intake"(Flow):
        CIntake(const echo_capi*, echo_store*, CEngine&, uint64_t, uint64_t, cbool)
        IntakeFigures figures()
        cbool idle()

    void stop_intake(CEngine&, CIntake&, Peer&)


cdef class Intake:
    """Takes the samples that come over `wire` into a store, from now on.

    Args:
        store: PyCapsule "echo_core.store": `sink.labelled` if samples may have labels, which then lie behind the leaves of each; else `sink.native`.
        committed: how many samples of the session are in the store.
        credit_bytes: by how many bytes the worker may be ahead of the store.
        direct: whether large messages are received straight into slots.
    """
    cdef shared_ptr[CIntake] intake
    cdef Wire wire
    cdef object store

    def __cinit__(self, Wire wire, store, uint64_t committed, uint64_t credit_bytes, cbool direct):
        cdef const echo_capi* table = echo_table(ECHO_CAPI_VERSION)
        self.wire = wire
        self.store = store
        self.intake = make_shared[CIntake](table, echo_store_of(store), wire.engine.engine.get()[0], committed, credit_bytes, direct)
        with nogil:
            wire.engine.engine.get().attach(wire.peer.get()[0], <shared_ptr[Flow]>self.intake)

    def __dealloc__(self):
        if self.intake.get() != NULL and self.wire is not None and self.wire.engine.generation != generation:
            leak(self.intake)

    def stop(self) -> None:
        """Commit nothing more, so that `figures` are final, and acknowledge the samples that were committed."""
        with nogil:
            stop_intake(self.wire.engine.engine.get()[0], self.intake.get()[0], self.wire.peer.get()[0])

    @property
    def idle(self) -> bool:
        """Whether no sample that has arrived waits for space."""
        return self.intake.get().idle()

    def figures(self) -> dict[str, int]:
        """committed (of the session), inserted, duplicates, bytes, messages, direct and shown (samples), waiting_since and heard_at
        (CLOCK_MONOTONIC, ns; 0: not waiting, nothing heard)."""
        return self.intake.get().figures()
