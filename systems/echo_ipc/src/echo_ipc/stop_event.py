"""The event that tells collectors to stop.

A `multiprocessing.Event` is not enough: its `set()` waits until everybody who waits for the event has woken up, so one that was killed meanwhile, or is
stopped, would hold up the learner for ever.
"""

from __future__ import annotations

import time

import numpy as np

from echo_core.base.errors import ConnectionClosedError

from .segments.cell import Cell

__all__ = ["StopEvent"]


class StopEvent:
    """What a `multiprocessing.Event` is, in shared memory. Hand it to a process as an argument."""

    def __init__(self) -> None:
        self._cell = Cell({"set": ((), "bool")})

    def is_set(self) -> bool:
        value, version = self._cell.read()
        return value is not None and version > 0 and bool(value["set"])

    def set(self) -> None:
        self._cell.write({"set": np.bool_(True)})

    def clear(self) -> None:
        self._cell.write({"set": np.bool_(False)})

    def wait(self, timeout: float | None = None) -> bool:
        """Sleep until the event is set; False if the timeout passed first. It is also set when its learner is gone."""
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            version = self._cell.version
            if self.is_set():
                return True
            try:
                if not self._cell.wait(version, None if end is None else max(0.0, end - time.monotonic())):
                    return self.is_set()
            except ConnectionClosedError:
                self.set()
