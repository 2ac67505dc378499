"""How far a search is: the epoch, its rewards, the newest state, and a test that is under way. The coordinator's lock guards it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from .epoch import Endless, Epoch, Individuals
from .tasks import Kind, Member, RefusedError, Rewards, Task

__all__ = ["Progress", "Test"]

Part = tuple[tuple[slice, ...], Rewards]  # individuals, and their rewards in the order of the slices


class Test(NamedTuple):
    """Episodes that are evaluated with one state. They have numbers as individuals have.

    Attributes:
        episodes: their rewards, and which are free.
        state: the state with which they are evaluated, as workers get it.
        tasks: the numbers of the tasks that belong to this test. A worker may still report a task of an earlier test that was cancelled.
    """

    episodes: Epoch
    state: Any
    tasks: set[int]


class Progress:
    """How far a search is. For the arguments see `Coordinator`.

    Attributes:
        phase: "initialize", "evaluate", "optimize", "share", "tell" or "over".
        version: the version of the newest shared state. It is -1 if there is none.
        state: that state, as it was shared.
        now: the present epoch.
        endless: gives the individuals of a steady search. It is None if the search has epochs.
        told: the last epochs and their rewards, for workers that missed them.
        sharer: the worker that was asked for its state.
        test: the test under way.
    """

    def __init__(self, population: int, *, max_epochs: int, server_optimizes: bool, steady: bool, history: int) -> None:
        self.population, self.max_epochs, self.server_optimizes = population, max_epochs, server_optimizes
        self.phase = "evaluate" if server_optimizes else "initialize"
        self.version = 0 if server_optimizes else -1
        self.state: Any = None
        self.now = Epoch(1, population)
        self.endless = Endless() if steady else None
        self.told: deque[tuple[int, Rewards]] = deque(maxlen=history)
        self.sharer: Member | None = None
        self.test: Test | None = None
        self._tasks = 0

    @property
    def epoch(self) -> int:
        """The number of the present epoch."""
        return self.now.number

    def task(
        self,
        kind: Kind,
        slices: Iterable[slice] = (),
        *,
        epoch: int | None = None,
        version: int | None = None,
        rewards: Rewards | None = None,
        state: Any = None,
    ) -> Task:
        """A new task, by default of the present epoch and the newest state."""
        self._tasks += 1
        epoch, version = self.epoch if epoch is None else epoch, max(self.version, 0) if version is None else version
        return Task(self._tasks, kind, epoch, version, tuple(slices), rewards, state)

    def was_given(self, task: int) -> bool:
        """Whether there was a task with this number."""
        return 0 < task <= self._tasks

    def next_epoch(self) -> None:
        """There is a state. Its epoch begins, unless the last one is over."""
        if self.phase in ("initialize", "evaluate"):
            self.phase = "evaluate"
        elif self.phase != "over":
            self.now = Epoch(self.epoch + 1, self.population)
            self.phase = "evaluate"

    @property
    def past_last(self) -> bool:
        """Whether all epochs are over."""
        return bool(self.max_epochs) and self.epoch > self.max_epochs

    def complete(self) -> tuple[int, Rewards] | None:
        """If each individual has its reward, the epoch is told: returns its number and the rewards."""
        if self.phase != "evaluate" or self.endless is not None or not self.now.complete:
            return None
        self.phase = "tell" if self.server_optimizes else "optimize"
        rewards = self.now.rewards
        rewards.flags.writeable = False
        self.told.append((self.epoch, rewards))
        return self.told[-1]

    def count_steady(self, evaluated: int) -> None:
        """So many rewards were told on arrival."""
        assert self.endless is not None
        self.endless.told += evaluated
        while self.endless.told >= self.epoch * self.population and not self.past_last:
            self.now = Epoch(self.epoch + 1, self.population)

    def begin_test(self, episodes: int, state: Any) -> None:
        """Raises RefusedError if there is nothing to test with, or a test is under way."""
        if self.phase == "over":
            raise RefusedError("the search is over, and its workers have gone; nothing can be tested any more")
        if self.phase == "initialize":
            raise RefusedError("there is no state to test yet; wait for the first epoch")
        if self.test is not None:
            raise RefusedError("a test is under way already; wait for its rewards")
        self.test = Test(Epoch(self.epoch, episodes), state, set())

    def resume(self, epochs: Iterable[tuple[int, Rewards]], version: int, state: Any, partial: Iterable[Part]) -> tuple[int, Rewards] | None:
        """See `Coordinator.resume`. Returns an epoch of which the server has to make the state."""
        self.told.extend(epochs)
        self.version, self.state = version, state
        last = self.told[-1][0] if self.told else version
        if last > version >= 0:  # its rewards are complete, but nobody has optimised with them yet
            self.now = Epoch(last, self.population)
            self.phase = "tell" if self.server_optimizes else "optimize"
            return self.told[-1] if self.server_optimizes else None
        if version >= 0:
            self.now = Epoch(last + 1, self.population)
            self.now.restore(partial)
            self.phase = "evaluate"
            return self.complete()
        return None

    def resume_steady(self, individuals: Individuals, version: int) -> None:
        """See `Coordinator.resume_steady`."""
        assert self.endless is not None
        self.endless.restore(individuals)
        self.version = version
        self.count_steady(0)
