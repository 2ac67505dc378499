# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""The worker's end of TCP for Python: `Worker` wraps the native engine of worker/engine.hpp.

This module does the work that needs Python: it finds a sample's bytes, turns results of the engine
into exceptions, and looks for Ctrl-C while the engine waits. `echo_tcp.uplink` dials and makes the
handshake. Every wait of the engine runs without the GIL. A send of a small sample keeps the GIL,
because to release it and take it again would cost more than the copy.
"""
from threading import get_ident, main_thread

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_CheckSignals
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libcpp.utility cimport move

from echo_core.store.door.capi cimport echo_batch_pointers, echo_leaf_pointers

from echo_core.base.errors import (
    ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, ForkError, JobEnded, ProtocolError,
)
from echo_core.base.plural import counted
from echo_core.base.waiting import CLOSE_LOG_AFTER, Wait, logged_after, shown
from echo_core.wire.weights import PACKED, learner_of, unpack, verify
from echo_core.wire.protocol import pack_request, parse_reply

cdef enum:
    FEW = 64  # the addresses of so many leaves fit on the stack

cdef double SLICE = 0.03      # seconds a wait may take before it looks for Ctrl-C, which must be answered within 0.1 s
cdef double CALM_SLICE = 1.0  # the same on threads that get no Ctrl-C and wait for something that need not come soon

LINK_LOST = 1
WEIGHTS_HERE = 2
OVER = 4

include "worker/wire_format.pxi"

watch_forks()


cdef const char* checked(bytes labels, Py_ssize_t count) except? NULL:
    if labels is None:
        return NULL
    if len(labels) != count * <Py_ssize_t>LABEL_BYTES:
        raise ValueError(f"the labels of {counted(count, 'sample')} have {count * LABEL_BYTES} bytes, not {len(labels)}")
    return PyBytes_AS_STRING(labels)


cdef class Worker:
    """One session with a learner, across links. Thread-safe.

    Args:
        spec: of the samples.
        name, address: shown to people.
        timeout: seconds, the default of every wait.
        window_bytes, max_inflight_msgs: the most samples kept until they are acknowledged, in bytes and in number. Three samples always fit in.
        coalesced_bytes: size of the samples that are gathered into one frame while the link is busy.
        silence: seconds after which a peer from which nothing comes counts as gone.
        original: speak the protocol of the first Echo.
    """

    def __cinit__(
        self,
        object spec,
        str name,
        str address,
        double timeout,
        *,
        uint64_t window_bytes,
        uint64_t max_inflight_msgs,
        uint64_t coalesced_bytes,
        double silence,
        bint original=False,
    ):
        cdef vector[uint64_t] leaf_bytes
        cdef EngineConfig config
        for leaf in spec.leaves:
            leaf_bytes.push_back(leaf.nbytes)
        config.original = original
        config.block_bytes = coalesced_bytes
        config.window_bytes = window_bytes
        config.window_samples = max_inflight_msgs
        config.silence_ms = <uint32_t>(silence * 1000)
        self.spec, self.flattener = spec, spec.flattener
        self.name, self.address, self.timeout = name, address, timeout
        self.original = original
        self.shown = -1
        self.lives = 0
        self.count = leaf_bytes.size()
        self.engine = new Engine(leaf_bytes, config)
        self.small = self.engine.small()

    def __dealloc__(self):
        if self.engine == NULL:
            return
        if self.engine.forked():
            self.engine.leave_to_parent()
            return
        with nogil:
            del self.engine

    # --- samples --------------------------------------------------------------------------------

    def send(self, sample, timeout=None, bytes label=None):
        """See `echo_core.wire.transport.Connection.send`."""
        cdef const void* few[FEW]
        cdef const void** leaves
        cdef const char* labels = NULL
        if label is not None:  # a call would look for an error after each sample without labels
            labels = checked(label, 1)
        if self.count <= FEW:
            self.take(sample, few, timeout, labels)
            return
        leaves = <const void**>PyMem_Malloc(self.count * sizeof(void*))
        if leaves == NULL:
            raise MemoryError()
        try:
            self.take(sample, leaves, timeout, labels)
        finally:
            PyMem_Free(leaves)

    cdef int take(self, object sample, const void** leaves, object timeout, const char* labels) except -1:
        cdef Status status
        cdef list keep
        if self.engine.forked():
            self.check()
        if self.small:
            # Another thread may enter this method while optree or numpy run Python code for this one.
            keep, self.spare = self.spare, None
            if keep is None:
                keep = []
            echo_leaf_pointers(self.spec, sample, leaves, keep)
            status = self.engine.put_one(leaves, labels)
            if keep:
                keep.clear()
            self.spare = keep
            if status == Status.ok:
                return 0
            if status == Status.due:
                with nogil:
                    self.engine.pump()
                return 0
            if status != Status.wait:
                raise self.error(status)
        # Without the GIL the arrays must be kept alive: another thread may take them out of the sample, and so may Python
        # code that converts one of them. So their addresses come from a tree that belongs to this call alone.
        held = self.flattener.unflatten(self.flattener.flatten(sample))
        keep = []
        echo_leaf_pointers(self.spec, held, leaves, keep)
        return self.put(leaves, 1, timeout, labels)

    def send_batch(self, samples, timeout=None, bytes labels=None):
        """See `echo_core.wire.transport.Connection.send_batch`."""
        cdef const void* few[FEW]
        cdef const void** leaves = few
        cdef list keep = []
        cdef Py_ssize_t n
        if self.engine.forked():
            self.check()
        if self.count > FEW:
            leaves = <const void**>PyMem_Malloc(self.count * sizeof(void*))
            if leaves == NULL:
                raise MemoryError()
        try:
            n = echo_batch_pointers(self.spec, samples, leaves, keep)
            if n:
                self.put(leaves, n, timeout, checked(labels, n))
        finally:
            if leaves != few:
                PyMem_Free(leaves)

    cdef int put(self, const void** leaves, uint64_t n, object timeout, const char* labels) except -1:
        cdef Patience patience = None
        cdef int64_t slice_ns = 0
        cdef bint again = False
        cdef Status status
        while True:
            with nogil:
                status = self.engine.put(leaves, n, slice_ns, again, labels)
            if status == Status.ok:
                return 0
            if status != Status.wait:
                raise self.error(status)
            if patience is None:
                patience = Patience(self, timeout, "send")
            slice_ns = patience.next_slice()
            again = True

    def flush(self, timeout=None):
        """See `echo_core.wire.transport.Connection.flush`."""
        self.check()
        self.until(FLUSHED, self.engine.appended(), Patience(self, timeout, "flush"))

    def wait(self, timeout=None):
        """See `echo_core.wire.transport.Connection.wait`."""
        self.check()
        self.until(ACKNOWLEDGED, self.engine.appended(), Patience(self, timeout, "wait"))

    # --- weights and requests -------------------------------------------------------------------

    def weights(self, timeout=None, newer_than=None, like=None):
        """See `echo_core.wire.transport.Connection.weights`."""
        cdef Patience patience = None
        cdef uint64_t holds
        cdef bint told = False
        self.check()
        self.only_echo2("weights()")
        with nogil:
            self.engine.subscribe()
        try:
            while True:
                holds = self.engine.holds()
                newest = self.newest
                if newest is not None and self.newer(newest[0], newest[4], newer_than):
                    self.shown = newest[4]
                    return unpack(newest[1], newest[2], like, proven=newest[3])
                if patience is None:
                    patience = Patience(self, timeout, "weights")
                    told = patience.seconds > 0 and like is not PACKED  # a server that passes weights on waits all the time
                    if told:
                        with nogil:
                            self.engine.waits_for_weights(True)
                self.until(HELD, holds, patience)
        finally:
            if told:
                with nogil:
                    self.engine.waits_for_weights(False)

    def newer(self, version, life, than):
        """Whether `version` of the learner number `life`, the newest here, is newer than `than`. Another learner counts anew. Then every
        version other than `than` is new, and `than` itself is new unless a caller already got it."""
        if than is None or version > than:
            return True
        if self.shown not in (-1, life):
            return True
        return version != than and self.engine.stats().counters.restarts + self.lives > 0

    def accept_weights(self):
        """Verify the weights that have arrived and show them to callers. Called by the uplink."""
        cdef Blob blob = Blob()
        cdef uint64_t version, digest
        if not self.engine.take_weights(blob.blob):
            return
        version = blob.blob.version
        meta = <bytes>blob.blob.meta
        try:
            digest = verify(meta, blob, version)
        except ProtocolError as error:
            self.engine.damaged(str(error).encode())
            return
        # The weights cannot belong to a later link, because this same thread also attaches links.
        numbered_by = learner_of(meta) or str(self.engine.stats().counters.restarts)
        if self.numbered_by not in (None, numbered_by):
            self.lives += 1
        self.numbered_by = numbered_by
        self.newest = (version, meta, blob, digest, self.lives)
        with nogil:
            self.engine.hold(version, digest)

    def ask(self, op, body, blob=b""):
        """See `echo_core.wire.transport.Connection.ask`."""
        cdef string payload
        cdef Question question = Question.__new__(Question)
        self.check()
        self.only_echo2("request()")
        payload = pack_request(op, body, blob)
        with nogil:
            question.number = self.engine.ask(payload)
        question.worker, question.op = self, op
        return question

    def request(self, op, body, blob=b"", timeout=None):
        """See `echo_core.wire.transport.Connection.request`."""
        body, answer = self.ask(op, body, blob)(timeout)
        return body, bytes(answer)

    def only_echo2(self, what):
        if self.original:
            raise EchoError(
                f"{what}: the original protocol carries samples only; connect with "
                "protocol='echo2' to a learner that speaks it"
            )

    # --- calls of the uplink --------------------------------------------------------------------

    def attach(self, sock, bytes rest, double beat, bint restarted):
        """Go on over `sock`, after its handshake; False if the session has ended. Takes the descriptor. `beat`: seconds between signs of life."""
        cdef int fd = sock.fileno()
        sockets_of_ours.add(fd)  # before the detach: if another thread forks now, the socket is in one of the two sets
        sock.detach()
        return self.engine.attach(fd, rest, <uint32_t>max(1.0, min(beat, 1e6) * 1000), restarted)

    def wait_event(self, double seconds):
        """Wait for events: a set of LINK_LOST, WEIGHTS_HERE and OVER; 0 if none came in time."""
        cdef unsigned events
        cdef int64_t slice_ns = <int64_t>(seconds * 1e9)
        with nogil:
            events = self.engine.wait_event(slice_ns)
        return events

    def wait_linked(self, double seconds):
        """Wait until samples can flow. Raises the error that ended the connection, or EchoTimeoutError."""
        self.until(LINKED, 0, Patience(self, seconds, "connect"))

    def fail(self, str why, bint broken_format=False):
        """There will be no further link: every call raises from now on."""
        self.engine.fail(why.encode(), broken_format)

    def end_job(self):
        """The learner has ended the job: every call raises JobEnded from now on."""
        self.engine.end_job()

    def base(self):
        """How many samples of the session are known to be committed."""
        return self.engine.base()

    def why(self):
        """Why the last link was lost."""
        return self.engine.why().decode("utf-8", "replace")

    def broken(self):
        """What the learner broke on the last link, and how much of it arrived whole over all links, as `BrokenLinks.believed` takes them.
        None if the link was lost for another reason."""
        cdef EngineStats now = self.engine.stats()
        if not self.engine.broken_format():
            return None
        return ("weights", now.holds) if self.engine.broken_weights() else ("messages", now.acked + now.holds + now.counters.answers)

    # --- statistics, and the end ----------------------------------------------------------------

    def stats(self):
        """See `echo_core.wire.transport.Connection.stats`."""
        if self.engine.forked():
            self.check()
        cdef EngineStats now = self.engine.stats()
        return {
            "samples": now.appended,
            "acknowledged": now.acked,
            "unacknowledged": now.appended - now.acked,
            "bytes_sent": now.counters.bytes_sent,
            "bytes_received": now.counters.bytes_received,
            "frames_sent": now.counters.frames_sent,
            "connected": now.connected,
            "reconnects": max(0, <int64_t>now.counters.links - 1),
            "learner_restarts": now.counters.restarts,
            "window_bytes_used": now.window_bytes,
            "send_blocked": now.counters.send_blocked,
            "blocked_seconds": now.counters.blocked_ns * 1e-9,
            "weights_version": 0 if self.newest is None else self.newest[0],  # the version that callers see
            "weights_received": now.holds,
            "ack_rtt_p50_ns": now.rtt_p50,
            "ack_rtt_p99_ns": now.rtt_p99,
        }

    def close(self, timeout=None):
        """See `echo_core.wire.transport.Connection.close`."""
        cdef uint64_t missing
        cdef Patience patience
        if self.engine.forked():
            return
        if self.closed:
            untold, self.untold = self.untold, None
            if untold is not None:
                raise untold
            return
        patience = Patience(self, timeout, "close")  # first: an invalid timeout closes nothing
        self.closed = True
        end_is_told = self.end_is_told
        error = None
        told = False
        try:
            try:
                with nogil:
                    self.engine.begin_close()
                try:
                    with logged_after(CLOSE_LOG_AFTER):
                        self.until(ACKNOWLEDGED, self.engine.appended(), patience)
                except EchoError as failure:
                    error = failure
                with nogil:
                    self.engine.part(b"closed")
                try:
                    self.until(PARTED, 0, Patience(self, patience.begun().farewell(), "close"))
                except EchoError:
                    pass  # the learner will see the end of the stream instead
            finally:
                with nogil:
                    self.engine.stop()
            told = True
        finally:
            missing = self.engine.stats().appended - self.engine.stats().acked
            if not told and missing:  # Ctrl-C
                self.untold = ConnectionClosedError(f"closed with {self.spec.counted(missing)} not acknowledged: close() was interrupted")
        if isinstance(error, JobEnded):
            if not end_is_told:
                raise error
        elif error is not None:
            kind = EchoTimeoutError if isinstance(error, EchoTimeoutError) else ConnectionClosedError
            raise kind(f"closed with {self.spec.counted(missing)} not acknowledged: {error}") from error

    @property
    def is_closed(self):
        return self.closed or self.engine.forked()

    def leftovers(self):
        """See `echo_core.wire.transport.Connection.leftovers`."""
        cdef Leftover some
        cdef uint64_t done = 0
        cdef list out = []
        if self.original:
            raise EchoError("the original protocol numbers no samples, so nobody knows which ones were delivered; connect with protocol='echo2'")
        while True:
            some = self.engine.leftover(done)
            if some.count == 0:
                return out
            out.append((some.count, <bytes>some.payload, some.labelled))
            done += some.count

    @property
    def job_ended(self):
        return not self.engine.forked() and self.engine.job_ended()

    @property
    def forked(self):
        return self.engine.forked()

    # --- waiting --------------------------------------------------------------------------------

    cdef int until(self, Goal goal, uint64_t number, Patience patience) except -1:
        cdef int64_t slice_ns = 0
        cdef Status status
        while True:
            with nogil:
                if goal == FLUSHED:
                    status = self.engine.flushed(number, slice_ns)
                elif goal == ACKNOWLEDGED:
                    status = self.engine.acknowledged(number, slice_ns)
                elif goal == HELD:
                    status = self.engine.held(number, slice_ns)
                elif goal == LINKED:
                    status = self.engine.linked(slice_ns)
                else:
                    status = self.engine.parted(slice_ns)
            if status == Status.ok:
                return 0
            if status != Status.wait:
                raise self.error(status)
            slice_ns = patience.next_slice()

    cdef int check(self) except -1:
        if self.engine.forked():
            raise ForkError(
                f"this connection to {self.address} was made before the fork and its thread "
                "stayed in the parent; make a new Client in the child"
            )
        cdef Status status = self.engine.state()
        if status != Status.ok:
            raise self.error(status)
        return 0

    cdef object error(self, Status status):
        if status == Status.closed:
            return ClosedError(f"worker {self.name!r}: the connection to {self.address} is closed")
        if self.engine.job_ended():
            self.end_is_told = True
            missing = self.engine.stats().appended - self.engine.stats().acked
            return JobEnded.at(self.address, missing, self.spec.counted(missing))
        if self.engine.broken_format():
            return ProtocolError(f"{self.address} is no usable learner: {self.why()}")
        return ConnectionClosedError(f"worker {self.name!r} lost {self.address}: {self.why()}")


include "worker/patience.pxi"
include "worker/answers.pxi"
include "worker/weights_payload.pxi"
