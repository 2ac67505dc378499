"""A listener's log lines about unauthenticated clients. They are limited in rate, so that such clients cannot fill the disk."""

from __future__ import annotations

import logging
import time
from typing import Any

__all__ = ["Seldom"]

_log = logging.getLogger("echo")


class Seldom:
    """Logs the same complaint at most once in a few seconds, and says how many were left out."""

    INTERVAL = 5.0  # seconds

    def __init__(self) -> None:
        self._last: dict[str, tuple[float, int]] = {}  # by text: when it was logged, and how many were left out since

    def warn(self, text: str, *values: Any) -> None:
        now = time.monotonic()
        when, left_out = self._last.get(text, (-self.INTERVAL, 0))
        if now - when < self.INTERVAL:
            self._last[text] = (when, left_out + 1)
            return
        self._last[text] = (now, 0)
        more = f" ({left_out} more like this)" if left_out else ""
        _log.warning(f"tcp: {text}%s", *values, more)
