"""What the wire side of a worker, `EchoLink`, needs of the worker. It calls the worker on its own thread, and waits for each call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..observations.shared import SharedObservations
    from .evaluation import Eval, Rewards

__all__ = ["Optimizer", "Owner"]


class Owner(Protocol):
    """A worker, as its wire side sees it."""

    @property
    def cores(self) -> int:
        """The most individuals that it evaluates at once."""

    @property
    def observations(self) -> SharedObservations | None:
        """The statistics of what it has seen. None means that it keeps no statistics."""

    @property
    def tests(self) -> bool:
        """Whether it can do tests."""

    def joined(self, strategy: dict[str, Any] | None, noise: str | None) -> None:
        """The description of the server's strategy, and its digest of the noise. Both are None if the workers optimise."""

    def welcomed(self, worker: str, population: int, max_epochs: int) -> None:
        """The server has accepted this worker, under this name."""

    def changed(self, state: Any) -> None:
        """There is a new state."""

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]: ...
    def test(self, epoch: int, state: bytes, episodes: int) -> Rewards: ...
    def stop(self, cancel: bool) -> None: ...

    def cancel(self) -> None:
        """Nobody needs the result of the present evaluation or test any more. It is called on another thread."""


@runtime_checkable
class Optimizer(Owner, Protocol):
    """A worker that can also make states, for servers that do not optimise."""

    def pack(self, state: Any) -> bytes:
        """The state as bytes, without pickle."""

    def unpack(self, data: memoryview) -> Any:
        """The state from bytes."""

    def initialize(self) -> Any: ...
    def optimize(self, epoch: int, rewards: list[float]) -> Any: ...
