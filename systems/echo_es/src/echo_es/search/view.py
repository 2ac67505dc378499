"""A look at an epoch that is under way, for people."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from .progress import Progress
from .stragglers import Stragglers
from .tasks import Member

__all__ = ["View", "WorkerView", "view_of"]


class WorkerView(NamedTuple):
    """What one worker does.

    Attributes:
        name, cores: what it said about itself when it joined.
        does: the kind of its task, "waits" or "away" (it is not connected).
        seconds: for how many seconds it has done that.
        slices: the individuals of its task, as [start, stop].
        slow: whether it takes so long that an idle worker gets the same task.
        evaluated: how many of its rewards have counted.
        diverged: how often its state was another one than that of the others.
    """

    name: str
    cores: int
    does: str
    seconds: float
    slices: list[list[int]]
    slow: bool
    evaluated: int
    diverged: int


class View(NamedTuple):
    """How far a search is.

    Attributes:
        phase: what the workers do; see `Coordinator.phase`.
        epoch, max_epochs: the present epoch, and the last one. 0 means that there is no last one.
        evaluated, population: how many individuals of the epoch have a reward, and how many there are.
        best, mean: the best and the mean of the finite rewards of the epoch so far. They are None if there is no finite reward.
        task_seconds: the median duration of the last tasks.
        workers: the workers. Busy ones come first, and the one that has been busy for the longest time comes first of all.
    """

    phase: str
    epoch: int
    max_epochs: int
    evaluated: int
    population: int
    best: float | None
    mean: float | None
    task_seconds: float
    workers: list[WorkerView]

    def to_json(self) -> dict[str, Any]:
        """The view as JSON has it."""
        return self._asdict() | {"workers": [worker._asdict() for worker in self.workers]}


def view_of(search: Progress, members: Iterable[Member], stragglers: Stragglers, now: float) -> View:
    """The coordinator's lock is held."""
    members = list(members)
    slow = {one.id for one, _ in stragglers.slow(members, search.epoch, now, copied=True)}
    workers = [_worker(member, member.id in slow, now) for member in members]
    finite = search.now.rewards[np.isfinite(search.now.rewards)]
    return View(
        search.phase,
        min(search.epoch, search.max_epochs) if search.max_epochs else search.epoch,
        search.max_epochs,
        search.now.evaluated if search.endless is None else search.endless.told % search.population,
        search.population,
        float(finite.max()) if finite.size else None,
        float(finite.mean()) if finite.size else None,
        stragglers.usual,
        sorted(workers, key=lambda one: (one.does in ("waits", "away"), -one.seconds, one.name)),
    )


def _worker(member: Member, slow: bool, now: float) -> WorkerView:
    task = member.task
    if member.lost is not None:
        does, since = "away", member.lost
    elif task is not None:
        does, since = task.kind.value, member.since
    else:
        does, since = "waits", member.since
    slices = [] if task is None else [[part.start, part.stop] for part in task.slices]
    return WorkerView(member.name, member.cores, does, now - since, slices, slow, member.evaluated, member.diverged)
