# cython: language_level=3
"""How blocking calls of the stores measure time."""
import logging
from threading import get_ident, main_thread

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t

from echo_core.store.wait.clock cimport now_ns

from echo_core.base.errors import EchoTimeoutError
from echo_core.base.waiting import LOG_AFTER

_log = logging.getLogger("echo")

cdef int64_t LOG_AFTER_NS = <int64_t>(LOG_AFTER * 1e9)


cdef int64_t deadline_of(object timeout) except -2:
    """Returns the now_ns() at which a wait ends; -1 means never (for None and infinity)."""
    if timeout is None:
        return -1
    cdef double seconds = timeout
    if seconds != seconds or seconds < 0:
        raise ValueError(f"timeout must be a number of seconds >= 0 or None, not {timeout!r}")
    if seconds > 1e9:
        return -1
    return now_ns() + <int64_t>(seconds * 1e9)


cdef int64_t first_sleep():
    return MAIN_SLICE_NS if get_ident() == main_thread().ident else SLICE_NS


@cython.final
cdef class Patience:
    """One call that waits for at most `timeout` seconds (None: for ever)."""

    def __init__(self, timeout):
        self.timeout = timeout
        self.deadline, self.began, self.longest = deadline_of(timeout), now_ns(), first_sleep()

    cdef int64_t slice(self) noexcept nogil:
        """Returns how many nanoseconds to sleep now."""
        return slice_of(self.deadline, self.longest)

    cdef bint turn(self) except -1:
        """Call this after a sleep without success. Returns whether it is time to call `report`."""
        cdef int64_t now
        PyErr_CheckSignals()
        self.longest = next_sleep(self.longest)
        now = now_ns()
        return (self.deadline >= 0 and now >= self.deadline) or (not self.logged and now - self.began > LOG_AFTER_NS)

    cdef int report(self, str caller, str what, str who) except -1:
        """Raises EchoTimeoutError if the time is over; otherwise logs, once, who waits for whom."""
        if self.deadline >= 0 and now_ns() >= self.deadline:
            raise EchoTimeoutError(f"{caller} waited {self.timeout:g} s for {what}: {who}")
        self.logged = True
        _log.warning("%s has waited 5 s for %s: %s", caller, what, who)
