"""Calls that are decided under a lock and made without it, in the order in which they were decided."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

__all__ = ["Deliveries"]

_log = logging.getLogger("echo.es")


class Deliveries:
    """A queue of calls. Each is made once, by one of the threads that call `deliver`, after the calls before it have returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._delivering = False

    def then(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Make this call after all that were queued before."""
        with self._lock:
            self._calls.append((call, arguments))

    def deliver(self) -> None:
        """Make the calls that are queued. If another thread makes calls, or this is one of them, they are made there, and this returns at once."""
        while self._calls:  # a call that another thread queues behind this look is made by that thread
            with self._lock:
                if self._delivering or not self._calls:
                    return
                self._delivering = True
                calls, self._calls = self._calls, deque()
            try:
                for call, arguments in calls:
                    try:
                        call(*arguments)
                    except Exception:
                        _log.exception("the search goes on, but what was to be done next has failed")
            finally:
                with self._lock:
                    self._delivering = False
