"""Files and folders of a checkpoint: errors of writing have the name of the file, and a folder can be locked."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Self

__all__ = ["Output", "locked"]


class Output:
    """A file that was opened for writing. Its OSErrors have its name, which those of write() and fsync(), such as of a full disk, do not have by themselves."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with self._named() if kind is None else contextlib.suppress(OSError):
            self._file.close()

    def write(self, data: Any) -> None:
        """Write a buffer of bytes."""
        with self._named():
            self._file.write(data)

    def finish(self) -> None:
        """Return when all of it is on the disk."""
        with self._named():
            self._file.flush()
            os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(self._file.name)) from error


@contextlib.contextmanager
def locked(folder: Path, *, exclusive: bool, wait: bool = True) -> Iterator[bool]:
    """Hold a lock on a folder. Without `wait` it yields False if somebody else has a lock that excludes this one.

    A lock ends with its process. A file system without locks lets everybody through. Raises OSError if there is no such folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        got = True
        try:
            fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            got = False
        except OSError:
            pass
        try:
            yield got
        finally:
            if got:
                with contextlib.suppress(OSError):
                    fcntl.flock(descriptor, fcntl.LOCK_UN)  # a forked child may have the descriptor, and with it the lock
    finally:
        os.close(descriptor)
