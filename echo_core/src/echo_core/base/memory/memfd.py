"""Memory that a store shares with other processes: a memfd, all of it reserved at once, and sealed."""

from __future__ import annotations

import errno
import fcntl
import os


def _huge_pages_free() -> int:
    with open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), 0)


def make(size: int, huge_pages: bool) -> int:
    """A memfd of `size` bytes, all of them reserved now, whose size nobody can change any more."""
    flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0)
    try:
        fd = os.memfd_create("echo-store", flags)
    except OSError as error:
        raise OSError(error.errno, f"cannot make shared memory (memfd_create): {error.strerror}; a seccomp filter that forbids it must be relaxed") from None
    try:
        os.ftruncate(fd, size)
        # Without this a full machine would be a SIGBUS in whoever first touches a page, perhaps hours later.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except OSError as error:
        os.close(fd)
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EPERM, errno.EFBIG):
            raise
        what = "lower batch_size or num_buffers, or raise the container's memory limit"
        if huge_pages:
            what = f"{size >> 21:,} huge pages, of which {_huge_pages_free():,} are free; raise vm.nr_hugepages, or leave out huge_pages"
        elif error.errno == errno.EFBIG:
            what = "lower batch_size or num_buffers, or raise this process's limit of file sizes (ulimit -f), which counts for memory of this kind"
        raise MemoryError(f"the store needs {size:,} bytes of shared memory, which are not to be had: {error.strerror}; {what}") from None
    return fd
