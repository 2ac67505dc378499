# cython: language_level=3, boundscheck=False, wraparound=False
"""The learner's data plane for Python: a thin wrapper around learner/learner.hpp."""
from __future__ import annotations

from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.math cimport INFINITY
from libc.string cimport memcpy
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr, unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.utility cimport move
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, echo_capi, echo_store, echo_store_of, echo_table

cdef extern from "learner/learner.hpp" namespace "echo_tcp::learner" nogil:
    int64_t clock_ns()

    cdef cppclass Descriptors:
        void add(int)

    Descriptors sockets_of_ours "echo_tcp::sockets_of_ours"

    cdef cppclass ClientId:
        unsigned char* data()

    cdef cppclass NewPeer:
        int fd
        ClientId client
        uint64_t base
        cbool echo1
        cbool observer
        int64_t beat_ns
        string unsent
        string leftover

    cdef cppclass Event:
        int kind
        uint64_t peer
        uint64_t number
        uint64_t digest
        string text

    cdef cppclass Request:
        uint64_t group, client, number
        string payload
        cbool alone

    cdef cppclass CRequests "echo_tcp::learner::Requests":
        CRequests() except +
        optional[Request] take()
        cbool done(uint64_t, uint64_t)
        cbool has(uint64_t, uint64_t)
        void end()

    cdef struct PeerRow:
        uint64_t key, samples, bytes, version, digest, partial, read_at, parked_at, wanted_at, sampled_at

    cdef struct HeldRow:
        uint64_t key, bytes, version, version_bytes

    cdef struct TotalsRow:
        uint64_t samples, duplicates, bytes_received, bytes_sent, frames, direct_frames, parked, evicted
        uint64_t staged_bytes, protocol_errors, acks, weights_sent, rounds, active, waiting

    cdef cppclass Learner:
        Learner(const echo_capi*, echo_store*, unsigned, uint64_t, int64_t, shared_ptr[CRequests], uint64_t, echo_store*) except +
        int events_fd()
        vector[Event] take_events() except +
        uint64_t add(NewPeer) except +
        void begin(uint64_t) except +
        void forget(uint64_t)
        uint64_t new_ticket()
        string frame_for(uint64_t, size_t) except +
        void reply(uint64_t, string, cbool) except +
        void parked(uint64_t) except +
        void refuse(uint64_t, string) except +
        void evict(uint64_t, string) except +
        void ping(uint64_t) except +
        uint64_t heard_at(uint64_t)
        void publish(uint64_t, uint64_t, string, const char*, uint64_t, uint64_t) except +
        void withdraw() except +
        vector[PeerRow] peers() except +
        void tell_when_holding()
        vector[HeldRow] held() except +
        TotalsRow totals()
        void stop(int64_t, string, uint8_t)

# Event kinds, as in learner/events.hpp.
ADDED = 0
LOST = 1
RECEIPT = 2
HOLDING = 4
cdef enum:
    RELEASED = 3  # handled here


cdef class RequestQueue:
    """Requests of clients, from the loops of a listener to the threads that carry them out. Every method may be called from any thread."""
    cdef shared_ptr[CRequests] requests

    def __cinit__(self):
        self.requests = make_shared[CRequests]()

    def take(self) -> tuple[int, int, int, bytes, bool] | None:
        """Wait for the next request: (group of loops, key of the client, number, payload, alone). The caller carries it out and then calls `done`.
        The requests of one client come one after another. `alone`: no other thread waits. None: `end` was called and no request is left."""
        cdef optional[Request] request
        with nogil:
            request = self.requests.get().take()
        if not request.has_value():
            return None
        return request.value().group, request.value().client, request.value().number, <bytes>request.value().payload, request.value().alone

    def done(self, uint64_t group, uint64_t client) -> bool:
        """The request of this client that was taken is carried out. Returns whether more of its requests wait."""
        return self.requests.get().done(group, client)

    def has(self, uint64_t group, uint64_t client) -> bool:
        """Whether requests of this client wait or are being carried out."""
        return self.requests.get().has(group, client)

    def end(self) -> None:
        """Let `take` return None once no request is left."""
        self.requests.get().end()


