"""How long a blocking call waits: its time, one line in the log, and the error that says who waits for whom."""

from __future__ import annotations

import logging
import time

from .errors import EchoTimeoutError

__all__ = ["LOG_AFTER", "Wait"]

_log = logging.getLogger("echo")

LOG_AFTER = 5.0  # seconds of waiting before it is logged, once


class Wait:
    """One wait of a blocking call. `timeout` is in seconds; `math.inf` waits for ever."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._began = time.monotonic()
        self._logged = False

    def look(self, caller: str, reason: str) -> float:
        """Return how many seconds are left; the caller still waits, for this `reason`.

        Raises:
            EchoTimeoutError: none are left.
        """
        waited = time.monotonic() - self._began
        if waited >= self.timeout:
            raise EchoTimeoutError(f"{caller} waited {self.timeout:g} s: {reason}")
        if waited >= LOG_AFTER and not self._logged:
            self._logged = True
            _log.warning("%s has waited %.0f s: %s", caller, waited, reason)
        return self.timeout - waited
