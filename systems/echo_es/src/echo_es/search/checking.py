"""Compares a report with the task that a worker was given."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from .epoch import in_order
from .tasks import Member, RefusedError, Rewards, Task, individuals

__all__ = ["rewards_of", "text"]


def rewards_of(member: Member, task: Task, rewards: Iterable[float] | Rewards, slices: Iterable[slice] | None) -> Rewards:
    """The rewards in the order of the task's slices, float64. Raises RefusedError if they are not exactly those that were asked for."""
    values = np.array(rewards if isinstance(rewards, np.ndarray) else list(rewards), np.float64)
    given = task.slices if slices is None else tuple(slices)
    ordered = in_order(task.slices, given, values)
    if ordered is None:
        raise RefusedError(
            f"worker {member.name} was asked for the rewards of {text(task.slices)} ({individuals(task.slices)} individuals), "
            f"and gave {values.size} for {text(given)}; give exactly one reward for each"
        )
    return ordered


def text(slices: Iterable[slice], most: int = 8) -> str:
    """The slices as people read them, such as "0:4, 7:9"; the first `most` of them."""
    named = [f"{part.start}:{part.stop}" for part in slices]
    return ", ".join(named[:most] + ([f"and {len(named) - most} more"] if len(named) > most else [])) or "nothing"
