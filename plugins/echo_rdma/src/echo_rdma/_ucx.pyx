# cython: language_level=3, boundscheck=False, wraparound=False
"""UCX for Python: every call of libucp goes through here. The code that works without Python is in ucx/."""
from __future__ import annotations

import os

import numpy as np

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, Py_buffer, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint64_t
from libc.string cimport memcpy, memset
from libcpp cimport bool as cbool
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.pair cimport pair
from libcpp.string cimport string
from libcpp.utility cimport move
from libcpp.vector cimport vector

from echo_core.store.door.capi cimport ECHO_CAPI_VERSION, echo_batch_pointers, echo_capi, echo_leaf_pointers, echo_leaf_pointers_held, echo_store, echo_store_of, echo_table

from echo_core.base.errors import ClosedError, ProtocolError

cdef extern from *:
    """
    #include <arpa/inet.h>
    #include <cstring>
    #include <memory>
    #include <net/if.h>
    #include <netinet/in.h>
    #include <pthread.h>
    #include <string>

    // Returns the length of the socket address; 0 if `host` is not an address.
    static socklen_t echo_address(const std::string &host, int port, sockaddr_storage *out) {
        memset(out, 0, sizeof *out);
        std::string place = host.substr(0, host.find('%'));
        auto *v4 = reinterpret_cast<sockaddr_in *>(out);
        if (inet_pton(AF_INET, place.c_str(), &v4->sin_addr) == 1) {
            v4->sin_family = AF_INET;
            v4->sin_port = htons(uint16_t(port));
            return sizeof *v4;
        }
        auto *v6 = reinterpret_cast<sockaddr_in6 *>(out);
        memset(out, 0, sizeof *out);
        if (inet_pton(AF_INET6, place.c_str(), &v6->sin6_addr) != 1) return 0;
        v6->sin6_family = AF_INET6;
        v6->sin6_port = htons(uint16_t(port));
        if (place != host) v6->sin6_scope_id = if_nametoindex(host.c_str() + place.size() + 1);
        return sizeof *v6;
    }

    // Counts forks, because UCX belongs to the process that set it up. fork() itself counts, before any hook of Python can run in the child.
    static int echo_generation = 0;
    [[maybe_unused]] static const int echo_atfork = pthread_atfork(nullptr, nullptr, [] { echo_generation++; });

    // For a forked child: an object that threads of the parent may hold must not be destroyed here.
    template <class T> void leak(std::shared_ptr<T> &held) { new std::shared_ptr<T>(std::move(held)); }
    """
    cdef struct sockaddr:
        pass
    cdef struct sockaddr_storage:
        pass
    unsigned echo_address(const string&, int, sockaddr_storage*) nogil
    int generation "echo_generation"
    void leak[T](shared_ptr[T]&) nogil

cdef extern from "ucx/library.hpp" namespace "echo_rdma" nogil:
    cdef cppclass Library:
        unsigned version[3]
        string open(const char*)
    Library& library()

cdef extern from "ucx/context.hpp" namespace "echo_rdma::ucp" nogil:
    cdef cppclass CContext "echo_rdma::ucp::Context":
        pass

cdef extern from "ucx/context.hpp" namespace "echo_rdma" nogil:
    CContext* open_context(const vector[pair[string, string]]&, string&) except +

cdef extern from "ucx/engine.hpp" namespace "echo_rdma" nogil:
    size_t PIECE_BYTES

    cdef cppclass Memory:
        char* get()
    Memory allocate(size_t)

    cdef cppclass Piece:
        Memory data
        size_t size

    cdef cppclass Inbox:
        Piece take(string&)
        void stop(const string&)

    cdef cppclass Peer:
        Inbox inbox
        string address

    cdef cppclass Flow:
        pass

    cdef cppclass Times:
        int64_t spin, beat, silence, linger

    cdef cppclass CEngine "echo_rdma::Engine":
        CEngine(CContext*, const Times&) except +
        int listen(const sockaddr*, unsigned) except +
        shared_ptr[Peer] connect(const sockaddr*, unsigned) except +
        shared_ptr[Peer] accept()
        cbool is_stuck()
        void deafen()
        cbool send(Peer&, Memory, size_t, cbool, string&)
        void report_read(Peer&)
        void leave(Peer&)
        void release(Peer&)
        void attach(Peer&, shared_ptr[Flow])
        string lanes(Peer&)
        void stop()

def load(str path) -> tuple[int, int, int]:
    """Load libucp from `path`, for as long as the process lives. Returns its version; OSError says what is wrong with it."""
    cdef bytes name = os.fsencode(path)
    cdef string wrong = library().open(name)
    if not wrong.empty():
        raise OSError(wrong.decode("utf-8", "replace"))
    return library().version[0], library().version[1], library().version[2]


cdef class Context:
    """UCX with some settings: pairs such as ("KEEPALIVE_INTERVAL", "1s"), which take precedence over UCX_* variables.

    Attributes:
        refused: the settings that this version of UCX does not know, as a text for people.
    """
    cdef CContext* context
    cdef readonly str refused

    def __cinit__(self, settings):
        cdef vector[pair[string, string]] given
        cdef string refused
        for name, value in settings:
            given.push_back(pair[string, string](<bytes>name.encode(), <bytes>value.encode()))
        self.context = open_context(given, refused)  # never closed: see context.hpp
        self.refused = refused.decode()


