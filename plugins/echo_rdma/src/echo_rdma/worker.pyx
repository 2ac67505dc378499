# The worker's end of samples for Python. Part of _ucx.pyx. The code that works without Python is in ucx/window.hpp.

cdef extern from "ucx/window.hpp" namespace "echo_rdma" nogil:
    cdef struct WindowFigures "echo_rdma::Window::Figures":
        uint64_t taken, acknowledged, blocked, bytes, messages

    cdef cppclass CWindow "echo_rdma::Window"(Flow):
        CWindow(const vector[uint64_t]&, uint64_t, uint64_t)
        int take(const void**, uint64_t, int64_t, const char*)
        cbool expect_labels()
        cbool labelled()
        string leftovers() except +
        cbool has_room(uint64_t)
        void stop()
        void watch(int)
        cbool wait_sent(uint64_t, int64_t)
        WindowFigures figures()
        void attach(CEngine*)
        void detach()
        cbool resume(uint64_t, uint64_t, cbool)

    int WINDOW_FULL "echo_rdma::Window::FULL"
    int WINDOW_TAKEN "echo_rdma::Window::TAKEN"
    int WINDOW_NO_MEMORY "echo_rdma::Window::NO_MEMORY"

cdef enum:
    FEW = 64                # the addresses of so many leaves fit on the stack
    LABEL_BYTES = 16        # of one sample; see echo_core.wire.labels
    GIL_BYTES = 32768       # copies larger than this are done without the GIL
    PATIENCE_NS = 2000000   # how long a call waits for room in native code before it waits where it can be interrupted


