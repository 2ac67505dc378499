"""What the wire side of a worker needs of the worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..observations.shared import SharedObservations
    from .evaluation import Eval

__all__ = ["Optimizer", "Owner"]


class Owner(Protocol):
    """A worker, as its wire side sees it. The hooks may take long, but they must not keep the event loop busy.

    Attributes:
        cores: the most individuals that it evaluates at once.
        observations: what it has seen, if it keeps statistics of that.
        tests: whether it can do tests.
    """

    cores: int
    observations: SharedObservations | None

    @property
    def tests(self) -> bool: ...

    def joined(self, strategy: dict[str, Any] | None, noise: str | None) -> None:
        """The server's strategy as it describes itself, and its digest of the noise; None: the workers optimise."""

    def welcomed(self, worker: str, population: int, max_epochs: int) -> None:
        """The server has accepted this worker, under this name."""

    async def changed(self, state: Any) -> None:
        """There is a new state."""

    def cancel(self) -> None:
        """Nobody needs the result of the present evaluation or test any more. It may be called on any thread."""

    async def call_evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]: ...
    async def call_test(self, epoch: int, state: bytes, episodes: int) -> list[float]: ...
    async def call_stop(self, cancel: bool) -> None: ...


@runtime_checkable
class Optimizer(Owner, Protocol):
    """A worker that can also make states, for servers that do not optimise."""

    def pack(self, state: Any) -> bytes:
        """The state as bytes, without pickle."""

    def unpack(self, data: memoryview) -> Any:
        """The state from bytes."""

    async def call_initialize(self) -> Any: ...
    async def call_optimize(self, epoch: int, rewards: list[float]) -> Any: ...
