"""Slow tasks, which an idle worker may do as well. The first result counts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from statistics import median

from .tasks import Kind, Member, Task

__all__ = ["Stragglers"]

_DURATIONS = 64  # the number of tasks whose median says what is slow


class Stragglers:
    """How long tasks take.

    Args:
        straggle: a task is slow if it takes longer than this many times the median duration.
        floor: a task is not slow before this many seconds have passed. Without it, tasks of milliseconds would be done twice because of the scheduler's delays.
    """

    def __init__(self, straggle: float, floor: float) -> None:
        self._straggle, self._floor = straggle, floor
        self._durations: deque[float] = deque(maxlen=_DURATIONS)

    @property
    def usual(self) -> float:
        """The median duration of the last tasks, in seconds; 0 before the first has ended."""
        return median(self._durations) if self._durations else 0.0

    def took(self, seconds: float) -> None:
        """A task has ended."""
        self._durations.append(seconds)

    def slow(self, members: Iterable[Member], epoch: int, now: float, *, copied: bool = False) -> Iterator[tuple[Member, Task]]:
        """The workers whose task of this epoch is slow, the slowest first; those whose task is done by another one as well only if `copied`."""
        if not self._durations:
            return
        limit = max(self._straggle * self.usual, self._floor)
        for member in sorted(members, key=lambda one: one.since):
            task = member.task
            if task is not None and task.kind is Kind.EVALUATE and task.epoch == epoch and (copied or not member.copied) and now - member.since > limit:
                yield member, task
