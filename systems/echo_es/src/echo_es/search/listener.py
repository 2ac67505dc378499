"""The calls that a coordinator makes to the one who runs the search."""

from __future__ import annotations

from typing import Any, Protocol

from .tasks import Member, Rewards, Task

__all__ = ["Listener"]


class Listener(Protocol):
    """Gets a call for everything that happens in the search. The calls are made one after the other."""

    def evaluated(self, epoch: int, slices: tuple[slice, ...], rewards: Rewards) -> None:
        """These rewards have counted; their order is that of the slices."""

    def epoch_complete(self, epoch: int, rewards: Rewards) -> None:
        """Each individual has its reward. Nobody has heard of that before."""

    def state_shared(self, version: int, state: Any) -> None:
        """A worker has shared the state of this version. No other worker has it yet."""

    def tested(self, epoch: int, rewards: Rewards) -> None:
        """The rewards that `test` asked for."""

    def cancelled(self, member: Member, task: Task) -> None:
        """The worker does a task whose result is not needed any more, because others were faster."""

    def over(self) -> None:
        """The search is over."""
