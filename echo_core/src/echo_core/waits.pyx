# cython: language_level=3
"""How waiting calls of the stores count time, and how much memory there is."""
import os
from threading import get_ident, main_thread

from libc.stdint cimport int64_t

from echo_core.ring cimport now_ns

from echo_core.cgroup import memory_left


cdef int64_t deadline_of(object timeout) except -2:
    """The now_ns() at which a wait ends; -1 for never (None and infinity)."""
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


def available_memory() -> int:
    """Bytes that can be allocated without swapping, and without the control group's limit being met."""
    left = memory_left()
    with open("/proc/meminfo") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return min(left, int(line.split()[1]) * 1024)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_AVPHYS_PAGES")
