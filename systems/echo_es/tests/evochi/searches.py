"""A coordinator with a front, for the tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from echo_es.evochi.front import EvochiFront
from echo_es.evochi.options import FrontOptions
from echo_es.search.coordinator import Coordinator
from echo_es.search.tasks import Member, Rewards, Task


class Heard:
    """A listener that keeps the rewards of every epoch, and the states."""

    def __init__(self) -> None:
        self.epochs: dict[int, list[float]] = {}
        self.states: dict[int, Any] = {}

    def evaluated(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None: ...

    def epoch_complete(self, epoch: int, rewards: Rewards) -> None:
        assert epoch not in self.epochs
        self.epochs[epoch] = rewards.tolist()

    def state_shared(self, version: int, state: Any) -> None:
        self.states[version] = state

    def tested(self, epoch: int, rewards: Rewards) -> None: ...

    def cancelled(self, member: Member, task: Task) -> None: ...

    def over(self) -> None: ...


@contextmanager
def search(population: int = 20, *, options: FrontOptions | None = None, **more: Any) -> Iterator[tuple[EvochiFront, Coordinator, Heard]]:
    """A front on a free port."""
    heard = Heard()
    coordinator = Coordinator(population, heard, **more)
    front = EvochiFront(coordinator, options or FrontOptions(port=0)).start()
    try:
        yield front, coordinator, heard
    finally:
        front.close()
