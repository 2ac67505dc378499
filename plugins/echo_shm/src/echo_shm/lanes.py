"""The learner's end of lanes: memory that it shares with only one worker, and the thread that copies from it (lane.hpp)."""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from echo_core.base.memory.huge_pages import use_huge_pages

from ._copier import BROKEN, CLOSED, Copier, lane_bytes

if TYPE_CHECKING:
    from echo_core.wire.sink import Sink

__all__ = ["Lane"]

LOOK_UP_SECONDS = 0.1  # one slice of a wait for the copier
LEAST_ROWS, MOST_ROWS = 2, 16384  # rows of a lane; more would only drop out of the caches


class Lane:
    """One worker's lane. Its memory is reserved when it is made. `start` it, and `finish` it before its session goes to another connection.

    Attributes:
        fd: the memory that the worker maps; `handed_over` closes it.
        rows: number of samples that it holds.
        broken: whether the worker wrote an impossible number.
        counted: whether the listener has added its samples to those of past connections.

    Raises OSError or MemoryError if the memory cannot be allocated.
    """

    def __init__(self, sink: Sink, most_bytes: int, most_rows: int) -> None:
        spec = sink.spec
        self.rows = min(MOST_ROWS, most_rows, max(LEAST_ROWS, most_bytes // max(1, spec.sample_bytes)))
        self.broken = self.counted = False
        self.fd = os.memfd_create("echo-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            labels = sink.labelled is not None  # the rows then have a column for them
            size = lane_bytes(spec, self.rows, labels)
            os.ftruncate(self.fd, size)
            use_huge_pages(self.fd, size)
            os.posix_fallocate(self.fd, 0, size)  # so a lack of memory is an error here, and not a SIGBUS later
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
            self._copier = Copier(self.fd, spec, self.rows, labels, sink.labelled if labels else sink.native)
        except BaseException:
            self.handed_over()
            raise
        self._ended = threading.Event()

    def start(self, over: Callable[[bool], None]) -> None:
        """Copy from now on. If the copying ends by itself, `over(broken)` is called: the store is closed, or the worker broke its lane."""
        threading.Thread(target=self._run, args=(over,), name="echo-copier", daemon=True).start()

    def _run(self, over: Callable[[bool], None]) -> None:
        outcome = self._copier.run()
        self.broken = outcome == BROKEN
        self._ended.set()
        if outcome in (BROKEN, CLOSED):
            over(self.broken)

    def handed_over(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def finish(self, timeout: float) -> bool:
        """Copy all samples that are whole by now, as far as there is space, and end. Returns whether it has ended within `timeout` seconds."""
        self._copier.finish()
        return self._ended.wait(timeout)

    def catch_up(self, over: Callable[[], bool]) -> None:
        """Wait until all samples that are whole by now are committed, or `over()` is true."""
        while not self._copier.catch_up(LOOK_UP_SECONDS) and not self._ended.is_set() and not over():
            pass

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    @property
    def samples(self) -> int:
        """How many samples are committed."""
        copied: int = self._copier.copied
        return copied

    @property
    def waiting(self) -> float:
        """How many seconds it has been waiting for space; 0.0 if it is not waiting."""
        seconds: float = self._copier.waiting
        return seconds

    def __del__(self) -> None:
        with suppress(AttributeError, OSError):
            self.handed_over()
