"""What a listener is handed: the door through which it puts samples into the learner's store and reports its peers."""

from __future__ import annotations

import copy
import logging
import secrets
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..base.errors import ClosedError, EchoError, SecurityError, UnknownTableError
from ..security.tokens import may
from ..store.shared.shared_store import SharedStore, share
from ..store.slot import Slot, claim
from ..wire.labels import SUFFIX, TableSpecs, labelled

if TYPE_CHECKING:
    from ..spec.spec import Spec
    from ..wire.protocol import Blob
    from ..wire.transport import Peer
    from ..wire.weights import PackedWeights
    from .server import Server

__all__ = ["Sink"]

_log = logging.getLogger("echo")


class Sink:
    """One server, as its listeners see it.

    It refers to the server weakly: threads of a listener must not keep a dropped server alive. Every method may be called from any
    thread; once the server is gone they raise ClosedError (the reporting ones do nothing).

    Attributes:
        spec: the `Spec` that every sample must match; with labels where the table keeps policy versions, see labels.py.
        incarnation: 32 hex digits, new for every server: workers tell a restart from a dropped connection by it.
        native: PyCapsule "echo_core.store.store" for the native door (include/echo_capi.h); it keeps the store's memory alive.
        table_name: of the replay table this sink is for; "" is the first, or the stream.
        tables: the `Spec` of each replay table that clients may name in their handshake; empty for a stream. `spec`, `native` and
            `claim` are those of the first.
    """

    def __init__(self, server: Server) -> None:
        self._server = weakref.ref(server)
        specs = {name: table.spec if table.lags is None else labelled(table.spec) for name, table in server.tables.items()}
        self.spec: Spec = next(iter(specs.values()), server.spec)
        self.incarnation: str = secrets.token_hex(16)
        self._labelled = self.spec is not server.spec
        self.native: object = server.table().native(True) if self._labelled else server._native()
        self.tables: dict[str, Spec] = TableSpecs(specs, self.spec)
        self.table_name: str = ""

    def _alive(self) -> Server:
        server = self._server()
        if server is None:
            raise ClosedError("the server is gone")
        return server

    @property
    def tokens(self) -> Sequence[bytes]:
        """Tokens that authenticate a client, any of them. Ask again for every client: they are read anew (and created on first use)."""
        return self._alive()._tokens()

    @property
    def weights(self) -> PackedWeights | None:
        """The newest published weights."""
        server = self._server()
        return None if server is None else server._weights

    def claim(self, timeout: float | None = None) -> Slot:
        """Claim one slot: see `Slot`. timeout in seconds, None waits for ever.

        Raises:
            EchoTimeoutError: the store stayed full. ClosedError: it is closed.
        """
        server = self._alive()
        table = self.table_name.removesuffix(SUFFIX)
        return claim(server.table(table) if table else server, timeout, self._labelled)

    def table(self, name: str) -> Sink:
        """The same server as a client sees it that named a table in its handshake; "" is the sink itself."""
        if not name:
            return self
        sink = copy.copy(self)
        spec = self.tables.get(name)
        if spec is None:
            raise UnknownTableError(f"no table {name!r}; this server has {', '.join(map(repr, self.tables))}")
        table = self._alive().table(name.removesuffix(SUFFIX) or None)
        sink.table_name, sink.spec, sink._labelled = name, spec, len(spec.leaves) != len(table.spec.leaves)
        sink.native = table.native(sink._labelled)
        return sink

    def shared(self, claim_timeout: float) -> SharedStore | None:
        """The store as memory that other processes can write to; None when it lies in private memory.

        claim_timeout in seconds: how long a claim may delay the batch it is in before it is revoked.
        """
        return share(self._alive(), claim_timeout)

    def connected(self, peer: Peer) -> None:
        """A client passed the handshake. The server keeps `peer` and shows it; the transport updates it in place."""
        if (server := self._server()) is not None:
            server._peer_connected(peer)

    def lost(self, peer: Peer, reason: str) -> None:
        """A client's connection ended; an orderly end has an empty reason."""
        if (server := self._server()) is not None:
            server._peer_lost(peer, reason)

    def receipt(self, peer: Peer, version: int, digest: int) -> None:
        """`peer` holds this version of the weights whole."""
        packed = self.weights
        if packed is not None and packed.version == version and packed.digest != digest:
            _log.error(
                "worker %s confirms weights %d with digest %016x, but %016x was published", peer.name, version, digest, packed.digest
            )

    def control(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob]:
        """Answer a client's request: with a body, and bytes or several buffers that follow one another (`wire.pack_reply` takes either).

        Raises:
            SecurityError: the client's token does not permit the operation.
            EchoError: unknown operation or a failed one; its text travels back to the client.
        """
        server = self._alive()
        operation = server._operations.get(op)
        if operation is None:
            raise EchoError(f"this server has no operation {op!r}")
        if (wanted := may(peer.permissions, operation)) is not None:
            raise SecurityError(f"operation {op!r} needs a token for {wanted}; yours is for {', '.join(sorted(peer.permissions))}")
        return operation(server, peer, body, blob)
