"""Whether this process has file descriptors left: without one, modules and metadata cannot be read, and Python reports that in misleading ways."""

from __future__ import annotations

import errno
import os
import resource

__all__ = ["lacks_descriptors", "no_descriptors"]


def lacks_descriptors(error: BaseException | None = None) -> bool:
    """Whether `error` was caused by missing descriptors, or none is left now. The error of the dynamic loader has no number, and a listing of a
    folder that fails looks empty, so both are found out by opening something."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
            return True
        error = error.__cause__ or error.__context__
    try:
        os.close(os.open("/", os.O_RDONLY | os.O_CLOEXEC))
    except OSError as now:
        return now.errno in (errno.EMFILE, errno.ENFILE)
    return False


def no_descriptors() -> str:
    """The reason and the remedy, as the end of a message."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"no file descriptor is left (this process may have {soft}); raise the limit, which may be at most {hard} (ulimit -n), or close some files"
