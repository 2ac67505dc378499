"""What a served client needs of the listener that serves it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from echo_core.base.transport_options import ListenOptions
    from echo_core.wire.protocol import Farewell
    from echo_core.wire.sink import Sink
    from echo_core.wire.weights import PackedWeights

    from ..scatter import Inserter
    from .fair_lock import FairLock
    from .sessions import Sessions

__all__ = ["Host", "Intake"]

C = TypeVar("C")


class Intake(NamedTuple):
    """The way into one table, or into the stream. Clients that wait for its space take turns, and do not delay clients of another table."""

    turn: FairLock
    inserter: Inserter


class Host(Generic[C]):
    """The listener, as a served client (`C`, a `ServedClient`) sees it. Any thread may call the methods, without a client's lock.

    Attributes:
        sink: the server's sink.
        options: the options of the listener.
        sessions: what the listener remembers of its clients.
        newest: the newest weights. The object is replaced and never changed. It is None before the first weights, and while the next ones are
            packed.
        renumbered: whether a version had no higher number than the one before, because another learner numbers them.
        farewell: what clients are told when the listener closes.
    """

    sink: Sink
    options: ListenOptions
    sessions: Sessions
    newest: PackedWeights | None
    renumbered: bool
    farewell: Farewell

    @property
    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """The tokens that let a client in now."""

    @abstractmethod
    def cannot_serve(self) -> tuple[str, str] | None:
        """The code and the text of a refusal if no more clients can be served, else None."""

    @abstractmethod
    def take_place(self, client: C) -> bool:
        """Take a place for a client whose handshake has succeeded. False if other clients have taken the last one."""

    @abstractmethod
    def decided(self, client: C) -> None:
        """Note that the handshake of a client has ended, with success or without."""

    @abstractmethod
    def turned_away(self, address: str, error: Exception) -> None:
        """Count and log a failed handshake."""

    @abstractmethod
    def intake(self, sink: Sink) -> Intake:
        """The intake for the clients of `sink`."""

    @abstractmethod
    def gone(self, client: C) -> None:
        """Note that the thread of a client ends."""

    @abstractmethod
    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the listener's counters, which `ChannelListener.counters` names."""
