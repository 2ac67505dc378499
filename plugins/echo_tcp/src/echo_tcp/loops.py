"""The native loops of a listener, by the table names that clients give in the handshake."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from ._learner import NativeLearner

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
        for name in names:
            self.add(name)

    def add(self, name: str) -> NativeLearner:
        """Make the loops for a name that has none yet."""
        native = self._make(name, len(self._names))
        with self._lock:
            self._names.append(name)
            self[name] = native
            if self._weights is not None:
                native.publish(self._weights.version, self._weights.meta, self._weights.payload)
        return native

    def name(self, group: int) -> str:
        """The name of the loops with this number."""
        return self._names[group]

    def group(self, name: str) -> int:
        """The number of the loops with this name."""
        return self._names.index(name)

    def publish(self, weights: PackedWeights) -> None:
        with self._lock:
            self._weights = weights
            for native in self.values():
                native.publish(weights.version, weights.meta, weights.payload)

    def version(self) -> int:
        """The number of the newest version; 0 if there is none."""
        weights = self._weights
        return 0 if weights is None else weights.version
