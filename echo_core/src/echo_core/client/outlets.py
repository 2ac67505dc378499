"""The ways out of a client: one for each table that it sends to. All of them are one worker for the server, because they have one client id."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from ..base.errors import ConfigError, EchoTimeoutError, UnknownTableError
from ..base.forks import Origin
from ..base.waiting import Wait
from ..spec.marked_example import MarkedExample, MarkedSender
from ..spec.ragged import ChunkSpec, RaggedSpec, has_ragged
from ..spec.spec import Spec
from ..wire.labels import label_of, labels_of
from ..wire.reservation import Reservation
from .explained import ExplainedConnection, Reasons
from .leftovers import UNLABELLED
from .record_sender import RecordSender

if TYPE_CHECKING:
    from ..wire.transport import Connection
    from .leftovers import Leftover

__all__ = ["Outlet", "Outlets", "close_all", "spec_of"]

Connect = Callable[..., "Connection"]


def spec_of(example: Any) -> Spec:
    """The spec of what travels for a table with this example."""
    if isinstance(example, MarkedExample):
        return example.wire
    return RaggedSpec.from_example(example).chunk_spec if has_ragged(example) else Spec.from_example(example)


@dataclass
class Held:
    """The policy version that makes the samples sent now: `Client.policy_version`."""

    version: int | None = None


class Outlet:
    """Sends samples to one table. It connects when it is made. Thread-safe.

    Args:
        connect: makes a connection, as `Transport.connect` does.
        example: one sample, or `Steps`.
        spec: its `spec_of`.
        reasons: of the client.
        table: the table's name; None is the server's first table, or its stream.
        client_id: of the client.
        held: the policy version of the client.

    Attributes:
        raw: the connection.
        connection: the same, with errors that say why the learner takes no samples.
        table: the name of the table, as it was given.
        labels: whether the table takes priorities and policy versions: it is a replay table, and its items are no steps.
        streams: what sends to a table of steps; None otherwise.
        records: what sends samples of varying length; None otherwise.
    """

    def __init__(self, connect: Connect, example: Any, spec: Spec, reasons: Reasons, table: str | None, client_id: str, held: Held) -> None:
        options = {} if table is None else {"table": table}
        self.spec, self.table = spec, table
        self.raw = connect(spec, client_id=client_id, **options)
        self.labels = self.raw.takes_labels
        self.connection = ExplainedConnection(self.raw, reasons, table)
        self.streams: MarkedSender | None = None
        if isinstance(example, MarkedExample):
            self.streams = example.sender(self.connection.send, self.connection.send_batch, client_id)
        self.records = RecordSender(spec.records, self.connection.send_batch, self._unacknowledged, client_id, held) if isinstance(spec, ChunkSpec) else None
        self._held = held

    def send(self, sample: Any, timeout: float | None, priority: float | None, policy_version: int | None, step: dict[str, Any]) -> None:
        """See `Client.send`."""
        if self.streams is not None:
            if priority is not None or policy_version is not None:
                raise ConfigError("steps have no priority and no policy version; items get priorities by update_priorities()")
            return self.streams.send(sample, timeout, **step)
        self._check(step, priority is not None or policy_version is not None)
        if self.records is not None:
            return self.records.send(sample, timeout, priority, policy_version)
        self.connection.send(sample, timeout, self.label(priority, policy_version))

    def send_batch(self, samples: Any, timeout: float | None, priorities: Any, policy_version: int | None, steps: dict[str, Any]) -> None:
        """See `Client.send_batch`."""
        if self.streams is not None:
            if priorities is not None or policy_version is not None:
                raise ConfigError("steps have no priorities and no policy versions; items get priorities by update_priorities()")
            return self.streams.send_batch(samples, timeout, **steps)
        self._check(steps, priorities is not None or policy_version is not None)
        if self.records is not None:
            return self.records.send_batch(samples, timeout, priorities, policy_version)
        version = self._held.version if policy_version is None else policy_version
        if not self.labels or (priorities is None and version is None):
            return self.connection.send_batch(samples, timeout)
        first: Any = next(iter(optree.tree_leaves(samples, namespace=self.spec.namespace)), None)
        if not (shape := np.shape(first)):
            self.spec.flattener.batch_tobytes(samples)  # raises an error that names the fault
        self.connection.send_batch(samples, timeout, labels_of(shape[0], priorities, version))

    def send_again(self, leftover: Leftover, timeout: float | None) -> None:
        """See `Client.send_again`."""
        if self.streams is not None:
            raise ConfigError("samples of another table cannot be sent to a table of steps")
        self._check({}, leftover.labels is not None)
        if self.records is not None:  # samples without labels get none now, whatever the client's policy version is
            labels = UNLABELLED * len(leftover) if leftover.labels is None else leftover.labels
            return self.records.send_batch(leftover.samples, timeout, labels=labels)
        self.connection.send_batch(leftover.samples, timeout, leftover.labels)

    def explain(self, error: EchoTimeoutError, timeout: float | None) -> None:
        """Say in an error of what sends why the learner takes no samples. `streams` and `records` send by the connection that does this itself."""
        if self.streams is None and self.records is None:
            self.connection.explain(error, timeout)

    def label(self, priority: float | None = None, policy_version: int | None = None) -> bytes | None:
        """What travels behind one sample; None: nothing."""
        return label_of(priority, self._held.version if policy_version is None else policy_version) if self.labels else None

    def stats(self) -> dict[str, Any]:
        """The connection's counters, with one sample for each record."""
        return self.raw.stats() if self.records is None else self.records.counted(self.raw.stats())

    def _unacknowledged(self) -> int:
        return int(self.raw.stats()["unacknowledged"])

    def reserve(self, timeout: float | None) -> Reservation | None:
        """See `Client.reserve`; None if the transport cannot lend memory."""
        if self.records is not None:
            raise ConfigError("reserved slots have one size, and these samples vary in length: use send()")
        return self.connection.reserve(timeout, self.label())

    def _check(self, step: dict[str, Any], labels: bool) -> None:
        if step:
            raise ConfigError(f"{', '.join(step)} belong to tables of steps: give the client Steps(example) as the table's example")
        if labels and not self.labels and self.records is None:
            raise ConfigError("priorities or policy versions need a replay table, and this learner has none, it streams")


