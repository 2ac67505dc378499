"""The connections of one client to tables other than its own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..base.errors import UnknownTableError
from ..base.waiting import Wait
from ..spec.spec import Spec
from ..store.steps.steps import Steps, StepStreams, new_client_id
from ..wire.labels import UnlabelledError, labelled
from .explained import ExplainedConnection, Reasons

if TYPE_CHECKING:
    from ..wire.transport import Connection

__all__ = ["OtherTables", "close_all"]


class OtherTables:
    """Each connection is made at its first use. Thread-safe."""

    def __init__(self, connect: Callable[..., Connection], examples: Mapping[str, Any], reasons: Reasons) -> None:
        self._connect, self._reasons = connect, reasons
        self._steps = {name: example for name, example in examples.items() if isinstance(example, Steps)}
        self._specs = {
            name: self._steps[name].wire if name in self._steps else Spec.from_example(example) for name, example in examples.items()
        }
        self._streams: dict[str, StepStreams] = {}
        self._connections: dict[str, Connection] = {}
        self._labelled: set[str] = set()
        self._lock = threading.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._specs

    def spec(self, name: str) -> Spec:
        if name not in self._specs:
            have = ", ".join(map(repr, self._specs)) or "only its own"
            raise UnknownTableError(
                f"this client was given no example for table {name!r} (it has {have}); use Client(..., tables={{{name!r}: example}})"
            )
        return self._specs[name]

    def connection(self, name: str) -> Connection:
        connection = self._connections.get(name)
        if connection is None:
            with self._lock:
                connection = self._connections.get(name)
                if connection is None:
                    spec = self.spec(name)
                    if name in self._steps:
                        client_id = new_client_id()
                        connection = self._explained(name, self._connect(spec, table=name, client_id=client_id))
                        self._streams[name] = StepStreams(self._steps[name], connection.send, connection.send_batch, client_id)
                        self._connections[name] = connection
                        return connection
                    try:
                        raw = self._connect(spec, table=name, client_id="")
                    except UnlabelledError:
                        raw = self._connect(labelled(spec), table=name, client_id="")
                        self._labelled.add(name)
                    connection = self._connections[name] = self._explained(name, raw)
        return connection

    def _explained(self, name: str, raw: Connection) -> Connection:
        return ExplainedConnection(raw, self._reasons, name)

    def streams(self, name: str | None) -> StepStreams | None:
        """The object that sends to this table; None if the table does not store steps."""
        if name is None or name not in self._steps:
            return None
        self.connection(name)
        return self._streams[name]

    def step(self, name: str) -> Spec | None:
        """The spec of one step; None if the table does not store steps."""
        return self._steps[name].step if name in self._steps else None

    def labelled(self, name: str) -> bool:
        """Whether the connection carries labels, because its table keeps policy versions."""
        return name in self._labelled

    def add(self, name: str, connection: Connection) -> None:
        """Add a connection that is flushed, waited for and closed together with the others."""
        self._connections[name] = connection

    def open(self) -> list[Connection]:
        return list(self._connections.values())


def close_all(connections: Iterable[Connection], timeout: float) -> None:
    """Close connections in turn within `timeout` seconds in all, also after one of them raises, and then raise the first error.

    After Ctrl-C the rest is closed at once.
    """
    first: BaseException | None = None
    wait = Wait(timeout)
    for connection in connections:
        try:
            connection.close(wait.left())
        except BaseException as error:
            if not isinstance(error, Exception):
                wait = Wait(0.0)
                first = error
            first = first or error
    if first is not None:
        raise first
