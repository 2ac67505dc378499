# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Sends and receives the records of a TLS socket after the ssl module has made its handshake: see tls/session.hpp."""
import os
import ssl

from cpython.buffer cimport PyBUF_CONTIG_RO, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from libc.stddef cimport size_t

cdef extern from "tls/session.hpp" namespace "echo_tcp" nogil:
    cppclass Ssl:
        pass
    cppclass Libssl:
        int (*up_ref)(Ssl*)
        void (*release)(Ssl*)
        int (*descriptor)(const Ssl*)
        @staticmethod
        const Libssl* found()
    Ssl* latest_ssl
    enum class How:
        done
        ended
        interrupted
        over
        failed
        refused
    struct Outcome:
        How how
        int number
        const char* reason
    cppclass TlsSession:
        TlsSession(const Libssl&, Ssl*, int) except +
        Outcome send(const char*, size_t, size_t&)
        Outcome flush()
        Outcome receive(char*, size_t, size_t&)
        void end()


cdef class Records:
    """The records of one socket. One thread may send while another receives."""
    cdef const Libssl* lib
    cdef Ssl* ssl
    cdef TlsSession* session
    cdef object sock

    @staticmethod
    def of(make):
        """Call `make`, which makes a socket of the ssl module. Return the socket and its records; the records are None if its SSL cannot be reached."""
        global latest_ssl
        cdef const Libssl* lib = Libssl.found()
        latest_ssl = NULL
        sock = make()
        if lib == NULL or latest_ssl == NULL or lib.descriptor(latest_ssl) != sock.fileno():
            return sock, None
        cdef Records records = Records.__new__(Records)
        records.lib, records.ssl, records.sock = lib, latest_ssl, sock
        lib.up_ref(records.ssl)
        return sock, records

    def begin(self):
        """Take over after the handshake. From here on the socket's own `send` and `recv` must not be called."""
        if self.session == NULL:
            self.session = new TlsSession(self.lib[0], self.ssl, self.sock.fileno())

    def send(self, data):
        """Encrypt all of `data`. The socket has taken all of it when `flush` returns. Raises ssl.SSLError, OSError."""
        cdef Py_buffer view
        cdef size_t done = 0
        cdef Outcome outcome
        PyObject_GetBuffer(data, &view, PyBUF_CONTIG_RO)
        try:
            while True:
                with nogil:
                    outcome = self.session.send(<const char*>view.buf, view.len, done)
                if outcome.how != How.interrupted:
                    break
                PyErr_CheckSignals()
        finally:
            PyBuffer_Release(&view)
        if outcome.how != How.done:
            raise self.error(outcome)

    def flush(self):
        """Send the records that are still in the buffer. Raises OSError."""
        cdef Outcome outcome
        while True:
            with nogil:
                outcome = self.session.flush()
            if outcome.how == How.done:
                return
            if outcome.how != How.interrupted:
                raise self.error(outcome)
            PyErr_CheckSignals()

    def recv_into(self, buffer):
        """Wait for bytes, then take as many as have come and fit. Returns their number, 0 at the end. Raises ssl.SSLError, OSError."""
        cdef Py_buffer view
        cdef size_t taken = 0
        cdef Outcome outcome
        PyObject_GetBuffer(buffer, &view, PyBUF_CONTIG_RO | PyBUF_WRITABLE)
        try:
            while True:
                with nogil:
                    outcome = self.session.receive(<char*>view.buf, view.len, taken)
                if outcome.how != How.interrupted:
                    break
                PyErr_CheckSignals()
        finally:
            PyBuffer_Release(&view)
        if outcome.how == How.ended:
            return 0
        if outcome.how != How.done:
            raise self.error(outcome)
        return taken

    def end(self):
        """Mark the connection as closed: later sends and receives fail with that. The caller shuts the socket down afterwards."""
        if self.session != NULL:
            with nogil:
                self.session.end()

    cdef object error(self, Outcome outcome):
        if outcome.how == How.refused:
            error = ssl.SSLError(1, (<bytes>outcome.reason).decode())
            error.reason = error.args[1].upper().replace(" ", "_")  # the ssl module spells reasons like this
            return error
        if outcome.how == How.failed and outcome.number:
            return OSError(outcome.number, os.strerror(outcome.number))
        return ConnectionAbortedError("the connection is closed")

    def __dealloc__(self):
        del self.session
        if self.ssl != NULL:
            self.lib.release(self.ssl)