cdef class _Payload:
    """Keeps the memory of one published version alive and in place."""
    cdef Py_buffer view
    cdef cbool held

    def __cinit__(self, payload):
        PyObject_GetBuffer(payload, &self.view, PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class NativeLearner:
    """Loops that read authenticated sockets into a store.

    Args:
        store, labelled: PyCapsules "echo_core.store" (`sink.native`, `sink.labelled`); the latter may be None.
        threads: number of loops, each with one thread; a client is always served by the same loop.
        staging_bytes: memory of each loop for large frames that cannot go straight into slots.
        silence: seconds without a byte after which a client counts as lost.
        requests: where the clients' requests go.
        group: the number of these loops in `requests`.

    Every method may be called from any thread.
    """
    cdef unique_ptr[Learner] learner
    cdef dict payloads  # ticket -> _Payload that a loop may still be sending

    def __cinit__(self, store, labelled, unsigned threads, uint64_t staging_bytes, double silence, RequestQueue requests, uint64_t group):
        cdef const echo_capi* table = echo_table(ECHO_CAPI_VERSION)
        cdef echo_store* native = echo_store_of(store)
        cdef echo_store* with_labels = NULL
        if labelled is not None:
            with_labels = echo_store_of(labelled)
        self.payloads = {}
        self.learner.reset(new Learner(table, native, threads, staging_bytes, <int64_t>(silence * 1e9), requests.requests, group, with_labels))

    def __dealloc__(self):
        # Joins the threads without a goodbye to the peers, which is the task of stop().
        with nogil:
            self.learner.reset()

    def fileno(self) -> int:
        """Readable while there are events to take."""
        return self.learner.get().events_fd()

    def add(self, sock, bytes client, uint64_t base, *, cbool echo1, cbool observer, bytes unsent, bytes leftover, double beat) -> int:
        """Hand over a connected, non-blocking socket. It is detached, and the loop owns it from now on. Its first event is `ADDED`.

        Args:
            client: 16 bytes, the same for every connection of a session.
            base: number of samples of the session that the client knows to be committed.
            echo1: whether it speaks the original protocol.
            observer: whether samples that it sends break the protocol.
            beat: seconds after which a sign of life is due; infinite: never.
            unsent, leftover: bytes of the handshake that are still to be sent, and bytes that came after the handshake.

        Returns:
            the key under which events name the connection.
        """
        if len(client) != 16:
            raise ValueError(f"a client id has 16 bytes, not {len(client)}")
        cdef NewPeer peer
        peer.fd = sock.fileno()
        sockets_of_ours.add(peer.fd)  # before the detach: if another thread forks now, the socket is in one of the two sets
        sock.detach()
        memcpy(peer.client.data(), <const char*>client, 16)
        peer.base = base
        peer.echo1 = echo1
        peer.observer = observer
        peer.beat_ns = 0 if beat > 1e6 else <int64_t>(beat * 1e9) + 1
        peer.unsent = unsent
        peer.leftover = leftover
        return self.learner.get().add(move(peer))

    def take_events(self) -> list[tuple[int, int, int, int, bytes]]:
        """All events since the last call, in order: (kind, key, number, digest, text).

        `ADDED`: the connection is served after `begin` is called. `LOST`: text is the reason, and number is 1 if the peer broke the protocol.
        `RECEIPT`: number is the version. `HOLDING`: see `tell_when_holding`; it belongs to no connection.
        """
        cdef vector[Event] events = self.learner.get().take_events()
        cdef size_t i
        out = []
        for i in range(events.size()):
            if <int>events[i].kind == RELEASED:
                self.payloads.pop(events[i].number, None)
            else:
                out.append((events[i].kind, events[i].peer, events[i].number, events[i].digest, <bytes>events[i].text))
        return out

    def begin(self, uint64_t key) -> None:
        """Serve a connection whose `ADDED` event was handled."""
        self.learner.get().begin(key)

    def forget(self, uint64_t key) -> None:
        """Drop the figures of a connection whose `LOST` event was handled."""
        self.learner.get().forget(key)

    def parked(self, uint64_t key) -> None:
        """A request of this connection is answered later. Until then, it does not count against what the connection may ask."""
        self.learner.get().parked(key)

    def reply(self, uint64_t key, list pieces, cbool late=False) -> None:
        """Answer a request with a whole frame, given as consecutive buffers; `late` says whether `parked` was called for it. Does nothing if
        the connection is gone."""
        cdef string frame = self.learner.get().frame_for(key, sum(map(len, pieces)))
        cdef Py_buffer view
        for piece in pieces:
            PyObject_GetBuffer(piece, &view, PyBUF_SIMPLE)
            try:
                frame.append(<const char*>view.buf, <size_t>view.len)
            finally:
                PyBuffer_Release(&view)
        self.learner.get().reply(key, move(frame), late)

    def refuse(self, uint64_t key, bytes reason) -> None:
        """End a connection that broke the protocol."""
        self.learner.get().refuse(key, reason)

    def evict(self, uint64_t key, bytes reason) -> None:
        """End a connection that has done nothing wrong."""
        self.learner.get().evict(key, reason)

    def ping(self, uint64_t key) -> None:
        """Send a PING, which the worker answers."""
        self.learner.get().ping(key)

    def heard_at(self, uint64_t key) -> float:
        """When the last byte came (`time.monotonic()`); infinite while the connection is not read: it waits for space, or is not served yet."""
        cdef uint64_t ns = self.learner.get().heard_at(key)
        return ns / 1e9 if ns else INFINITY

    def publish(self, uint64_t version, uint64_t digest, bytes meta, payload) -> None:
        """Offer a version to every subscriber. `payload` (a contiguous buffer) is referred to, not copied."""
        cdef _Payload held = _Payload(payload)
        cdef uint64_t ticket = self.learner.get().new_ticket()
        self.payloads[ticket] = held
        cdef string head = len(meta).to_bytes(4, "little") + meta
        self.learner.get().publish(version, digest, head, <const char*>held.view.buf, <uint64_t>held.view.len, ticket)

    def withdraw(self) -> None:
        """Offer nothing until the next `publish`. The payload is released soon, unless it is being sent."""
        self.learner.get().withdraw()

    def peers(self) -> list[dict[str, int]]:
        """One row for each connection: key, samples, bytes, version, digest, partial, read_at, parked_at, wanted_at and sampled_at (CLOCK_MONOTONIC, ns)."""
        cdef vector[PeerRow] rows = self.learner.get().peers()
        return [row for row in rows]

    def tell_when_holding(self) -> None:
        """Ask for one event `HOLDING` as soon as `held` has something to report. It is asked for at first, and again after each call of this."""
        self.learner.get().tell_when_holding()

    def held(self) -> list[dict[str, int]]:
        """Connections for which 16 KiB or more are held beside samples, or to which weights are on their way: key, bytes, version (of the
        weights; 0: none) and version_bytes."""
        cdef vector[HeldRow] rows = self.learner.get().held()
        return [row for row in rows]

    def totals(self) -> dict[str, int]:
        """Counters, summed over all loops."""
        return self.learner.get().totals()

    def stop(self, double seconds, bytes reason, uint8_t flags) -> None:
        """Commit all samples that have arrived as a whole, say goodbye to all peers for at most `seconds`, by a BYE frame with this reason and these
        flags, and end the threads. Idempotent."""
        cdef string farewell = reason
        cdef int64_t deadline = clock_ns() + <int64_t>(seconds * 1e9)
        with nogil:
            self.learner.get().stop(deadline, farewell, flags)
