"""Statistics of the observations that all workers of a search have seen: workers send what is new, and the server sends what it has merged.

A worker normalizes with the statistics that the server had when the epoch began, so all individuals of an epoch are treated alike.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .. import state as states
from ..arguments import shape_of
from ..search.tasks import RefusedError
from .statistics import ObservationStats

__all__ = ["MergedObservations", "SharedObservations"]


_log = logging.getLogger("echo.es")


class SharedObservations:
    """The worker's end. `add` takes the observations that you see, and `normalize` scales those that your policy gets.

    Give it to `run_worker` or to `Worker`. Thread-safe.

    Args:
        shape: the shape of one observation, which must be that of the server's `observations`.

    Attributes:
        merged: the statistics of what all workers have seen before this epoch.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        shape = shape_of("shape", shape)
        self.merged = ObservationStats(shape)
        self._new = ObservationStats(shape)
        self._lock = threading.Lock()

    def add(self, observations: ArrayLike) -> None:
        """Observations of shape (n, *shape). Those with NaN or infinity are left out."""
        with self._lock:
            self._new.add(observations)

    def normalize(self, observations: ArrayLike, clip: float = 5.0) -> NDArray[np.float32]:
        """The observations minus the mean, divided by the deviation, cut at -clip and clip: float32 of the same shape."""
        return self.merged.normalize(observations, clip)

    def take(self) -> bytes:
        """What is new since the last call, for the server; empty if there is nothing."""
        with self._lock:
            return states.pack(self._new.take()) if self._new.count else b""

    def replace(self, merged: bytes) -> None:
        """The server has sent what it has merged."""
        fresh = ObservationStats(self.merged.mean.shape)
        fresh.merge(states.unpack(merged))
        self.merged = fresh


class MergedObservations:
    """The server's end. Thread-safe.

    Attributes:
        sent: the statistics that workers use now, and the epoch after which they were made. It is None before the first epoch has ended.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sent: tuple[int, bytes] | None = None
        self._all = ObservationStats(shape)
        self._lock = threading.Lock()

    @property
    def count(self) -> int:
        """How many observations were merged."""
        return self._all.count

    def merging(self, data: bytes) -> Callable[[], None]:
        """Look at the statistics that a worker has sent, and return a function that takes them. Raises RefusedError if they do not fit."""
        try:
            fitting = ObservationStats(self._all.mean.shape)
            fitting.merge(states.unpack(data))
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise RefusedError(f"observations: {error}") from None
        return lambda: self._merge(fitting)

    def _merge(self, stats: ObservationStats) -> None:
        try:
            with self._lock:
                self._all.merge(stats.arrays())
        except ValueError as error:
            _log.error("the observations of a worker were left out: %s", error)

    def freeze(self, epoch: int) -> bytes | None:
        """An epoch is over: workers use what was merged until now. Returns it, or None if there is nothing new."""
        with self._lock:
            data = states.pack(self._all.arrays())
        if not self._all.count or (self.sent is not None and self.sent[1] == data):
            return None
        self.sent = epoch, data
        return data

    def restore(self, epoch: int, data: bytes) -> None:
        """Go on with the statistics of an earlier server."""
        arrays: Mapping[str, Any] = states.unpack(data)
        with self._lock:
            self._all.merge(arrays)
        self.sent = epoch, data
