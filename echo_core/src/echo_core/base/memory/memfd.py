"""Memory that processes share: a memfd that is reserved as a whole and then sealed, and what helps if the system refuses it."""

from __future__ import annotations

import errno
import fcntl
import os

from .huge_pages import use_huge_pages

__all__ = ["create", "make", "reserve"]

_FORBIDDEN = "a seccomp filter probably forbids it; relax the filter"
_REMEDIES = {
    errno.EMFILE: "this process has as many open files as it may; raise the limit of open files (ulimit -n)",
    errno.ENFILE: "all processes together have as many open files as they may; raise the limit (sysctl fs.file-max)",
    errno.EPERM: _FORBIDDEN,
    errno.EACCES: _FORBIDDEN,
    errno.ENOSYS: _FORBIDDEN,
    errno.ENOMEM: "the machine or the container has no memory left; free some, or raise the limit",
    errno.EFBIG: "raise this process's limit of file sizes (ulimit -f), which also applies to shared memory",
}


def _huge_pages_free() -> int:
    with open("/proc/meminfo") as lines:
        return next((int(line.split()[1]) for line in lines if line.startswith("HugePages_Free:")), 0)


def create(label: str, *, huge_pages: bool = False) -> int:
    """A new and empty memfd. Raises OSError with the remedy for its `errno`."""
    try:
        return os.memfd_create(label, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING | (os.MFD_HUGETLB if huge_pages else 0))
    except OSError as error:
        remedy = _REMEDIES.get(error.errno or 0)
        if huge_pages and error.errno in (errno.EINVAL, errno.ENODEV, errno.EPERM):
            remedy = "this process cannot have huge pages; leave out huge_pages, or allow them (CONFIG_HUGETLBFS, vm.hugetlb_shm_group)"
        raise OSError(error.errno, f"cannot make shared memory (memfd_create): {'; '.join(filter(None, [error.strerror, remedy]))}") from None


def reserve(size: int, label: str, what: str, fix: str, *, huge_pages: bool = False) -> int:
    """A memfd of `size` bytes. All of them are reserved now, and nobody can change its size later.

    With `huge_pages`, all its pages have 2 MiB, and come from those that the system has put aside; without, as many as the machine can give.

    Raises MemoryError, which says what needs it (`what`) and what makes it smaller (`fix`), or OSError with the remedy for its `errno`.
    """
    fd = create(label, huge_pages=huge_pages)
    try:
        os.ftruncate(fd, size)
        if not huge_pages:
            use_huge_pages(fd, size)
        # Without this, a machine without memory would kill the process that first touches a page with SIGBUS, perhaps hours later.
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    except BaseException as error:
        os.close(fd)
        number = error.errno if isinstance(error, OSError) else None
        remedy = f"{fix}, or raise the container's memory limit"
        if number == errno.EFBIG:
            remedy = f"{fix}, or {_REMEDIES[number]}"
        elif number not in (errno.ENOSPC, errno.ENOMEM):
            if number is None or number not in _REMEDIES:
                raise
            raise OSError(number, f"cannot reserve shared memory for {what}: {os.strerror(number)}; {_REMEDIES[number]}") from None
        elif huge_pages:
            remedy = f"it needs {size >> 21:,} huge pages, and {_huge_pages_free():,} are free; raise vm.nr_hugepages, or leave out huge_pages"
        raise MemoryError(f"{what} needs {size:,} bytes of shared memory and cannot get them: {os.strerror(number)}; {remedy}") from None
    return fd


def make(size: int, huge_pages: bool) -> int:
    """The memory of a store: `reserve` with its words."""
    return reserve(size, "echo-store", "the store", "lower batch_size or num_buffers", huge_pages=huge_pages)
