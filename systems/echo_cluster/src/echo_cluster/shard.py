"""A learner's connection to one shard: it is made again whenever it is lost, and knows the shard's mass as it was last told."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from echo_core import Client, ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError, JobEnded

from .near import address_from_here

if TYPE_CHECKING:
    from echo_core.plugins.replay_package import RemoteTable

    from .members import Member

__all__ = ["UNAVAILABLE", "Reached", "Shard", "ShardState"]

_log = logging.getLogger("echo")

UNAVAILABLE = (EchoTimeoutError, ConnectionClosedError, ClosedError)  # what a shard raises that is closed, stopped or gone
DIAL_SECONDS = 5.0
LOST_SECONDS = 2.0  # without a connection until it is dialled anew, perhaps at another address
TOLD_SECONDS = 1.0  # after which a mass is asked for, if no draw has told it
AGAIN_SECONDS = 0.5  # between two dials


class ShardState(NamedTuple):
    """One shard as a learner sees it.

    Attributes:
        name, address: of the member; "" is the address of a shard that has none now.
        life: counts the servers that it was.
        mass: the sum of the weights of its items, or their number if its sampler has no such sum.
        size: its items.
        state: "up", "down", "ended" or "refused".
        error: why it is not up.
    """

    name: str
    address: str
    life: int
    mass: float
    size: int
    state: str
    error: str


class Reached(NamedTuple):
    """A shard that can be asked now: its table, and its life, which was read first. So keys of a server that is restarted later count as gone."""

    table: RemoteTable
    life: int


class Shard:
    """One shard of a learner. Draws of the learner's threads and the upkeep of one other thread may run at the same time.

    Args:
        number: of the shard, in keys.
        member: where it is now.
        connect: makes the client for an address.
        table: the table's name; None is the first.
    """

    def __init__(self, number: int, member: Member, connect: Callable[[Any], Client], table: str | None) -> None:
        self.number, self.member = number, member
        self._connect, self._table = connect, table
        self._lock = threading.Lock()
        self.client: Client | None = None
        self._remote: RemoteTable | None = None  # of the client
        self.present = True  # whether the members still name it
        self.mass, self.size = 0.0, 0
        self.state, self.error = "down", "it was not reached yet"
        self._earlier = 0  # lives of earlier clients
        self._address = ""
        self._told = self._seen = self._dialled = 0.0
        self.busy = False  # upkeep is under way

    @property
    def life(self) -> int:
        """Counts the servers that this shard was: it grows with each new client, and when the client notices that its server was restarted."""
        with self._lock:
            client, earlier = self.client, self._earlier
        return earlier + (0 if client is None else int(client.stats()["learner_restarts"]))

    def ready(self) -> bool:
        """Whether it can be asked now."""
        return self.reached() is not None

    def reached(self) -> Reached | None:
        """Its table and its life, or None if it cannot be asked now."""
        with self._lock:
            client, table, earlier = self.client, self._remote, self._earlier
        if self.state != "up" or client is None or table is None:
            return None
        stats = client.stats()
        return Reached(table, earlier + int(stats["learner_restarts"])) if stats["connected"] else None

    def told(self, mass: float | None, size: int) -> None:
        """The shard has told its mass; None if its sampler has none."""
        self.mass, self.size, self._told = float(size) if mass is None else mass, size, time.monotonic()

    def failed(self, error: BaseException) -> None:
        """A draw has not been answered. The shard is asked again once it answers upkeep."""
        self.state, self.error = "ended" if isinstance(error, JobEnded) else "down", str(error)

    def due(self) -> bool:
        """Whether `keep_up` has something to do."""
        now = time.monotonic()
        if self.client is None:
            return self.present and now - self._dialled > AGAIN_SECONDS
        return self.state != "up" or now - self._told > TOLD_SECONDS

    def keep_up(self, seconds: float) -> None:
        """Dial the shard if it has no connection, and ask for its mass. It takes no longer than a dial, and raises nothing."""
        try:
            if self.client is None:
                self._dial()
            client = self.client
            if client is None:
                return
            if not client.stats()["connected"]:
                if self.state == "up":
                    self.state, self.error = "down", "the connection was lost"
                if client.ended or time.monotonic() - self._seen > LOST_SECONDS:
                    self._drop()
                return
            self._seen = time.monotonic()
            figures = client.request("stats", {"workers": False}, timeout=seconds)[0]
            prefix = f"table/{self._table or self._first(figures)}/"
            self.told(figures.get(f"{prefix}mass"), int(figures[f"{prefix}size"]))
            self.state, self.error = "up", ""
        except UNAVAILABLE as error:
            self.failed(error)
            client = self.client
            if client is not None and (client.ended or time.monotonic() - self._seen > LOST_SECONDS):
                self._drop()
        except (EchoError, OSError, KeyError) as error:
            if self.state != "refused":
                _log.warning("shard %s is left out: %s", self.member.name, error)
            self.state, self.error = "refused", str(error)
            self._drop()

    def _first(self, figures: dict[str, Any]) -> str:
        """The name of the shard's first table."""
        return next(name.split("/")[1] for name in figures if name.startswith("table/") and name.endswith("/size"))

    def _dial(self) -> None:
        self._dialled = time.monotonic()
        address = address_from_here(self.member.addresses, self.member.host)
        client = self._connect(address)
        with self._lock:
            if self.present:
                self.client, self._remote = client, client.table(self._table)
                self._address, self._seen = str(address), time.monotonic()
                return
        client.close(0)

    def _drop(self) -> None:
        """Forget the client. Keys of its life name nothing any more."""
        with self._lock:
            client, self.client, self._remote = self.client, None, None
            if client is None:
                return
            self._earlier += int(client.stats()["learner_restarts"]) + 1
        with contextlib.suppress(EchoError, OSError):
            client.close(0)

    def leave(self) -> None:
        """The members do not name it any more, or the learner is closed."""
        self.present = False
        if self.state == "up":
            self.state, self.error = "down", "the members do not name it any more"
        self._drop()

    def shown(self) -> ShardState:
        """What people see of it."""
        return ShardState(self.member.name, self._address, self.life, self.mass, self.size, self.state, self.error)
