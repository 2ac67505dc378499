"""The contract of `echo_core.store.sampler`, one test per clause; see `echo_testing`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from echo_core.base.errors import UnknownKeyError
from echo_core.store.sampler import Sampler

from .sampler_clauses.checkpoints import CheckpointClauses
from .sampler_clauses.contents import ContentsClauses
from .sampler_clauses.distribution import DistributionClauses
from .sampler_clauses.door import DoorClauses
from .sampler_clauses.draws import DrawClauses
from .sampler_clauses.identity import IdentityClauses
from .sampler_clauses.keys import CAPACITY, keys
from .sampler_clauses.refusal import RefusalClauses

__all__ = ["SamplerContract"]


class SamplerContract(
    IdentityClauses,
    DrawClauses,
    DistributionClauses,
    ContentsClauses,
    RefusalClauses,
    DoorClauses,
    CheckpointClauses,
    ABC,
):
    """The base class of a sampler's tests. A subclass must define only `sampler`.

    A sampler that draws at random is also compared with `probabilities`, and any other sampler with
    `expected`; override the method that applies.
    """

    DRAWS = 20_000  # for measuring a distribution

    @property
    def top(self) -> int:
        """The largest possible key: any number in a stream, a row in a replay table."""
        return 2**64 - 1 if self.sampler().storage == "stream" else CAPACITY - 1

    @abstractmethod
    def sampler(self, **options: Any) -> Sampler:
        """A new, empty sampler. Give it the options that it needs (for a replay sampler `capacity`, at
        least CAPACITY); `options` override them."""

    def expected(self, order: Sequence[int], priorities: Sequence[float]) -> list[int] | None:
        """The keys that must be drawn, in order, after the keys `order` were inserted in this order
        with these `priorities`; None for a sampler that draws at random.

        By default, a stream gives its keys in the order of arrival.
        """
        return list(order) if self.sampler().storage == "stream" else None

    def probabilities(self, priorities: Sequence[float]) -> Sequence[float] | None:
        """The probability of each key to be drawn first, given the priorities of all keys; None
        compares the draws only with the probabilities that the sampler reports."""
        return None

    # ---- helpers --------------------------------------------------------------------------

    def filled(self, *order: int, priorities: Sequence[float] | None = None) -> Sampler:
        sampler = self.sampler()
        given = None if priorities is None else np.array(priorities, np.float64)
        sampler.insert(keys(*order), given)
        return sampler

    def drawn(self, sampler: Sampler, n: int, seed: int = 0) -> list[int]:
        return sampler.sample(n, np.random.default_rng(seed))[0].tolist()

    def held(self, sampler: Sampler, among: Sequence[int]) -> list[int]:
        """The keys among these that the sampler holds, that is, those that it can update."""
        found = []
        for key in among:
            try:
                sampler.update(keys(key), np.ones(1))
            except UnknownKeyError:
                continue
            found.append(key)
        assert len(found) == len(sampler)
        return found

    def held_keys(self, sampler: Sampler) -> list[int]:
        """All keys that the sampler holds; the sampler is not changed."""
        twin = self.sampler()
        twin.restore(sampler.state())
        held: list[int] = []
        while len(twin):
            drawn = np.unique(twin.sample(1 if twin.replacement else len(twin), np.random.default_rng(len(twin)))[0])
            twin.delete(drawn)
            held += drawn.tolist()
        return sorted(held)

    def played(self) -> Sampler:
        """A sampler after some inserts, deletions and updates."""
        sampler = self.filled(*range(40), priorities=[1.0 + key % 5 for key in range(40)])
        sampler.delete(keys(*range(0, 40, 3)))
        sampler.insert(keys(100, self.top, 101))
        sampler.update(keys(1, 100), np.array([7.5, 0.5]))
        return sampler
