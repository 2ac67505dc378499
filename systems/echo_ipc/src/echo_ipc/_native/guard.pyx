# cython: language_level=3
"""Whether another process lives, and a thread that ends this one when it does not: process.hpp and guard.hpp for Python."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t
from libcpp cimport bool as cbool

from .segment cimport deadline_of, getpid, slice_until


cdef extern from "process.hpp" namespace "echo_ipc" nogil:
    int64_t c_start_of "echo_ipc::start_of"(int64_t)
    cbool c_is_alive "echo_ipc::is_alive"(int64_t, int64_t)

cdef extern from "guard.hpp" namespace "echo_ipc" nogil:
    cdef cppclass CGuard "echo_ipc::Guard":
        CGuard(int64_t, int64_t, int64_t, int) except +
        void stop()
        cbool is_dead()
        cbool wait(int64_t)


def start_of(int64_t pid) -> int:
    """When a process started, in clock ticks since the machine did. 0: it is gone. -1: this cannot be found out."""
    return c_start_of(pid)


def is_alive(int64_t pid, int64_t started) -> bool:
    """Whether the process with this number and start time lives; True if this cannot be found out."""
    return c_is_alive(pid, started)


cdef class Guard:
    """A native thread that ends this process `grace` seconds after the process `pid` is gone (guard.hpp).

    `started`: the other process' start time, of start_of(), or -1. `grace`: None means that the process only learns of it, by `wait`.
    """

    cdef CGuard* guard
    cdef int owner

    def __cinit__(self, int64_t pid, int64_t started=-1, grace=2.0, int code=1):
        self.owner = getpid()
        self.guard = new CGuard(pid, started, -1 if grace is None else <int64_t>(<double>grace * 1e9), code)

    def __dealloc__(self):
        cdef CGuard* guard = self.guard
        if guard != NULL and self.owner == getpid():  # a forked child has no such thread to wait for
            with nogil:
                del guard

    @property
    def is_dead(self) -> bool:
        """Whether the guarded process is gone."""
        return self.guard.is_dead()

    def stop(self) -> None:
        """Guard no longer: this process lives on, whatever happens."""
        self.guard.stop()

    def wait(self, timeout=None) -> bool:
        """Sleep until the other process is gone; False if the timeout passed first."""
        cdef int64_t deadline = deadline_of(timeout), most
        while not self.guard.is_dead():
            most = slice_until(deadline)
            if most == 0:
                return False
            with nogil:
                self.guard.wait(most)
            PyErr_CheckSignals()
        return True
