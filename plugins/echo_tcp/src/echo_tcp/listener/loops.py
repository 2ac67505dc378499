"""The native loops of a listener, by the table names that clients give in the handshake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from .._learner import NativeLearner

if TYPE_CHECKING:
    from echo_core.wire.weights import PackedWeights

__all__ = ["Loops"]


class Loops(dict[str, NativeLearner]):
    """Loops for each table, so that a full table never delays clients that write into another. Loops are added when clients name further tables.

    It refers neither to the listener nor to its control thread, which both hold it, so a closed listener is freed at once.
    """

    def __init__(self, make: Callable[[str, int], NativeLearner], names: Iterable[str]) -> None:
        super().__init__()
        self._make = make
        self._names: list[str] = []  # by the number of the loops
        self._lock = threading.Lock()  # so that versions reach all loops in order
        self._weights: PackedWeights | None = None
        self._version = 0
        for name in names:
            self.add(name)

    def add(self, name: str) -> NativeLearner:
        """Make the loops for a name that has none yet."""
        native = self._make(name, len(self._names))
        with self._lock:
            self._names.append(name)
            self[name] = native
            if self._weights is not None:
                _publish(native, self._weights)
        return native

    def name(self, group: int) -> str:
        """The name of the loops with this number."""
        return self._names[group]

    def group(self, name: str) -> int:
        """The number of the loops with this name."""
        return self._names.index(name)

    def publish(self, weights: PackedWeights) -> None:
        with self._lock:
            if weights is self._weights:
                return
            self._weights, self._version = weights, weights.version
            for native in self.values():
                _publish(native, weights)

    def withdraw(self) -> None:
        with self._lock:
            self._weights = None
            for native in self.values():
                native.withdraw()

    def version(self) -> int:
        """The number of the newest version; 0 if there is none."""
        return self._version


def _publish(native: NativeLearner, weights: PackedWeights) -> None:
    native.publish(weights.version, weights.digest, weights.meta, weights.payload)
