"""Statistics that observations are normalised with, between a learner and its collectors: `SharedObsNormStats` as unilab.ipc has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from echo_core.base.errors import SpecError

from . import _native
from .arrays import tensors
from .arrays.values import pack, unpack
from .segments.cell import Bytes
from .segments.rows import Rows

__all__ = ["SharedObsNormStats"]

CAPACITY = 1 << 20


class SharedObsNormStats:
    """The newest statistics, usually (mean, std): every process sees those that were put last.

    Args:
        ctx: is ignored; no queue is needed.
        capacity: the most bytes that the statistics may have; the memory is three times as large. The default is enough for 65 000 float64 means.

    Raises:
        MemoryError: there is not enough memory.
    """

    def __init__(self, ctx: Any = None, *, capacity: int = CAPACITY) -> None:
        self._bytes = Bytes(capacity)
        # A process holds this table's lock while it changes the value, as the new value is made from the old one. If the holder is killed, the
        # kernel hands the lock on.
        self._turn = Rows({"turn": ((), "uint8")}, 1)
        self._begin()

    def _begin(self) -> None:
        self.last_stats: Any = None
        self._seen = 0

    def put(self, stats: Any) -> None:
        """Replace the statistics. They may be arrays, tensors, numbers, strings and None, in tuples, lists and dicts.

        Raises:
            SpecError: something else is in them.
            ValueError: they are larger than `capacity`.
            ClosedError: after close().
        """
        self._change(lambda value: value | {"stats": stats})

    def get(self) -> Any:
        """The newest statistics, new or not; None before the first."""
        if self._bytes.version != self._seen:
            data, self._seen = self._bytes.read()
            self.last_stats = unpack(data)["stats"]
        return self.last_stats

    def get_new(self) -> Any:
        """The newest statistics if this object has not returned them yet, otherwise None."""
        return self.get() if self._bytes.version != self._seen else None

    def merge(self, count: int, mean: Any, m2: Any) -> tuple[int, np.ndarray, np.ndarray]:
        """Add the observations of one collector to those of all, and put (mean, std) of all, float64.

        Args:
            count: how many observations there are since its last call.
            mean, m2: their mean, and the sum of their squared distances from it; of one shape.

        Returns:
            The same three of all observations so far. Each is counted once, however many processes call this at a time (Welford's method, as
            Chan, Golub and LeVeque extended it).

        Raises SpecError if `count` is negative, or if the shapes differ from each other or from those before.
        """
        mean, m2 = (np.asarray(tensors.as_array(value), np.float64) for value in (mean, m2))
        if count < 0 or mean.shape != m2.shape:
            raise SpecError(f"count must not be negative, and mean and m2 need one shape; they are {count}, {list(mean.shape)} and {list(m2.shape)}")
        merged: list[Any] = []

        def add(value: dict[str, Any]) -> dict[str, Any]:
            before = value.get("total") or (0, np.zeros_like(mean), np.zeros_like(m2))
            if before[1].shape != mean.shape:
                raise SpecError(f"mean has the shape {list(mean.shape)}, but {list(before[1].shape)} was merged before; use the same in all collectors")
            total = before[0] + int(count)
            part, distance = (count / total if total else 0.0), mean - before[1]
            merged[:] = (total, before[1] + distance * part, before[2] + m2 + distance * distance * (before[0] * part))
            return {"stats": (merged[1], np.sqrt(merged[2] / max(1, total))), "total": tuple(merged)}

        self._change(add)
        return merged[0], merged[1], merged[2]

    def _change(self, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
        with _native.Alone(self._turn._use()):
            data, version = self._bytes.read()
            self._bytes.write(pack(change(unpack(data) if version else {"stats": None})))

    def close(self) -> None:
        """Stop using the memory here."""
        self._bytes.close()
        self._turn.close()

    def cleanup(self) -> None:
        """Close; nobody can attach any more."""
        self._bytes.cleanup()
        self._turn.cleanup()

    def __getstate__(self) -> dict[str, Any]:
        return {"_bytes": self._bytes, "_turn": self._turn}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()
