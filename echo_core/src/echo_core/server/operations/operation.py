"""The signature of an operation, and functions that read the body of a request."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...base.errors import EchoError, ProtocolError

if TYPE_CHECKING:
    from ...store.replay.replay_table import ReplayTable
    from ...wire.later import Answer, Later
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["Operation", "count_of", "of_clients", "table_of"]

Operation = Callable[["ServerState", "Peer", dict[str, Any], bytes], "Answer | Later"]


def table_of(server: ServerState, body: dict[str, Any]) -> ReplayTable:
    name = body.get("table")
    if name is not None and not isinstance(name, str):
        raise ProtocolError("a table's name must be text")
    return server.table(name)


def count_of(body: dict[str, Any], most: int) -> int:
    n = body.get("n")
    if type(n) is not int or not 1 <= n <= most:
        raise EchoError(f"n must be a whole number from 1 to {most}, not {n!r}")
    return n


def of_clients(operation: Operation) -> Operation:
    """Report invalid values of a client to that client; the learner's log is only for the learner's own errors."""

    def checked(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer | Later:
        try:
            return operation(server, peer, body, blob)
        except ValueError as error:
            raise error if isinstance(error, EchoError) else EchoError(str(error)) from error

    return checked
