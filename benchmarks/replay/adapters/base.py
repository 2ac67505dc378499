"""What an adapter writes: a buffer in the measured process, and for systems with a network the worker that fills it from another one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import numpy as np

from benchmarks.payloads import Payload, Tree

#: Exponents of prioritized replay (Schaul et al. 2016), the same for everybody.
ALPHA, BETA = 0.6, 0.4

#: Transitions in an episode, where that matters.
EPISODE = 500


class Buffer(ABC):
    """A replay buffer in the process that is measured. It ends by its process being killed.

    What the clock runs around are attributes, so that an adapter can put a system's own bound method there.
    """

    #: Where workers connect; "" in-process.
    address: str = ""
    #: Insert one item.
    add: Callable[[Tree], Any]
    #: Insert items whose leaves have a leading axis.
    extend: Callable[[Tree], Any]
    #: Draw a batch, in whatever shape the system has; with importance weights where the buffer is prioritized.
    sample: Callable[[], Any]

    def __init__(self, payload: Payload, capacity: int, batch: int) -> None:
        self.payload, self.capacity, self.batch = payload, capacity, batch

    def fill(self) -> None:
        """Insert `capacity` items; in large calls, as nothing is measured yet."""
        step = max(self.batch, min(1 << 16, (64 << 20) // self.payload.sample_bytes))
        stacked = self.payload.stacked(step)
        for start in range(0, self.capacity, step):
            n = min(step, self.capacity - start)
            self.extend(stacked if n == step else self.payload.build([leaf[:n] for leaf in self.payload.arrays(stacked)]))

    def pair(self, priorities: np.ndarray) -> None:
        """Draw a batch with weights, and give its items new priorities (float64, as many as the batch has)."""
        raise NotImplementedError

    @abstractmethod
    def arrays(self, batch: Any) -> list[np.ndarray]:
        """The leaves of a batch, in the payload's order, each with a leading axis."""

    def touch(self, batch: Any) -> None:
        """Read one element of every leaf: all that the measured learner does with a batch."""
        for leaf in self.arrays(batch):
            leaf.item(0)

    def begin(self) -> None:  # noqa: B027
        """Let the writer go that the buffer brought along, where the system cannot be reached by workers; others have none."""

    def inserted(self) -> int:
        """Items inserted so far, as the buffer counts them; for buffers that workers fill."""
        raise NotImplementedError


class Stacks(ABC):
    """Transitions whose observations are stacks of frames, in the process that is measured; episodes come one after another."""

    @abstractmethod
    def add(self, stack: list[np.ndarray], following: np.ndarray, ended: bool) -> None:
        """One transition.

        Args:
            stack: its frames, the newest last; fewer than a whole stack where the episode began.
            following: the frame that came next. ended: the episode goes no further.
        """

    @abstractmethod
    def sample(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The stacks of n transitions and those that followed them, each `(n, depth, *frame.shape)`, newest frame last."""


class Worker:
    """The inserting end in a process of its own, which is killed when it is no longer needed."""

    def flood(self, items: list[Tree]) -> NoReturn:
        """Insert round and round, one call for each item, until killed."""
        raise NotImplementedError


class System(ABC):
    """A system under test. `can` names what it is able to do, as the modes of cases.py ask:

    "insert", "uniform", "prioritized" (in the measured process), "writer" (prioritized, with one more process that inserts), "server" (any
    number of workers over the network), "beside" (the same, where the learner's figure is asked for), "memory", "stacks" (memory of
    transitions whose frames are shared).
    """

    name: str
    can: frozenset[str]
    #: The abilities that do not work in the installed version, and why.
    lacks: Mapping[str, str] = {}
    #: The most items for which memory is measured, where filling the table of the case would take too long.
    most_items: int = 1 << 40

    def stacks(self, items: int, depth: int) -> Stacks:
        """An empty prioritized buffer of `items` transitions with stacks of `depth` frames of 84 x 84."""
        raise NotImplementedError

    @abstractmethod
    def buffer(self, payload: Payload, capacity: int, batch: int, prioritized: bool) -> Buffer:
        """A buffer, empty."""

    def server(self, payload: Payload, capacity: int, batch: int, prioritized: bool, workers: int) -> Buffer:
        """A buffer that workers can reach at its `address`."""
        raise NotImplementedError

    def worker(self, address: str, payload: Payload) -> Worker:
        """A connected worker."""
        raise NotImplementedError
