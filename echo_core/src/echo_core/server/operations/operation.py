"""The signature of an operation, and functions that read the body of a request."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ...base.errors import EchoError, ProtocolError

if TYPE_CHECKING:
    from ...store.storage import Storage
    from ...wire.later import Answer, Later
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["Operation", "count_of", "of_clients", "operation_of", "storage_of"]

Operation = Callable[["ServerState", "Peer", dict[str, Any], bytes], "Answer | Later"]


def _name(body: dict[str, Any]) -> str | None:
    name = body.get("table")
    if name is not None and not isinstance(name, str):
        raise ProtocolError("a table's name must be text")
    return name


def storage_of(server: ServerState, body: dict[str, Any]) -> Storage:
    return server._storage(_name(body))


def operation_of(server: ServerState, op: str, body: dict[str, Any]) -> tuple[Callable[..., Any], Operation]:
    """The operation called `op`, of the server or of the storage that the request names: what has its roles, and what is called.

    Raises:
        EchoError: there is no such operation. UnknownTableError: there is no such storage.
    """
    if (own := server._operations.get(op) or server._served.get(op)) is not None:
        return own, own
    if any(op in operations.by_name for operations in server._of_storages.values()):
        storage = storage_of(server, body)
        operations = server._of_storages[storage.name]
        if (operation := operations.by_name.get(op)) is None:
            raise EchoError(f"table {storage.name!r} has no operation {op!r}")
        return operation, partial(operation, operations)
    why = "" if "/" in op else server._storage().why_no_table()  # Echo's own operations have no slash
    raise EchoError(f"this server has no operation {op!r}" + (f": {why}" if why else ""))


def count_of(body: dict[str, Any], most: int) -> int:
    n = body.get("n")
    if type(n) is not int or not 1 <= n <= most:
        raise EchoError(f"n must be a whole number from 1 to {most}, not {n!r}")
    return n


def of_clients(operation: Callable[..., Answer | Later]) -> Callable[..., Answer | Later]:
    """Report invalid values of a client to that client; the learner's log is only for the learner's own errors."""

    def checked(*arguments: Any) -> Answer | Later:
        try:
            return operation(*arguments)
        except ValueError as error:
            raise error if isinstance(error, EchoError) else EchoError(str(error)) from error

    return checked
