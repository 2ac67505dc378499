# The wait of one call of a worker. Part of _worker.pyx.

@cython.final
@cython.freelist(8)
cdef class Patience:
    """The wait of one call: gives slices between which it looks for Ctrl-C, writes a line to the log after
    some seconds, and at the end raises the error that says who waits for whom."""

    def __cinit__(self, Worker worker, timeout, str what):
        self.worker, self.what = worker, what
        self.seconds = worker.timeout if timeout is None else timeout
        if not self.seconds >= 0:  # a wait until NaN would never end
            raise ValueError(f"timeout must be at least 0 seconds, not {timeout!r}")
        self.began, self.longest = now_ns() / 1e9, SLICE

    cdef object begun(self):
        """The `Wait`. It is made when it is needed: a worker waits at every send while the learner is slower, and most of these waits end within
        the first slice."""
        if self.wait is None:
            self.wait = Wait(self.seconds, self.began)
        return self.wait

    cdef int64_t next_slice(self) except -1:
        PyErr_CheckSignals()
        cdef double left
        if not self.looked:
            self.looked = True
            if self.seconds > self.longest:
                return <int64_t>(self.longest * 1e9)
        try:
            left = self.begun().look(self.expired, self.so_far)
        except EchoTimeoutError as error:
            # The type says whether there is a learner; the first dial has no connection that could be lost.
            if self.what != "connect" and not self.worker.engine.stats().connected:
                raise ConnectionClosedError(str(error)) from None
            raise
        return <int64_t>(min(self.longest, left) * 1e9) + 1

    def expired(self):
        return f"{self.situation()}; gave up after {shown(self.seconds)} s; {self.advice()}"

    def so_far(self, waited):
        give_up = "; Ctrl-C or close(timeout=) gives up, and loses them" if self.what == "close" else ""
        return f"{self.situation()}{give_up} (for {waited:.0f} s so far)"

    cdef str situation(self):
        cdef EngineStats now = self.worker.engine.stats()
        cdef uint64_t waiting = now.appended - now.acked
        if not now.connected:
            return (
                f"worker {self.worker.name!r} ({self.what}) has no connection to {self.worker.address}"
                f" ({self.worker.why()}); {counted(waiting, 'sample')} {'waits' if waiting == 1 else 'wait'} for it to return"
            )
        if self.what == "weights":
            return f"worker {self.worker.name!r} waits for {self.worker.address} to publish newer weights"
        if self.what.startswith("request"):
            return f"worker {self.worker.name!r} waits for {self.worker.address} to answer {self.what}"
        # Why the learner takes none, only the learner knows: see echo_core.client.explained.
        return f"worker {self.worker.name!r} ({self.what}) waits for the learner at {self.worker.address} to commit {counted(waiting, 'sample')}"

    cdef str advice(self):
        """A hint for the error message: what the user can do after a wait that timed out."""
        if not self.worker.engine.stats().connected:
            return "start the learner, or wait longer (timeout=)"
        return f"see what it does (echoctl top {self.worker.address}), or wait longer (timeout=)"
