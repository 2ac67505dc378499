"""Shared memory has pages of 2 MiB where the kernel gives them, and is the same without them."""

from __future__ import annotations

import mmap
import os
import signal

import pytest

from echo_core.base.memory import memfd
from echo_core.base.memory.huge_pages import use_huge_pages
from echo_testing.huge_pages import are_huge_pages_given

HUGE = 2 << 20


@pytest.mark.parametrize("size", [4096, HUGE - 4096, HUGE, HUGE + 4096, 3 * HUGE + 8192])
def test_all_of_it_is_reserved_and_zero(size: int) -> None:
    fd = memfd.make(size, huge_pages=False)
    try:
        found = os.fstat(fd)
        assert (found.st_size, found.st_blocks * 512) == (size, size)
        with mmap.mmap(fd, size) as memory:
            assert memory[:] == bytes(size)
            memory[:] = b"x" * size
            assert memory[:] == b"x" * size
    finally:
        os.close(fd)


def test_what_was_written_before_stays() -> None:
    fd = os.memfd_create("echo-test", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, 2 * HUGE)
        written = os.urandom(100_000)
        os.pwrite(fd, written, HUGE - 50_000)
        use_huge_pages(fd, 2 * HUGE)
        os.posix_fallocate(fd, 0, 2 * HUGE)
        assert os.pread(fd, 2 * HUGE, 0) == bytes(HUGE - 50_000) + written + bytes(HUGE - 50_000)
    finally:
        os.close(fd)


def test_a_descriptor_that_cannot_have_them_is_no_error() -> None:
    """The reservation that follows says what is wrong."""
    reader, writer = os.pipe()
    zeros = os.open("/dev/zero", os.O_RDONLY)
    for fd in (reader, writer, zeros):
        use_huge_pages(fd, 2 * HUGE)
        os.close(fd)
    use_huge_pages(zeros, 2 * HUGE)  # it is closed


def test_ctrl_c_ends_it() -> None:
    if not are_huge_pages_given():
        pytest.skip("the kernel gives shared memory no huge pages")
    size = 1 << 30
    fd = os.memfd_create("echo-test", os.MFD_CLOEXEC)
    os.ftruncate(fd, size)
    raised = False

    def interrupt(*_: object) -> None:
        nonlocal raised
        if not raised and os.fstat(fd).st_blocks:  # it has begun
            raised = True
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
        with pytest.raises(KeyboardInterrupt):
            use_huge_pages(fd, size)
        assert os.fstat(fd).st_blocks * 512 < size
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(fd)
