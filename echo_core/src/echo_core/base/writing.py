"""Writing files: an error names the file, how much is free and what is unharmed, and small files are written as a whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from .errors import EchoError, FileWriteError

__all__ = ["NewFile", "write_together", "write_whole", "writing"]



class NewFile(NamedTuple):
    """A file to write: its place, its contents and its permissions."""

    path: Path
    data: bytes
    mode: int


_REMEDIES = {
    errno.ENOSPC: "free space there, or choose another disk",
    errno.EDQUOT: "remove files of this user, or have the quota raised",
    errno.EFBIG: "raise this process's limit of file sizes (ulimit -f), or choose a file system that has larger files",
    errno.EROFS: "choose a folder on a file system that can be written to",
    errno.EACCES: "choose a folder that this user can write to",
    errno.EPERM: "choose a folder that this user can write to",
    errno.ENOENT: "make the folder, or choose another",
    errno.EEXIST: "choose a path where there is no file",
}


@contextlib.contextmanager
def writing(path: str | os.PathLike[str], stays: str = "") -> Iterator[None]:
    """In this block the file `path`, or a file in the folder `path`, is written. An OSError of the block is raised as a FileWriteError.

    Args:
        path: named in the message; if it is a folder and the error has the name of a file in it, that name is.
        stays: the end of the message, which says what the failure has not changed.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, EchoError):
            raise
        inside = isinstance(error.filename, str) and Path(path) in Path(error.filename).parents
        name = error.filename if inside else os.fspath(path)
        number = error.errno if error.errno is not None else errno.EIO
        parts = [f"cannot write {name}: {error.strerror or error}{_free(Path(name)) if number == errno.ENOSPC else ''}", _REMEDIES.get(number), stays]
        raise FileWriteError(number, "; ".join(part for part in parts if part), name) from error


def write_whole(path: Path, data: bytes, *, mode: int = 0o666, replace: bool = True) -> None:
    """Write a file as a whole or not at all. Nobody sees half of it, or sees it with wider permissions than `mode`.

    If there is such a file, it is replaced, or with `replace=False` left as it is. Raises FileWriteError; nothing is left behind then.
    """
    write_together([NewFile(path, data, mode)], replace=replace)


def write_together(files: Sequence[NewFile], *, replace: bool = True) -> None:
    """As `write_whole`, for files that belong together: if one of them does not fit on the disk, none is changed."""
    news = [file.path.with_name(f".{file.path.name}-{secrets.token_hex(8)}") for file in files]
    try:
        for file, new in zip(files, news):
            with writing(file.path), open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, file.mode), "wb") as stream:
                stream.write(file.data)
        for file, new in zip(files, news):
            with writing(file.path):
                if replace:
                    new.replace(file.path)
                else:
                    with contextlib.suppress(FileExistsError):
                        os.link(new, file.path)  # unlike a rename, this never replaces a file
    finally:
        for new in news:
            with contextlib.suppress(OSError):
                new.unlink()


def _free(path: Path) -> str:
    """How much is free on the disk of `path`, for a message; nothing if that is unknown."""
    for folder in (path, *path.parents):
        with contextlib.suppress(OSError):
            disk = os.statvfs(folder)
            if disk.f_files and not disk.f_favail:
                return " (no further file fits, whatever its size: no inode is free)"
            return f" ({disk.f_bavail * disk.f_frsize:,} bytes are free)"
    return ""