@cython.final
cdef class Window:
    """Keeps samples until they are acknowledged, as `echo_net.channel.window.SampleWindow` describes, for samples that the engine sends.

    Args:
        spec: of the samples.
        most: the most unacknowledged samples; at this bound `send` waits.
        chunk_bytes: approximate size of the memory blocks.

    Attributes:
        message_bytes: the most bytes of one message, from the next `resume` on.
        near: whether the learner is on this machine. It then reads samples in place, if UCX has memory for that.
    """
    cdef shared_ptr[CWindow] window
    cdef Engine engine  # the window wakes it, so it must stay until another engine is attached, even if its connection has ended
    cdef object spec, slow, slow_batch
    cdef list spare
    cdef Py_ssize_t leaves, sample_bytes
    cdef int generation
    cdef readonly bint small
    cdef public uint64_t message_bytes
    cdef public bint near

    def __cinit__(self, spec, uint64_t most, uint64_t chunk_bytes):
        cdef vector[uint64_t] sizes
        for leaf in spec.leaves:
            sizes.push_back(leaf.nbytes)
        self.spec = spec
        self.leaves = sizes.size()
        self.sample_bytes = spec.sample_bytes
        self.window = make_shared[CWindow](sizes, most, chunk_bytes)
        self.generation = generation
        self.small = True  # the gatherer takes samples of every size
        self.spare = []

    def __dealloc__(self):
        if self.window.get() != NULL and self.generation != generation:
            leak(self.window)

    def connect(self, slow, slow_batch):
        """Set the functions that are called for samples and batches `(samples, timeout, labels)` that find no room soon. They are held weakly."""
        self.slow, self.slow_batch = slow, slow_batch

    # ---- samples

    def expect_labels(self) -> bool:
        """Send each sample with labels from now on (echo_core/wire/labels.py). Returns False if samples were taken without room for them."""
        return self.window.get().expect_labels()

    def send(self, sample, timeout=None, label=None):
        """See `echo_core.wire.transport.Connection.send`."""
        if self.take(sample, label) != WINDOW_TAKEN:
            call(self.slow)(sample, timeout, label)

    def send_batch(self, samples, timeout=None, bytes labels=None):
        """See `echo_core.wire.transport.Connection.send_batch`."""
        cdef const void* few[FEW]
        cdef vector[const void*] many
        cdef const void** out = few
        cdef list keep = []
        cdef Py_ssize_t n
        cdef const char* given
        cdef int status = WINDOW_FULL
        if self.generation == generation:
            if self.leaves > FEW:
                many.resize(self.leaves)
                out = many.data()
            n = echo_batch_pointers(self.spec, samples, out, keep)
            if n == 0:
                return
            given = checked(labels, n)
            with nogil:
                status = self.window.get().take(out, n, PATIENCE_NS, given)
            if status == WINDOW_NO_MEMORY:
                raise MemoryError()
        if status != WINDOW_TAKEN:
            call(self.slow_batch)(samples, timeout, labels)

    def take(self, sample, bytes label=None) -> int:
        """Copy one sample, with its labels if it has some. Returns 1 if it was taken, 0 if there was no room even after a moment. Raises SpecError."""
        cdef const void* few[FEW]
        cdef vector[const void*] many
        cdef const void** out = few
        cdef list keep
        cdef int status
        cdef const char* labels = checked(label, 1)
        if self.generation != generation:
            return 0
        if self.leaves > FEW:
            many.resize(self.leaves)
            out = many.data()
        # Another thread may enter this method while optree or numpy run Python code for this one.
        keep, self.spare = self.spare, None
        if keep is None:
            keep = []
        if self.sample_bytes <= GIL_BYTES:
            echo_leaf_pointers(self.spec, sample, out, keep)
            status = self.window.get().take(out, 1, 0, labels)
            if status == WINDOW_TAKEN:
                if keep:
                    keep.clear()
                self.spare = keep
                return 1
            keep.clear()
        # Without the GIL, another thread could take an array out of the sample and free the memory that is being copied.
        echo_leaf_pointers_held(self.spec, sample, out, keep)
        with nogil:
            status = self.window.get().take(out, 1, PATIENCE_NS, labels)
        keep.clear()
        self.spare = keep
        if status == WINDOW_NO_MEMORY:
            raise MemoryError()
        return status == WINDOW_TAKEN

    def add(self, Py_ssize_t count, data, bytes labels=None) -> None:
        """Take `count` samples with their labels, given leaf after leaf. The caller has already waited for room."""
        cdef vector[const void*] out
        cdef const unsigned char[::1] view = data
        cdef const char* at = <const char*>&view[0] if view.shape[0] else NULL
        cdef int status
        cdef const char* given = checked(labels, count)
        for leaf in self.spec.leaves:
            out.push_back(at)
            at += count * <Py_ssize_t>leaf.nbytes
        with nogil:
            status = self.window.get().take(out.data(), count, -1, given)
        if status != WINDOW_TAKEN:
            raise MemoryError() if status == WINDOW_NO_MEMORY else ClosedError("this connection is closed")

    # ---- the interface of a window that the uplink uses

    def lent(self) -> str:
        """This window cannot lend rows: see `RdmaConnection.reserve`."""
        return ""

    @property
    def taken(self) -> int:
        return self.window.get().figures().taken if self.generation == generation else 0

    @property
    def acknowledged(self) -> int:
        return self.window.get().figures().acknowledged if self.generation == generation else 0

    def has_room(self, uint64_t count) -> bool:
        return self.window.get().has_room(count)

    def next_frame(self) -> None:
        """Always None, because samples do not travel over the stream."""

    def acknowledge(self, number) -> None:
        """The engine has already done this; the uplink now wakes the callers that wait for it."""

    def resume(self, uint64_t number) -> None:
        if not self.window.get().resume(number, self.message_bytes, self.near):
            raise ProtocolError(
                f"the learner has {number} samples of this client, which sent fewer or knows more to be committed; is its client_id used twice?"
            )

    def leftovers(self) -> list:
        """After `stop`: the samples that are not acknowledged, as `Connection.leftovers` returns them."""
        cdef cbool labelled = self.window.get().labelled()
        cdef string rows = self.window.get().leftovers()
        count = self.taken - self.acknowledged
        if not count:
            return []
        table = np.frombuffer(<bytes>rows, np.uint8).reshape(count, -1)
        columns, start = [], 0
        for size in (*(leaf.nbytes for leaf in self.spec.leaves), *((LABEL_BYTES,) if labelled else ())):
            columns.append(table[:, start:start + size].tobytes())
            start += size
        return [(count, b"".join(columns), labelled)]

    def stop(self) -> None:
        """Take no more samples. Samples that are being copied are taken when this returns."""
        if self.generation == generation:
            with nogil:
                self.window.get().stop()

    # ---- further methods

    def attach(self, Wire wire) -> None:
        """Send samples over `wire` from now on; `resume` begins it."""
        self.window.get().attach(wire.engine.engine.get())
        self.engine = wire.engine  # the earlier engine may be freed only now
        with nogil:
            wire.engine.engine.get().attach(wire.peer.get()[0], <shared_ptr[Flow]>self.window)

    def detach(self) -> None:
        if self.generation == generation:
            self.window.get().detach()
        self.engine = None

    def watch(self, int change) -> None:
        """While anyone watches, acknowledgements are also passed to the reader of the stream."""
        self.window.get().watch(change)

    def wait_sent(self, uint64_t number, double seconds) -> bool:
        """Wait until so many samples have been handed to the network."""
        cdef cbool sent
        cdef int64_t ns = <int64_t>(seconds * 1e9)
        with nogil:
            sent = self.window.get().wait_sent(number, ns)
        return sent

    def figures(self) -> dict[str, int]:
        """taken, acknowledged, blocked (calls that found it full), bytes and messages sent."""
        return self.window.get().figures()


cdef const char* checked(bytes labels, Py_ssize_t count) except? NULL:
    if labels is None:
        return NULL
    if len(labels) != count * LABEL_BYTES:
        raise ValueError(f"the labels of {count} samples have {count * LABEL_BYTES} bytes, not {len(labels)}")
    return PyBytes_AS_STRING(labels)


cdef object call(object reference):
    target = reference() if reference is not None else None
    if target is None:
        raise ClosedError("this connection is closed")
    return target
