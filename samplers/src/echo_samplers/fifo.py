"""First in, first out, for on-policy learners, which use every sample once and in order."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from echo_core.store.sampler import Keys, Priorities, Sampler, check_held, check_keys, check_new, check_priorities

__all__ = ["Fifo"]


class Fifo(Sampler):
    """Draws the n keys that arrived first, with probability 1.

    Without options it is the sampler of a stream, whose keys can be any numbers. With a `capacity` it
    serves a replay table as its sampler or its remover; it is then native, with rows as keys and 8
    bytes per sample.

    Every operation on n keys costs O(n), for any number of held keys. Priorities are checked and ignored.
    """

    storage = "stream"
    replacement = False

    @dataclass(frozen=True)
    class Options:
        """Options of `fifo`.

        Attributes:
            capacity: how many samples the replay table holds; None for a stream.
        """

        capacity: int | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._keys: Any = _AnyKeys()
        if self.options.capacity is not None:
            from . import _native
            from .native import make

            self._keys = make("Fifo", lambda: _native.ordered(self.options.capacity, False))
            self.storage = "replay"  # type: ignore[assignment]  # without a capacity, the class is a stream sampler

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self._keys.insert(keys, priorities)

    def delete(self, keys: Keys) -> None:
        self._keys.delete(keys)

    def update(self, keys: Keys, priorities: Priorities) -> None:
        self._keys.update(keys, priorities)

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        drawn: tuple[Keys, Priorities] = self._keys.sample(n, rng)
        return drawn

    def __len__(self) -> int:
        return len(self._keys)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        state: dict[str, np.ndarray[Any, Any]] = self._keys.state()
        return state

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        self._keys.restore(state, "Fifo")

    def moved(self, state: Mapping[str, np.ndarray[Any, Any]], rows: Keys) -> dict[str, np.ndarray[Any, Any]]:
        return {name: rows[array] for name, array in state.items()}

    def native(self) -> object | None:
        return None if self.storage == "stream" else self._keys.native()


class _AnyKeys:
    """Holds keys that can be any numbers, in order of arrival."""

    def __init__(self) -> None:
        # A dict would be too slow: finding its oldest key walks over all keys that were deleted
        # before it, so that draining a long queue from the front would take quadratic time.
        self._order: OrderedDict[int, None] = OrderedDict()

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        new = check_new(keys, self._order)
        if priorities is not None:
            check_priorities(priorities, check_keys(keys))
        self._order.update(dict.fromkeys(new))

    def delete(self, keys: Keys) -> None:
        for key in check_held(keys, self._order, once=True):
            del self._order[key]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        check_held(keys, self._order)
        check_priorities(priorities, check_keys(keys))

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        if not 1 <= n <= len(self._order):
            raise ValueError(f"{n} keys were requested, but from 1 to {len(self._order)} can be drawn")
        keys = np.fromiter(islice(self._order, n), dtype=np.uint64, count=n)
        return keys, np.ones(n)

    def __len__(self) -> int:
        return len(self._order)

    def state(self) -> dict[str, np.ndarray[Any, Any]]:
        return {"keys": np.fromiter(self._order, dtype=np.uint64, count=len(self._order))}

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]], name: str) -> None:
        if set(state) != {"keys"}:
            raise ValueError(f"the state of a {name} is one array 'keys', not {sorted(state)}")
        keys = check_keys(state["keys"]).tolist()
        order = OrderedDict.fromkeys(keys)
        if len(order) != len(keys):
            raise ValueError(f"array 'keys' holds a key twice; this is not a state of a {name}")
        self._order = order
