"""The operation "calls/next", by which a client gets the calls of the server and gives their results (server/requests/calls.py)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...base.errors import EchoError, ProtocolError
from ...base.foreign_text import escaped
from ...wire.later import Later
from ..requests.large_messages import fitting

if TYPE_CHECKING:
    from ...wire.later import Answer
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["next_call"]


def next_call(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer | Later:
    """`{"op"}` asks for a call; `{"op", "call", "body" or "error"}` also has the result of an earlier one."""
    op = body.get("op")
    if not isinstance(op, str):
        raise ProtocolError("a request for calls must name an operation as op")
    if "call" in body:
        _result(server, peer, body, blob)
    while not isinstance(call := server._calls.next(peer, op), Later):
        try:
            return fitting(server, peer, call.request(), call.blob)
        except Exception as error:  # the caller gets it, not the client
            server._calls.fail(peer, call, error)
    return call


def _result(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> None:
    result, error = body.get("body"), body.get("error")
    if isinstance(error, str):
        server._calls.result(peer, body["call"], EchoError(f"{peer.name}: {escaped(error)}"))
    elif isinstance(result, dict):
        server._calls.result(peer, body["call"], (result, bytes(blob)))
    else:
        server._calls.result(peer, body["call"], EchoError(f"{peer.name} sent a result without a body"))
