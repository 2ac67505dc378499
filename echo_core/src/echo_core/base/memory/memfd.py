"""Memory that a store shares with other processes: a memfd that is reserved as a whole and then sealed."""

from __future__ import annotations

import errno
import fcntl
import os

from .huge_pages import use_huge_pages


def _huge_pages_free() -> int:
    with open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), 0)


def make(size: int, huge_pages: bool) -> int:
    """A memfd of `size` bytes. All of them are reserved now, and nobody can change its size later.

    With `huge_pages`, all its pages have 2 MiB, and come from those that the system has put aside; without, as many as the machine can give.
    """
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0)
    try:
        fd = os.memfd_create("echo-store", flags)
    except OSError as error:
        raise OSError(error.errno, f"cannot make shared memory (memfd_create): {error.strerror}; if a seccomp filter forbids it, relax the filter") from None
    try:
        os.ftruncate(fd, size)
        if not huge_pages:
            use_huge_pages(fd, size)
        # Without this, a machine without memory would kill the process that first touches a page with SIGBUS, perhaps hours later.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException as error:
        os.close(fd)
        if not isinstance(error, OSError) or error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EPERM, errno.EFBIG):
            raise
        what = "lower batch_size or num_buffers, or raise the container's memory limit"
        if huge_pages:
            what = f"it needs {size >> 21:,} huge pages, and {_huge_pages_free():,} are free; raise vm.nr_hugepages, or leave out huge_pages"
        elif error.errno == errno.EFBIG:
            what = "lower batch_size or num_buffers, or raise this process's limit of file sizes (ulimit -f), which also applies to shared memory"
        raise MemoryError(f"the store needs {size:,} bytes of shared memory and cannot get them: {error.strerror}; {what}") from None
    return fd
