"""What a listener is handed: the door through which it puts samples into the learner's store and reports its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..spec.spec import Spec
    from ..store.shared.shared_store import SharedStore
    from ..store.slot import Slot
    from .peer import Peer
    from .protocol import Blob
    from .weights import PackedWeights

__all__ = ["Sink"]


class Sink(ABC):
    """One server, as its listeners see it.

    It refers to the server weakly: threads of a listener must not keep a dropped server alive. Every method may be called from any
    thread; once the server is gone they raise ClosedError (the reporting ones do nothing).

    Attributes:
        spec: the `Spec` that every sample must match; with labels where the table keeps policy versions, see labels.py.
        incarnation: 32 hex digits, new for every server: workers tell a restart from a dropped connection by it.
        native: PyCapsule "echo_core.store" for the native door (include/echo_capi.h); it keeps the store's memory alive.
        table_name: of the replay table this sink is for; "" is the first, or the stream.
        tables: the `Spec` of each replay table that clients may name in their handshake; empty for a stream. `spec`, `native` and
            `claim` are those of the first.
    """

    spec: Spec
    incarnation: str
    native: object
    table_name: str
    tables: dict[str, Spec]

    @property
    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """Tokens that authenticate a client, any of them. Ask again for every client: they are read anew (and created on first use)."""

    @property
    @abstractmethod
    def weights(self) -> PackedWeights | None:
        """The newest published weights."""

    @abstractmethod
    def claim(self, timeout: float | None = None) -> Slot:
        """Claim one slot: see `Slot`. timeout in seconds, None waits for ever.

        Raises:
            EchoTimeoutError: the store stayed full. ClosedError: it is closed.
        """

    @abstractmethod
    def table(self, name: str) -> Sink:
        """The same server as a client sees it that named a table in its handshake; "" is the sink itself.

        Raises:
            UnknownTableError: the server has no such table.
        """

    @abstractmethod
    def shared(self, claim_timeout: float) -> SharedStore | None:
        """The store as memory that other processes can write to; None when it lies in private memory.

        claim_timeout in seconds: how long a claim may delay the batch it is in before it is revoked.
        """

    @abstractmethod
    def connected(self, peer: Peer) -> None:
        """A client passed the handshake. The server keeps `peer` and shows it; the transport updates it in place."""

    @abstractmethod
    def lost(self, peer: Peer, reason: str) -> None:
        """A client's connection ended; an orderly end has an empty reason."""

    @abstractmethod
    def receipt(self, peer: Peer, version: int, digest: int) -> None:
        """`peer` holds this version of the weights whole."""

    @abstractmethod
    def control(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob]:
        """Answer a client's request: with a body, and bytes or several buffers that follow one another (`protocol.pack_reply` takes either).

        Raises:
            SecurityError: the client's token does not permit the operation.
            EchoError: unknown operation or a failed one; its text travels back to the client.
        """
