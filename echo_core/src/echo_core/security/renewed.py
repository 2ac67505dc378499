"""Certificates that are replaced on disk while a learner runs: they are read again for new connections."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from ..base.errors import SecurityError
from .tls import TlsListenOptions

__all__ = ["Renewed"]

OWN_SECONDS = 30 * 86400.0  # a certificate of the user's own authority is valid for 90 days, and is made anew so often

_log = logging.getLogger("echo")
T = TypeVar("T")


class Renewed(Generic[T]):
    """What a transport makes of a learner's certificate, key and authority of clients; call it to get it. Thread-safe.

    If one of the files was replaced, it is made again. If that fails, for example because only one of certificate and key is new yet, the previous
    one stays in use, the log says so once, and the next call tries again. Connections that are open are not affected.

    Args:
        make: reads the files and makes it. The constructor calls it once, and raises its errors.
    """

    def __init__(self, make: Callable[[], T], options: TlsListenOptions) -> None:
        files = (options.tls_certificate, options.tls_key, options.tls_client_authority)
        self._files = [path for path in files if path is not None]
        self._own = options.tls_certificate is None
        self._make = make
        self._lock = threading.Lock()
        self._stamp, self._began = self._read_stamp(), time.monotonic()
        self._value = make()
        self._trouble = ""

    def __call__(self) -> T:
        with self._lock:
            stamp = self._read_stamp()  # before the files are read, so that a change during that is noticed by the next call
            if stamp != self._stamp or (self._own and time.monotonic() - self._began >= OWN_SECONDS):
                try:
                    self._value = self._make()
                except (SecurityError, OSError) as error:
                    if self._trouble != str(error):
                        self._trouble = str(error)
                        _log.error("keeping the previous certificate, as the new one cannot be used: %s", error)
                else:
                    self._stamp, self._began, self._trouble = stamp, time.monotonic(), ""
                    _log.info("the certificate was read again for new connections")
            return self._value

    def _read_stamp(self) -> list[tuple[int, ...] | None]:
        return [_stamp(path) for path in self._files]


def _stamp(path: Path) -> tuple[int, ...] | None:
    """It changes whenever the file is replaced or written; None if there is no such file now."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
