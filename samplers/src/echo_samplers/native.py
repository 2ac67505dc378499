"""The base class of the native samplers: their Python interface to the rows of a replay table."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core.base.errors import ConfigError
from echo_core.store.sampler import Keys, Priorities, Sampler

from . import _native

__all__ = ["NativeSampler", "make"]


class NativeSampler(Sampler):
    """The base class of samplers whose contents lie in native memory. Keys are the rows of one table.

    Memory is reserved for `capacity` rows, but used only as they fill up. A key that is not below the
    capacity raises ValueError in `insert` and UnknownKeyError in other methods.
    """

    storage = "replay"

    @dataclass(frozen=True)
    class Options:
        """The options of a sampler that needs only a capacity.

        Attributes:
            capacity: how many samples the table holds.
        """

        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._rows = make(type(self).__name__, self._make)

    @abstractmethod
    def _make(self) -> _native.NativeSampler:
        """Make the native sampler for `self.options`."""

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self._rows.insert(keys, priorities)

    def delete(self, keys: Keys) -> None:
        self._rows.delete(keys)

    def update(self, keys: Keys, priorities: Priorities) -> None:
        self._rows.update(keys, priorities)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return self._rows.sample(n, rng)

    def mass(self) -> float | None:
        return self._rows.mass()

    def published(self, version: int) -> None:
        self._rows.published(version)

    def priorities(self, keys: Keys) -> Priorities:
        """The priorities of n held keys in the kept precision, as float64 of shape (n,); 1 if the
        sampler keeps no priorities. Raises UnknownKeyError."""
        return self._rows.priorities(keys)

    def __len__(self) -> int:
        return len(self._rows)

    def state(self) -> dict[str, npt.NDArray[Any]]:
        return self._rows.state()

    def restore(self, state: Mapping[str, npt.NDArray[Any]]) -> None:
        self._rows.restore(state, type(self).__name__)

    def moved(self, state: Mapping[str, npt.NDArray[Any]], rows: Keys) -> dict[str, npt.NDArray[Any]]:
        return {name: rows[array] if name in ("keys", "hot") else array for name, array in state.items()}

    def native(self) -> object:
        return self._rows.native()


def make(name: str, factory: Callable[[], _native.NativeSampler]) -> _native.NativeSampler:
    """Call `factory`, and add the sampler's name to errors.

    Raises:
        ConfigError: the capacity is invalid, or there is not enough memory for it.
    """
    try:
        return factory()
    except ValueError as error:
        raise ConfigError(f"{name}: {error}") from None
    except MemoryError:
        raise ConfigError(f"{name}: there is not enough memory for this many samples; choose a smaller capacity") from None