class Outlets:
    """The outlets of one client, by table. The own one is made at once, each other at its first use. Thread-safe.

    Args:
        connect, reasons, client_id: as `Outlet` takes them.
        own: the client's own example.
        table: the name of its table; None is the server's first one, or its stream.
        others: the examples of the other tables.
        origin: of the client.

    Attributes:
        own: the outlet of the client's own table.
        held: the policy version of the client.
    """

    def __init__(
        self, connect: Connect, reasons: Reasons, client_id: str, own: Any, spec: Spec, table: str | None, others: Mapping[str, Any], origin: Origin
    ) -> None:
        self._connect, self._reasons, self._client_id = connect, reasons, client_id
        self._origin = origin
        self._table = table
        self._first: str | None = None  # the name of the server's first table, once it was asked for
        self._examples = dict(others)
        self._specs = {name: spec_of(example) for name, example in others.items()}  # before a connection is made, which an invalid example would leave open
        self._others: dict[str, Outlet] = {}
        self._lock = threading.Lock()
        self.held = Held()
        self.own = self._made(own, spec, table)

    def _made(self, example: Any, spec: Spec, table: str | None) -> Outlet:
        return Outlet(self._connect, example, spec, self._reasons, table, self._client_id, self.held)

    def of(self, table: str | None) -> Outlet:
        """The outlet of this table. Raises UnknownTableError if the client was given no example for it, and ForkError in a forked child."""
        self._origin.check()
        if self.is_own(table):
            return self.own
        assert table is not None
        outlet = self._others.get(table)
        if outlet is None:
            spec = self.spec(table)
            with self._lock:
                outlet = self._others.get(table)
                if outlet is None:
                    outlet = self._others[table] = self._made(self._examples[table], spec, table)
        return outlet

    def is_own(self, table: str | None) -> bool:
        """Whether this is the table of the client's own example. Without a name for it, it is the server's first table, whose name the server knows."""
        if table is None or table == self._table:
            return True
        if self._table is not None or table in self._specs:
            return False
        if self._first is None:
            self._first = next(iter(self.own.connection.request("tables", {})[0]), "")
        return table == self._first

    def spec(self, name: str) -> Spec:
        """The spec of what travels to another table. Raises UnknownTableError as `of` does."""
        if name not in self._specs:
            have = ", ".join(map(repr, self._specs)) or "only its own"
            raise UnknownTableError(f"this client was given no example for table {name!r} (it has {have}); use Client(..., tables={{{name!r}: example}})")
        return self._specs[name]

    def step(self, name: str) -> Spec | None:
        """The spec of one step of another table; None if it does not store steps."""
        example = self._examples[name]
        return example.step if isinstance(example, MarkedExample) else None

    def open(self) -> list[Outlet]:
        """Those that are connected, the own one first."""
        return [self.own, *self._others.values()] if self._others else [self.own]


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
