"""The tasks of workers, and the workers as the coordinator knows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echo_core import EchoError

__all__ = ["Give", "Kind", "Member", "Outcome", "RefusedError", "Rewards", "Task", "individuals"]

Rewards = NDArray[np.float64]


class RefusedError(EchoError):
    """A worker asked for, or reported, something that does not fit what it was given. The coordinator's state is unchanged."""


class Kind(StrEnum):
    """The kinds of tasks."""

    WELCOME = "welcome"  # take this state
    INITIALIZE = "initialize"  # make the first state, and share it
    EVALUATE = "evaluate"  # the rewards of these individuals
    OPTIMIZE = "optimize"  # the next state, from the rewards of the whole epoch
    SHARE = "share"  # send the state of this version
    TEST = "test"  # the rewards of the current parameters themselves, one for each number in the slices
    STOP = "stop"  # it is over


class Outcome(Enum):
    """What became of a report."""

    COUNTED = "counted"
    DUPLICATE = "duplicate"  # another worker was first with all of it
    STALE = "stale"  # of an epoch that is over, or of a task that was taken away
    REPEATED = "repeated"  # this worker's last report once more
    DROPPED = "dropped"  # the worker gave the task back without a result


@dataclass(frozen=True, eq=False)
class Task:
    """One task for one worker.

    Attributes:
        id: its number, at least 1.
        kind: what to do.
        epoch: the number of the epoch. The first one is 1.
        version: the version of the state that it needs, which says how many epochs were optimised.
        slices: the individuals, without overlap (evaluate and test).
        rewards: the rewards of all individuals of the epoch, shape (population,) (optimize).
        state: the state of this version, as it was shared (welcome), or the parameters to be tested (test).
    """

    id: int
    kind: Kind
    epoch: int
    version: int
    slices: tuple[slice, ...] = ()
    rewards: Rewards | None = None
    state: Any = field(default=None, repr=False)


# Called with the task, from any thread, without the coordinator's lock. False: the worker cannot be reached any more.
Give = Callable[[Task], bool]


@dataclass(eq=False)
class Member:
    """A worker, as the coordinator knows it. Only the coordinator changes it.

    Attributes:
        id: the unique name that the caller has given it.
        name, cores: what it said about itself when it joined.
        version: the version of its state. None means that it has no state yet.
        task: the task that it does now. None means that it waits for one.
        since: the time at which it got the task or began to wait, by the coordinator's clock.
        copied: whether another worker has the same task, because this worker is slow.
        give: the function that takes its next task. None means that it has not asked for a task.
        lost: the time at which its connection was lost. None means that it is connected.
        reported: the id of the task that it reported last.
        evaluated: how many of its rewards have counted.
        digest: the digest of its state, which it reports after it has optimised. None means that it has not reported one.
        diverged: how many times its digest differed from that of the shared state.
        tests: whether it may be given tasks of the kind test, which Evochi's clients do not know.
    """

    id: str
    name: str
    cores: int
    version: int | None = None
    task: Task | None = None
    since: float = 0.0
    copied: bool = False
    give: Give | None = None
    lost: float | None = None
    reported: int = 0
    evaluated: int = 0
    digest: str | None = None
    diverged: int = 0
    tests: bool = True


def individuals(slices: tuple[slice, ...] | list[slice]) -> int:
    """How many individuals these slices have."""
    return sum(part.stop - part.start for part in slices)