cdef class Engine:
    """A UCX worker and its thread.

    Args:
        spin, beat, silence, linger: seconds; see `Times` in ucx/engine.hpp.

    Every method may be called from any thread. Raises OSError.
    """
    cdef shared_ptr[CEngine] engine
    cdef Context context
    cdef int generation

    def __cinit__(self, Context context, double spin, double beat, double silence, double linger):
        cdef Times times
        times.spin, times.beat = <int64_t>(min(spin, 1e9) * 1e9), <int64_t>(beat * 1e9)
        times.silence, times.linger = <int64_t>(min(silence, 1e9) * 1e9), <int64_t>(linger * 1e9)
        self.context = context
        self.generation = generation
        try:
            with nogil:
                self.engine = make_shared[CEngine](context.context, times)
        except RuntimeError as error:
            raise OSError(str(error)) from None

    def __dealloc__(self):
        if self.engine.get() == NULL:
            return
        if self.generation != generation:
            leak(self.engine)
            return
        with nogil:
            self.engine.reset()

    def listen(self, str host, int port) -> int:
        """Take clients at an IP address of this machine. Returns the port."""
        cdef sockaddr_storage where
        cdef string text = host.encode()
        cdef unsigned length = echo_address(text, port, &where)
        if not length:
            raise OSError(f"{host!r} is no address")
        try:
            with nogil:
                port = self.engine.get().listen(<const sockaddr*>&where, length)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        return port

    def connect(self, str host, int port) -> Wire:
        """Begin to connect. Whether that works shows when something is received."""
        cdef sockaddr_storage where
        cdef string text = host.encode()
        cdef unsigned length = echo_address(text, port, &where)
        cdef Wire wire = Wire.__new__(Wire)
        if not length:
            raise OSError(f"{host!r} is no address")
        try:
            with nogil:
                wire.peer = self.engine.get().connect(<const sockaddr*>&where, length)
        except RuntimeError as error:
            raise OSError(str(error)) from None
        wire.engine = self
        return wire

    def accept(self) -> Wire | None:
        """Wait for the next client; None after `deafen`, and when the engine is `stuck`."""
        cdef Wire wire = Wire.__new__(Wire)
        with nogil:
            wire.peer = self.engine.get().accept()
        if wire.peer.get() == NULL:
            return None
        wire.engine = self
        return wire

    @property
    def stuck(self) -> bool:
        """Whether messages no longer arrive here. All peers were given up, and another engine has to replace this one. See ucx/watch.hpp."""
        return self.engine.get().is_stuck()

    def deafen(self) -> None:
        """Take no more clients, and free the address."""
        with nogil:
            self.engine.get().deafen()

    def stop(self) -> None:
        """End every connection, and the thread."""
        if self.generation == generation:
            with nogil:
                self.engine.get().stop()


cdef class Wire:
    """One connection of an engine."""
    cdef shared_ptr[Peer] peer
    cdef Engine engine

    def __dealloc__(self):
        if self.peer.get() != NULL and self.engine is not None and self.engine.generation != generation:
            leak(self.peer)

    @property
    def address(self) -> str:
        """The address of the other end; "" if this end connected."""
        return self.peer.get().address.decode()

    def lanes(self) -> list[str]:
        """The transports that carry the connection: "tcp/eth0", "posix/memory", "rc_mlx5/mlx5_0:1"; empty after it is lost."""
        cdef string text
        with nogil:
            text = self.engine.engine.get().lanes(self.peer.get()[0])
        return text.decode().split(",") if not text.empty() else []

    def send(self, buffers) -> None:
        """Send the buffers one after another, as one frame. Waits while the other end reads slowly. Raises ConnectionError if the connection has ended."""
        cdef Py_ssize_t total = sum([len(buffer) for buffer in buffers]), room = 0, done = 0, take, at
        cdef Memory memory
        cdef size_t size = 0
        cdef Py_buffer view
        for buffer in buffers:
            PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
            try:
                at = 0
                while at < view.len:
                    if room == 0:
                        room = min(total - done, <Py_ssize_t>PIECE_BYTES)
                        size = 0
                        memory = allocate(room)
                        if memory.get() == NULL:
                            raise MemoryError()
                    take = min(room, view.len - at)
                    memcpy(memory.get() + size, <const char*>view.buf + at, take)
                    at += take
                    size += take
                    room -= take
                    if room == 0:
                        done += size
                        self.post(move(memory), size, done == total)
            finally:
                PyBuffer_Release(&view)

    cdef int post(self, Memory memory, size_t size, cbool whole) except -1:
        cdef string why
        cdef cbool sent
        with nogil:
            sent = self.engine.engine.get().send(self.peer.get()[0], move(memory), size, whole, why)
        if not sent:
            raise ConnectionAbortedError(why.decode())
        return 0

    def receive(self) -> bytes:
        """Wait for the next bytes; b"" at the end of the stream. Raises ConnectionError if the other end is lost."""
        cdef string why
        cdef Piece piece
        with nogil:
            piece = move(self.peer.get().inbox.take(why))
            if piece.data.get() != NULL:
                self.engine.engine.get().report_read(self.peer.get()[0])
        if piece.data.get() != NULL:
            return PyBytes_FromStringAndSize(piece.data.get(), piece.size)
        if not why.empty():
            raise ConnectionResetError(why.decode())
        return b""

    def leave(self) -> None:
        """End the stream: bytes that were sent still arrive, and nothing more is read."""
        if self.engine.generation == generation:
            with nogil:
                self.engine.engine.get().leave(self.peer.get()[0])

    def release(self) -> None:
        """Say that this connection is needed no longer."""
        if self.engine.generation == generation:
            with nogil:
                self.engine.engine.get().release(self.peer.get()[0])


include "worker.pyx"
include "learner.pyx"
