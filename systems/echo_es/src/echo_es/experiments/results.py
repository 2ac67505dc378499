"""The results of a search so far: the newest epoch, the best reward, and the tests."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..search.epoch import Individuals
from ..search.tasks import Rewards

__all__ = ["Best", "Results", "mean_of"]


class Best(NamedTuple):
    """The highest reward so far, and the epoch and the individual that had it."""

    reward: float
    epoch: int
    individual: int


class Results:
    """Attributes:
    newest: the newest complete epoch and its rewards, float64 of shape (population,). It is None before the first epoch is complete.
    best: the highest reward of all epochs. It is None before the first epoch is complete.
    tests: the epoch and the rewards of each test.
    """

    def __init__(self) -> None:
        self.newest: tuple[int, Rewards] | None = None
        self.best: Best | None = None
        self.tests: list[tuple[int, Rewards]] = []
        self._told: list[tuple[Individuals, Rewards]] = []  # rewards of a steady search that are no epoch yet

    def complete(self, epoch: int, rewards: Rewards, individuals: Individuals | None = None) -> None:
        """An epoch is complete. `individuals`: their numbers, if these are not 0, 1, ..."""
        self.newest = epoch, rewards
        if np.isfinite(rewards).any():
            top = int(np.nanargmax(np.where(np.isfinite(rewards), rewards, -np.inf)))
            if self.best is None or rewards[top] > self.best.reward:
                self.best = Best(float(rewards[top]), epoch, top if individuals is None else int(individuals[top]))

    def told(self, individuals: Individuals, rewards: Rewards, population: int) -> None:
        """Rewards of a steady search. `population` of them, in the order in which they came, count as an epoch."""
        self._told.append((individuals, rewards))
        numbers, values = (np.concatenate(parts) for parts in zip(*self._told))
        epoch = 0 if self.newest is None else self.newest[0]
        whole = len(values) - len(values) % population
        for begin in range(0, whole, population):
            epoch += 1
            self.complete(epoch, values[begin : begin + population], numbers[begin : begin + population])
        self._told = [(numbers[whole:], values[whole:])]

    def figures(self) -> dict[str, float]:
        """The figures that exist already, by name."""
        figures = {}
        if self.best is not None:
            figures["best"] = self.best.reward
        if self.newest is not None and (mean := mean_of(self.newest[1])) is not None:
            figures["mean"] = mean
        if self.tests and (mean := mean_of(self.tests[-1][1])) is not None:
            figures["test_mean"] = mean
        return figures


def mean_of(rewards: Rewards) -> float | None:
    """The mean of the finite rewards, or None if no reward is finite."""
    finite = rewards[np.isfinite(rewards)]
    return float(finite.mean()) if finite.size else None
