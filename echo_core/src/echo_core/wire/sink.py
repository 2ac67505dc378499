"""The contract of the sink, through which a listener puts samples into the learner's store and reports its peers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..base.memory.client_memory import ClientMemory
    from ..spec.spec import Spec
    from ..store.slot import Slot
    from .identity import Identities
    from .later import Later
    from .peer import Peer
    from .protocol import Blob
    from .weights import PackedWeights

__all__ = ["Sink"]


class Sink(ABC):
    """A listener's access to one server.

    It has only a weak reference to the server, because threads of a listener must not keep a dropped server alive. Every method may be
    called from any thread. Once the server is gone, methods raise ClosedError, except that the reporting ones do nothing.

    Attributes:
        spec: the `Spec` that every sample must match; it has no leaves if the server takes no samples.
        incarnation: 32 hex digits, new for every server. By them, workers distinguish a restarted learner from a dropped connection.
        identities: which connections hold which client ids, over all listeners; see identity.py.
        native: PyCapsule "echo_core.store" for the native interface (include/echo_capi.h); it keeps the store's memory alive.
        labelled: the same with one more leaf, which holds the labels of samples that have some (labels.py): claim slots by either, and commit
            samples with labels by this one. None if the store takes no labels.
        table_name: the name of this sink's replay table; "" is the first table, or the stream.
        tables: the `Spec` of each replay table that clients may name in their handshake; empty for a stream. `spec`, `native` and
            `claim` belong to the first table.
        labels: the names of those tables that take labels; "" is among them if the first one does.
    """

    spec: Spec
    incarnation: str
    identities: Identities
    native: object
    labelled: object | None
    table_name: str
    tables: dict[str, Spec]
    labels: frozenset[str]

    @property
    @abstractmethod
    def tokens(self) -> Sequence[bytes]:
        """The tokens, any of which authenticates a client. Call it again for every client, because they are read anew (and created on first use)."""

    @property
    @abstractmethod
    def weights(self) -> PackedWeights | None:
        """The newest published weights."""

    @property
    @abstractmethod
    def client_memory(self) -> ClientMemory:
        """The budget for memory that clients make the server hold.

        A transport that can end a connection from any thread opens an account for each connection and puts it into `Peer.memory` before it
        calls `connected`. It takes from the account whatever its client makes it keep, such as frames that are not complete. The server
        closes the account in `lost`.
        """

    @abstractmethod
    def claim(self, timeout: float | None = None) -> Slot:
        """Claim one slot: see `Slot`. `timeout` is in seconds; None waits for ever.

        Raises:
            EchoTimeoutError: the store stayed full. ClosedError: it is closed.
        """

    @abstractmethod
    def table(self, name: str) -> Sink:
        """The sink for clients that name this table in their handshake; "" is the sink itself.

        Raises:
            UnknownTableError: the server has no such table.
        """

    @property
    @abstractmethod
    def memory(self) -> tuple[int, int, int] | None:
        """The store as memory to which other processes can write: `(fd, nbytes, address)` of its memfd and of where this process has mapped it.

        None if it lies in private memory. The size is sealed; store/stream/area.hpp says what lies where. Duplicate `fd`, which the server closes, and
        retain `native` for as long as you use the address.
        """

    @abstractmethod
    def connected(self, peer: Peer) -> None:
        """Report that a client has passed the handshake. The server keeps `peer` and shows it; the transport updates it in place."""

    @abstractmethod
    def lost(self, peer: Peer, reason: str) -> None:
        """Report that a client's connection has ended; `reason` is empty if it was closed in order."""

    @abstractmethod
    def receipt(self, peer: Peer, version: int, digest: int) -> None:
        """Report that `peer` holds this complete version of the weights."""

    @abstractmethod
    def control(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob]:
        """Answer a client's request with a body, and with bytes or several buffers in order (`protocol.pack_reply` accepts either).

        It waits if the operation answers later. A transport that can send answers at any time, and from any thread, calls `request` instead.

        Raises:
            SecurityError: the client's token does not permit the operation.
            EchoError: the operation is unknown or failed; the text is sent back to the client.
        """

    def request(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob] | Later:
        """`control`, but without waiting: if the operation answers later, its `Later` is returned, and the transport calls its
        `send_to`. Such a request must not count against what the transport permits its client. This default implementation waits."""
        return self.control(peer, op, body, blob)
