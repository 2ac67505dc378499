"""The sink that a server gives to its listeners (wire/sink.py has the contract)."""

from __future__ import annotations

import copy
import logging
import weakref
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any

from ..base.errors import ClosedError, ConnectionClosedError, SecurityError, UnknownTableError
from ..security.tokens import may
from ..store.slot import Slot, claim
from ..wire.blobs import PARTS
from ..wire.later import Later
from ..wire.protocol import pack_error, parse_reply, reply_pieces
from ..wire.sink import Sink
from .operations.operation import operation_of
from .operations.others import check_answer
from .requests.large_messages import fitting, taken, whole

if TYPE_CHECKING:
    from ..base.memory.client_memory import ClientMemory
    from ..spec.spec import Spec
    from ..store.storage import Storage
    from ..wire.peer import Peer
    from ..wire.protocol import Blob, Buffer
    from ..wire.weights import PackedWeights
    from .state import ServerState

__all__ = ["ServerSink"]

_log = logging.getLogger("echo")

GONE = pack_error(ConnectionClosedError("the client has left"))


class ServerSink(Sink):
    """A server's implementation of `Sink`."""

    def __init__(self, server: ServerState) -> None:
        self._server = weakref.ref(server)
        self._memory = server.client_memory
        self.tables: dict[str, Spec] = {name: table.spec for name, table in server.tables.items()}
        self.spec: Spec = next(iter(self.tables.values()), server.spec)
        self.incarnation: str = server.incarnation
        self.identities = server.identities
        self.table_name: str = ""
        self._show(server._storage())
        self.labels: frozenset[str] = frozenset(name for name, table in server.tables.items() if table.takes_labels)
        if self.labelled is not None:
            self.labels |= {""}

    def _show(self, storage: Storage) -> None:
        """Let native code reach this storage."""
        self.native: object = storage.native()
        self.labelled: object | None = storage.native(labelled=True) if storage.takes_labels else None

    def _alive(self) -> ServerState:
        server = self._server()
        if server is None:
            raise ClosedError("the server is gone")
        return server

    @property
    def tokens(self) -> Sequence[bytes]:
        return self._alive()._tokens()

    @property
    def weights(self) -> PackedWeights | None:
        server = self._server()
        return None if server is None else server._publishing.newest

    @property
    def client_memory(self) -> ClientMemory:
        return self._memory

    def claim(self, timeout: float | None = None) -> Slot:
        server = self._alive()
        return claim(server._storage(self.table_name or None), timeout)

    def table(self, name: str) -> ServerSink:
        if not name:
            return self
        sink = copy.copy(self)
        spec = self.tables.get(name)
        if spec is None:
            raise UnknownTableError(f"no table {name!r}; this server has {', '.join(map(repr, self.tables))}")
        sink.table_name, sink.spec = name, spec
        sink._show(self._alive()._storage(name))
        return sink

    @property
    def memory(self) -> tuple[int, int, int] | None:
        return self._alive()._storage().shared_memory()

    def connected(self, peer: Peer) -> None:
        if (server := self._server()) is not None:
            server._peer_connected(peer)

    def lost(self, peer: Peer, reason: str) -> None:
        if (server := self._server()) is not None:
            server._peer_lost(peer, reason)

    def receipt(self, peer: Peer, version: int, digest: int) -> None:
        packed = self.weights
        if packed is not None and packed.version == version and packed.digest != digest:
            _log.error("worker %s confirms weights %d with digest %016x, but %016x was published", peer.name, version, digest, packed.digest)

    def control(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob]:
        answer = self.request(peer, op, body, blob)
        if not isinstance(answer, Later):
            return answer
        payloads: SimpleQueue[bytes] = SimpleQueue()
        answer.send_to(lambda payload: payloads.put(b"".join(payload)))
        answer.on_gone(lambda: payloads.put(GONE))  # comes behind an error that was sent
        del answer  # if nobody else refers to it, it is never answered
        return parse_reply(payloads.get())

    def request(self, peer: Peer, op: str, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], Blob] | Later:
        server = self._alive()
        operation, call = operation_of(server, op, body)
        if (wanted := may(peer.permissions, operation)) is not None:
            raise SecurityError(f"operation {op!r} needs a token for {wanted}; yours is for {', '.join(sorted(peer.permissions))}")
        blob = whole(server, peer, body, blob)
        try:
            answer = call(server, peer, body, blob)
        finally:
            if PARTS in body:
                taken(server, peer, body)
        if isinstance(answer, Later):
            server._parked.park(peer, answer, body, blob, partial(self._packed, peer))
            return answer
        if op in server._served:
            check_answer(op, answer)
        return fitting(server, peer, *answer)

    def _packed(self, peer: Peer, body: dict[str, Any], blob: Blob) -> list[Buffer]:
        """The payload of an answer that comes later."""
        try:
            return reply_pieces(body, blob)
        except ValueError:  # it is too large for one message, or cannot be written, which is found again
            return reply_pieces(*fitting(self._alive(), peer, body, blob))
