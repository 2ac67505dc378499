"""How long a blocking call waits: its time, one line in the log, and the error that says who waits for whom.

`store/wait/patience.pyx` does the same for waits of the store, which hold no GIL, with the same `LOG_AFTER`.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from .errors import EchoTimeoutError

__all__ = ["CLOSE_LOG_AFTER", "FAREWELL_SECONDS", "LEAST_FAREWELL_SECONDS", "LOG_AFTER", "Wait", "logged_after", "shown", "timed_out", "unlogged"]

_log = logging.getLogger("echo")

LOG_AFTER = 5.0  # seconds of waiting before it is logged, once
CLOSE_LOG_AFTER = 1.0  # the same for a close(): the program seems to hang at its end, and its user wonders why
FAREWELL_SECONDS = 1.0  # for the other end to read a goodbye and hang up
LEAST_FAREWELL_SECONDS = 0.05  # also if no time is left, as after Ctrl-C, which must be answered at once


def shown(seconds: float) -> str:
    """A time in a message. The 0.99999 s that are left of one second are shown as 1."""
    return f"{round(seconds, 2):g}"


def timed_out(call: str, seconds: float | None, what: str) -> EchoTimeoutError:
    """The error of a call, such as "send()", that has waited `seconds` for `what`, which says who waits for whom and what helps."""
    assert seconds is not None, "a wait without a limit does not end"
    return EchoTimeoutError(f"{call} waited {shown(seconds)} s for {what}")


_here = threading.local()


@contextmanager
def unlogged() -> Iterator[None]:
    """Within the with block, waits of this thread are not logged: it waits for something that need not come soon."""
    _here.unlogged = True
    try:
        yield
    finally:
        _here.unlogged = False


@contextmanager
def logged_after(seconds: float) -> Iterator[None]:
    """Within the with block, waits of this thread are logged after `seconds` instead of `LOG_AFTER`."""
    _here.log_after = seconds
    try:
        yield
    finally:
        _here.log_after = None


class Wait:
    """One wait of a blocking call, which began now, or at `began` (`time.monotonic()`). `timeout` is in seconds; `math.inf` waits for ever."""

    def __init__(self, timeout: float, began: float | None = None) -> None:
        self.timeout = timeout
        self._began = time.monotonic() if began is None else began
        self._logged = getattr(_here, "unlogged", False)
        self._log_after: float | None = getattr(_here, "log_after", None)

    def passed(self) -> float:
        """How many seconds have passed."""
        return time.monotonic() - self._began

    def left(self) -> float:
        """How many seconds are left; 0 when the time is over."""
        return max(0.0, self.timeout - self.passed())

    def farewell(self) -> float:
        """How long a goodbye at the end of the call may take: what is left of its time, within the limits of this module."""
        return min(max(self.left(), LEAST_FAREWELL_SECONDS), FAREWELL_SECONDS)

    def look(self, expired: Callable[[], str], so_far: Callable[[float], str]) -> float:
        """Return after how many seconds at most the caller has to look again: at the end of the wait, or when it is logged.

        `so_far(seconds)` is the line for the log, and `expired()` the text of the error: each says who waits for what.

        Raises:
            EchoTimeoutError: the time is over.
        """
        waited = self.passed()
        if waited >= self.timeout:
            raise EchoTimeoutError(expired())
        log_after = LOG_AFTER if self._log_after is None else self._log_after
        if waited >= log_after and not self._logged:
            self._logged = True
            _log.warning("%s", so_far(waited))
        return min(self.timeout, math.inf if self._logged else log_after) - waited
