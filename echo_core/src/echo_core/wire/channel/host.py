"""What a served client needs of the listener that serves it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from ...base.transport_options import ListenOptions
    from ..scatter import Inserter
    from ..sink import Sink
    from ..weights import PackedWeights
    from .fair_lock import FairLock
    from .sessions import Sessions

__all__ = ["CLOSING", "DRAINING", "Host", "Intake"]

CLOSING, DRAINING = "the learner is closing", "the learner is draining"

C = TypeVar("C")


class Intake(NamedTuple):
    """One table, or the stream: clients that wait for its space take turns, and delay nobody at another table."""

    turn: FairLock
    inserter: Inserter


class Host(Generic[C]):
    """What a served client (`C`, a `ServedClient`) needs of the listener that serves it. Every method may be called from any thread, without a client's lock.

    Attributes:
        sink: of the server.
        options: what the listener was told.
        sessions: what it remembers of its clients.
        newest: the newest weights; replaced, never changed.
        farewell: what clients are told when the listener closes.
    """

    sink: Sink
    options: ListenOptions
    sessions: Sessions
    newest: PackedWeights | None
    farewell: str

    @property
    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """Tokens that let a client in now."""

    @abstractmethod
    def cannot_serve(self) -> tuple[str, str] | None:
        """Code and text of a refusal, if no more clients can be taken."""

    @abstractmethod
    def take_place(self, client: C) -> bool:
        """Its handshake went well. False: others were quicker to take the last place."""

    @abstractmethod
    def decided(self, client: C) -> None:
        """Its handshake is over, well or not."""

    @abstractmethod
    def turned_away(self, address: str, error: Exception) -> None:
        """Its handshake failed: counted and logged."""

    @abstractmethod
    def intake(self, sink: Sink) -> Intake:
        """Where the samples of `sink`'s clients go in."""

    @abstractmethod
    def gone(self, client: C) -> None:
        """Its thread ends."""

    @abstractmethod
    def count(self, name: str, n: int = 1) -> None:
        """Add to one of the listener's counters, which `ChannelListener.counters` names."""
