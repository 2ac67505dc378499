"""The individuals of one epoch: which are free, and the rewards of those that were evaluated."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .ranges import Ranges
from .tasks import Rewards, individuals

__all__ = ["Endless", "Epoch", "Individuals", "in_order"]

Mask = np.ndarray[Any, np.dtype[np.bool_]]
Individuals = np.ndarray[Any, np.dtype[np.int64]]


class Epoch:
    """Individuals that need one reward each. The first reward of an individual counts.

    Attributes:
        number: the number of the epoch. The first one is 1.
        rewards: float64, shape (population,); NaN where there is none yet.
        free: the individuals that nobody evaluates.
        evaluated: how many individuals have a reward.
    """

    def __init__(self, number: int, population: int) -> None:
        self.number = number
        self.rewards: Rewards = np.full(population, np.nan)
        self.free = Ranges(slice(0, population))
        self.evaluated = 0
        self._flags = bytearray(population)  # 1: the individual has a reward; for a few individuals, slices of bytes are faster than arrays

    @property
    def _have(self) -> Mask:
        return np.frombuffer(self._flags, bool)

    @property
    def complete(self) -> bool:
        """Whether every individual has a reward."""
        return self.evaluated == len(self.rewards)

    def take(self, cores: int, most: int) -> list[slice]:
        """Up to `cores` free individuals, in at most `most` slices. If `most` is 0, there may be any number of slices."""
        return self.free.take(cores, most)

    def count(self, slices: Iterable[slice], values: Rewards) -> int:
        """Take these rewards, in the order of the slices. Returns how many individuals had none before."""
        new, at = 0, 0
        for part in slices:
            size = part.stop - part.start
            piece = values[at : at + size]
            if evaluated := self._flags.count(1, part.start, part.stop):
                missing = ~self._have[part]
                self.rewards[part][missing] = piece[missing]
            else:
                self.rewards[part] = piece
            self._flags[part] = b"\1" * size
            new += size - evaluated
            at += size
        self.evaluated += new
        return new

    def missing(self, slices: Iterable[slice]) -> list[slice]:
        """The individuals of these slices that have no reward yet."""
        return [piece for part in slices for piece in _holes(self._have, part)]

    def give_back(self, slices: Iterable[slice], held: Iterable[slice]) -> int:
        """Free the individuals of these slices that have no reward and are not in `held`. Returns their number."""
        taken = self._have.copy()
        for part in held:
            taken[part] = True
        again = [piece for part in slices for piece in _holes(taken, part)]
        self.free.give_back(again)
        return individuals(again)

    def restore(self, parts: Iterable[tuple[tuple[slice, ...], Rewards]]) -> None:
        """Begin with these rewards; what has none is free."""
        for slices, values in parts:
            self.count(slices, values)
        self.free = Ranges(*_holes(self._have, slice(0, len(self._have))))


class Endless:
    """Individuals whose numbers never start again at 0. It does not remember their rewards.

    Attributes:
        free: individuals that somebody has given back.
        told: how many rewards have come.
    """

    def __init__(self) -> None:
        self.free = Ranges()
        self.told = 0
        self._next = 0

    def take(self, cores: int, most: int) -> list[slice]:
        """`cores` individuals, or fewer that somebody has given back."""
        if not self.free:
            self.free.give_back([slice(self._next, self._next + cores)])
            self._next += cores
        return self.free.take(cores, most)

    def restore(self, individuals: Individuals) -> None:
        """Begin as if these individuals had been evaluated, int64 of shape (n,); those between them, which somebody lost, are free."""
        self.told = len(individuals)
        self._next = int(individuals.max()) + 1 if len(individuals) else 0
        have = np.zeros(self._next, bool)
        have[individuals] = True
        self.free = Ranges(*_holes(have, slice(0, self._next)))


def in_order(wanted: tuple[slice, ...], given: tuple[slice, ...], values: Rewards) -> Rewards | None:
    """`values` of the individuals in `given`, in the order of the slices `wanted`. Returns None if they are not exactly the rewards of those individuals.

    The slices themselves may differ: a worker may report each individual alone, or several slices as one.
    """
    if values.shape != (individuals(wanted),):
        return None
    if given == wanted:
        return values
    end = max(part.stop for part in wanted)
    if individuals(given) != len(values) or not all(0 <= part.start <= part.stop <= end for part in given):
        return None
    asked, reported = _numbers(wanted), _numbers(given)
    order = np.argsort(reported)
    places = order[np.minimum(np.searchsorted(reported, asked, sorter=order), len(order) - 1)]
    return values[places] if np.array_equal(reported[places], asked) else None


def _numbers(slices: tuple[slice, ...]) -> Individuals:
    """The individuals of these slices, in their order."""
    return np.concatenate([np.arange(part.start, part.stop) for part in slices])


def _holes(have: Mask, within: slice) -> list[slice]:
    """The ranges in which `have` is False."""
    edges = np.flatnonzero(np.diff(np.concatenate(([True], have[within], [True])).astype(np.int8)))
    return [slice(within.start + int(first), within.start + int(last)) for first, last in zip(edges[::2], edges[1::2])]
