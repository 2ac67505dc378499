# A worker's requests that were sent, and their answers. Part of _worker.pyx.

@cython.no_gc  # no object that it refers to can refer to it; if the garbage collector cleared it, it could not withdraw its question
cdef class Question:
    """A request that was sent. Call it once, with a timeout, to wait for the answer. If it is dropped before, the answer is dropped too."""

    def __call__(self, timeout=None):
        cdef Answer answer = Answer.__new__(Answer)
        cdef Worker worker = self.worker
        cdef Patience patience
        cdef int64_t slice_ns
        cdef Status status
        if worker is None or self.over:
            raise ValueError("the answer was taken")
        worker.check()
        patience = Patience(worker, timeout, f"request {self.op!r}")
        if get_ident() != main_thread().ident:
            patience.longest = CALM_SLICE
        self.over = True
        answer.recycled = worker.engine.recycled()
        try:
            while True:
                slice_ns = patience.next_slice()
                with nogil:
                    status = worker.engine.answer(self.number, slice_ns, answer.payload)
                if status == Status.ok:
                    break
                if status == Status.lost:
                    text = f"request {self.op!r} was not answered (it may have been carried out): "
                    if worker.engine.job_ended():
                        error = worker.error(Status.failed)
                        error.args = (f"{text}{error}",)
                        raise error
                    raise ConnectionClosedError(f"{text}{worker.address} was lost: {worker.why()}")
                if status != Status.wait:
                    raise worker.error(status)
        finally:
            worker.engine.forget(self.number)
        return parse_reply(answer)

    def __dealloc__(self):
        if self.worker is not None and not self.over and not self.worker.engine.forked():
            self.worker.engine.forget(self.number)


cdef class Answer:
    """The payload of an answer: read-only bytes. When the last view of them is gone, the next answer may use their memory."""

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, <void*>self.payload.data(), self.payload.size(), True, flags)

    def __len__(self):
        return self.payload.size()

    def __dealloc__(self):
        if self.recycled:
            self.recycled.get().give(move(self.payload))
