"""The memory that processes share: a memfd, its name, and how it gets from one process to another.

A memfd has no file name, so nothing of it remains when the last process that has it ends, however that happens. Its size is reserved when it
is made and sealed, so no process can get a fault signal because memory is short, or because another process made it smaller.

Its name is "pid.fd.inode.nonce": where it is in the table of open files of the process that made it. Any process of the same user can attach by
that name while that process has it open. An object that has shared memory can also be an argument of `multiprocessing.Process`: the new process then gets the
descriptor itself.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
from pathlib import Path
from typing import Any

from echo_core.base.errors import EchoError, SecurityError, SpecError
from echo_core.base.memory import memfd

from .. import _native
from ..memory_budget import get_reservable_memory_bytes

__all__ = ["Memory", "SegmentGoneError"]

_NAME = re.compile(r"([0-9]{1,10})\.([0-9]{1,10})\.([0-9]{1,20})\.([0-9a-f]{1,16})")
_LABEL = "echo-ipc-"
_KINDS = {_native.CELL: "cell", _native.RING: "ring", _native.ROWS: "rows"}
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class SegmentGoneError(EchoError, FileNotFoundError):
    """No process has shared memory with this name any more, or it cannot be reached from here; the message says which and names a remedy."""


class Memory:
    """One piece of shared memory, open in this process.

    It pickles: to a process that is just being started by `multiprocessing` the descriptor goes along, and anywhere else the name.

    Attributes:
        name: by which other processes attach.
        mapping: the mapped bytes; arrays over it keep them mapped.
        handed: whether this process was started with it.
    """

    handed = False

    def __init__(self, fd: int, name: str, mapping: _native.Mapping, owner: bool) -> None:
        """Use create() or attach()."""
        self._fd, self.name, self.mapping, self.owner = fd, name, mapping, owner

    @classmethod
    def create(cls, kind: int, schema: bytes, words: tuple[int, ...], size: int, what: str) -> Memory:
        """New memory of `size` bytes. Raises MemoryError that says what needs it (`what`) if there is not as much."""
        fd = _reserve(size, f"{_LABEL}{_KINDS[kind]}", what)
        try:
            nonce = secrets.randbits(64)
            mapping = _native.Mapping(fd, size, True)
            mapping.make(kind, nonce, schema, words)
            return cls(fd, f"{os.getpid()}.{fd}.{os.fstat(fd).st_ino}.{nonce:x}", mapping, True)
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def attach(cls, name: str, kind: int, mode: str = "rw") -> Memory:
        """The memory with this name, of another process or this one.

        Raises SegmentGoneError if it is gone or cannot be reached, SecurityError if it belongs to another user, and SpecError if the name or the memory is
        not what it should be.
        """
        match = _NAME.fullmatch(name) if isinstance(name, str) else None
        if match is None:
            raise SpecError(f"{name!r:.60} is no name of shared memory; it looks like 1234.5.678.9abc, and `name` of the object that made it is one")
        pid, number, inode, nonce = int(match[1]), int(match[2]), int(match[3]), int(match[4], 16)
        path = f"/proc/{pid}/fd/{number}"
        try:
            # Looked at before it is opened: if the number is used for something else by now, opening could have an effect there.
            found = os.stat(path)
            fd = os.open(path, (os.O_RDWR if mode == "rw" else os.O_RDONLY) | os.O_CLOEXEC) if found.st_ino == inode else -1
        except PermissionError:
            raise SecurityError(f"the shared memory {name} belongs to a process of another user, or of one that forbids it (prctl PR_SET_DUMPABLE)") from None
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESRCH):
                raise
            raise _gone(name, pid, f"process {pid} " + ("has closed it" if Path(f"/proc/{pid}").exists() else "does not run here")) from None
        if fd < 0:
            raise _gone(name, pid, f"process {pid} has closed it and uses its number for something else")
        return cls.adopt(fd, name, kind, mode, inode, nonce)

    @classmethod
    def adopt(cls, fd: int, name: str, kind: int, mode: str, inode: int, nonce: int) -> Memory:
        """An open descriptor, which this object closes from now on. Raises SegmentGoneError if it is not the memory with that inode and nonce."""
        try:
            found = os.fstat(fd)
            pid = int(name.partition(".")[0])
            if found.st_ino != inode or not _is_sealed(fd):
                raise _gone(name, pid, "another file has its number")
            mapping = _native.Mapping(fd, found.st_size, mode == "rw")
            wrong = mapping.wrong(kind)
            if wrong is not None:
                raise SpecError(f"the shared memory {name} cannot be used as {_KINDS[kind]}: {wrong}")
            if mapping.nonce != nonce:
                raise _gone(name, pid, "another memory has its number")
            return cls(fd, name, mapping, False)
        except BaseException:
            os.close(fd)
            raise

    def fileno(self) -> int:
        """The descriptor; -1 after release()."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back, unless this process made the memory: then others can still attach, until release()."""
        if not self.owner:
            self.release()

    def release(self) -> None:
        """Give the descriptor back. Processes that have the memory keep it; if this one made it, nobody can attach any more."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.release()

    def __reduce__(self) -> tuple[Any, ...]:
        from multiprocessing import reduction
        from multiprocessing.context import get_spawning_popen

        kind, mode = next(kind for kind in _KINDS if self.mapping.wrong(kind) is None), "rw" if self.mapping.writable else "r"
        handed = None
        if get_spawning_popen() is not None and self._fd >= 0:
            handed = reduction.DupFd(self._fd)
            self.mapping.expect()
        return _unpickled, (self.name, kind, mode, handed)


def _unpickled(name: str, kind: int, mode: str, handed: Any) -> Memory:
    if handed is None:
        return Memory.attach(name, kind, mode)
    match = _NAME.fullmatch(name)
    assert match is not None
    fd = handed.detach()
    os.set_inheritable(fd, False)
    memory = Memory.adopt(fd, name, kind, mode, int(match[3]), int(match[4], 16))
    memory.handed = True
    return memory


def _is_sealed(fd: int) -> bool:
    """Whether nobody can change its size; only memfds can be."""
    try:
        return fcntl.fcntl(fd, fcntl.F_GET_SEALS) & _SEALS == _SEALS
    except OSError:
        return False


def _gone(name: str, pid: int, why: str) -> SegmentGoneError:
    remedy = "hand the object itself to the new process (an argument of multiprocessing.Process), or let both share the pid namespace"
    return SegmentGoneError(
        errno.ENOENT, f"there is no shared memory {name}: {why}. Keep the object that made it; if process {pid} is in another container, {remedy}"
    )


def _reserve(size: int, label: str, what: str) -> int:
    """A memfd of `size` bytes that are all reserved now."""
    # The kernel gives memory to a memfd until the machine or the container has none, and then kills a process; so look first.
    available = get_reservable_memory_bytes()
    if available is not None and size > available:
        fix = "make it smaller, or raise the container's memory limit"
        raise MemoryError(f"{what} needs {size:,} bytes of shared memory, and {available:,} are available here; {fix}")
    return memfd.reserve(size, label, what, "make it smaller")
