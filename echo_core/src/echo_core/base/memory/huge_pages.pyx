# cython: language_level=3
"""Shared memory in pages of 2 MiB."""
from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool as cbool

cdef extern from "include/echo_huge_pages.h" namespace "echo" nogil:
    uint64_t kHugePage
    cbool c_use_huge_pages "echo::use_huge_pages"(int, int64_t, uint64_t)

cdef uint64_t ONCE = 256 << 20  # bytes; Ctrl-C is noticed in between


def use_huge_pages(int fd, uint64_t size) -> None:
    """Give a new and empty memfd of `size` bytes pages of 2 MiB, as far as the machine has them.

    Reserve the memory afterwards, with `posix_fallocate`: what fails here is not an error, as the pages are small then. Processes gain from these pages
    if they map the memory at an address that is a multiple of 2 MiB (`map_aligned` in `echo_huge_pages.h`).
    """
    cdef uint64_t at = 0, whole = size // kHugePage * kHugePage
    cdef cbool more = True
    while more and at < whole:
        with nogil:
            more = c_use_huge_pages(fd, at, min(ONCE, whole - at))
        at += ONCE
        PyErr_CheckSignals()
