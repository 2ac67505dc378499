"""A learner's connection to one shard: it is made again whenever it is lost, and knows the shard's mass as it was last told."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from echo_core import Client, ClosedError, ConfigError, ConnectionClosedError, EchoError, EchoTimeoutError, JobEnded, SecurityError, SpecError
from echo_core.base.errors import HandshakeRefused, PluginError, UnknownTableError
from echo_core.base.waiting import shown

from .near import address_from_here

if TYPE_CHECKING:
    from echo_core.plugins.replay_package import RemoteTable

    from .members import Member

__all__ = ["UNAVAILABLE", "VERDICTS", "Reached", "Shard", "ShardState"]

_log = logging.getLogger("echo")

UNAVAILABLE = (EchoTimeoutError, ConnectionClosedError, ClosedError)  # what a shard raises that is closed, stopped or gone
VERDICTS = (SecurityError, SpecError, ConfigError, PluginError, UnknownTableError, HandshakeRefused)  # the next dial would end in the same way
DIAL_SECONDS = 5.0  # the longest dial
FIRST_DIAL_SECONDS = 0.5  # each dial that fails doubles it, so that the reason is known soon, and a slow host is reached later
LOST_SECONDS = 2.0  # without a connection until it is dialled anew, perhaps at another address
TOLD_SECONDS = 1.0  # after which a mass is asked for, if no draw has told it
AGAIN_SECONDS = 0.5  # between two dials
REFUSED_SECONDS = 2.0  # the same, for a shard that is refused
WAITING_SECONDS = 0.1  # until a shard whose table had no items for a draw is asked again
PASSING = ("busy", "shutdown", "ended")  # codes of refusals that may be over at the next dial
ADVICE = (", or wait longer (timeout=)", "wait longer (timeout=), or ")  # of a table; here the patience has ended the wait


class ShardState(NamedTuple):
    """One shard as a learner sees it.

    Attributes:
        name, address: of the member; "" is the address of a shard that has none now.
        life: counts the servers that it was.
        mass: the sum of the weights of its items, or their number if its sampler has no such sum.
        size: its items.
        state: "up", "down", "ended" or "refused".
        error: why it is not up; or of a shard that is up, what its table waits for, so that draws leave it out.
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
        connect: makes the client for an address, within so many seconds.
        table: the table's name; None is the first.
        servers: the shard of each server that a shard of the learner is connected to, by the server's own number. All shards share it.
    """

    def __init__(self, number: int, member: Member, connect: Callable[[Any, float], Client], table: str | None, servers: dict[str, Shard]) -> None:
        self.number, self.member = number, member
        self._connect, self._table, self._servers = connect, table, servers
        self._server, self._server_of_life = "", -1  # the number of its server, and the restarts that the client had seen when it was asked for
        self.twin = False  # another shard is connected to the same server
        self.waits = ""  # what its table waits for: the last draw waited for it in vain
        self._waits_until = 0.0
        self.refusal: Exception | None = None  # why it is "refused"
        self._dial_seconds = FIRST_DIAL_SECONDS
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

    def gave(self) -> None:
        """A draw has got items."""
        self.waits = ""

    def resting(self) -> bool:
        """Whether its table had no items for a draw a moment ago, so that the next draws need not ask it."""
        return bool(self.waits) and time.monotonic() < self._waits_until

    def failed(self, error: BaseException, seconds: float) -> None:
        """A request that waited so long got nothing. If the server has answered that its table waits, the shard is up. Otherwise it is asked again once
        it answers upkeep."""
        if isinstance(error, EchoTimeoutError) and error.waits_for:
            why = error.waits_for
            for advice in ADVICE:
                why = why.replace(advice, "")
            self.waits, self._waits_until = why, time.monotonic() + WAITING_SECONDS
        elif isinstance(error, EchoTimeoutError):
            self.state, self.error = "down", f"it did not answer within {shown(seconds)} s"
        else:
            self.state, self.error = "ended" if isinstance(error, JobEnded) else "down", str(error)

    def due(self) -> bool:
        """Whether `keep_up` has something to do."""
        now = time.monotonic()
        if self.client is None:
            return self.present and now - self._dialled > (REFUSED_SECONDS if self.state == "refused" else AGAIN_SECONDS)
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
            self._check_server(client, seconds)
            figures = client.request("stats", {"workers": False}, timeout=seconds)[0]
            prefix = f"table/{self._table or self._first(figures)}/"
            self.told(figures.get(f"{prefix}mass"), int(figures[f"{prefix}size"]))
            self.state, self.error = "up", ""
        except (EchoError, OSError, KeyError) as error:
            if isinstance(error, UNAVAILABLE) and not (isinstance(error, HandshakeRefused) and error.code not in PASSING):
                if (client := self.client) is None:
                    self.state, self.error = "down", str(error)  # of the dial, which says more
                else:
                    self.failed(error, seconds)
                if client is None or client.ended or time.monotonic() - self._seen > LOST_SECONDS:
                    self._drop()
                return
            if self.state != "refused":
                _log.warning("shard %s is left out: %s", self.member.name, error)
            self.refusal = error
            self.state, self.error = "refused", str(error)
            self._drop()

    def _first(self, figures: dict[str, Any]) -> str:
        """The name of the shard's first table."""
        return next(name.split("/")[1] for name in figures if name.startswith("table/") and name.endswith("/size"))

    def _dial(self) -> None:
        self._dialled = time.monotonic()
        address = address_from_here(self.member.addresses, self.member.host)
        seconds, self._dial_seconds = self._dial_seconds, min(2 * self._dial_seconds, DIAL_SECONDS)
        client = self._connect(address, seconds)
        self._dial_seconds = FIRST_DIAL_SECONDS
        with self._lock:
            if self.present:
                self.client, self._remote = client, client.table(self._table)
                self._address, self._seen = str(address), time.monotonic()
                return
        client.close(0)

    def _check_server(self, client: Client, seconds: float) -> None:
        """Raise ConfigError if another shard is connected to the same server by another address: its items would count twice."""
        if self._server_of_life == (life := int(client.stats()["learner_restarts"])):
            return
        server = str(client.request("ping", timeout=seconds)[0]["server"])
        self._leave_server()
        other = self._servers.setdefault(server, self)
        self.twin = other is not self
        if self.twin:
            raise ConfigError(f"{self._address} is the same server as {other._address} of shard {other.member.name}, and each server is drawn from once")
        self._server, self._server_of_life = server, life

    def _leave_server(self) -> None:
        """Another shard may be connected to its server from now on."""
        if self._servers.get(self._server) is self:
            del self._servers[self._server]
        self._server, self._server_of_life = "", -1

    def _drop(self) -> None:
        """Forget the client. Keys of its life name nothing any more."""
        self._leave_server()
        self.waits = ""
        with self._lock:
            client, self.client, self._remote = self.client, None, None
            if client is None:
                return
            self._earlier += int(client.stats()["learner_restarts"]) + 1
        with contextlib.suppress(EchoError, OSError):
            client.close(0)

    def end_job(self, ends: float, wait: Callable[[float], None]) -> str:
        """Tell it that the job has ended, also if it has no connection now. Returns why it could not be told; "" if it was.

        Args:
            ends: when to give up (`time.monotonic()`).
            wait: waits for upkeep, which makes connections.
        """
        why = self.error
        while True:
            left = ends - time.monotonic()
            if not self.present or self.twin or self.state == "ended":
                return ""
            if self.state == "refused":
                return self.error
            client = self.client
            if left <= 0:
                return why or "it did not answer"
            if client is None:
                why = self.error or why
                wait(min(left, 0.05))
                continue
            try:
                client.request("cluster/end", timeout=left)
                return ""
            except JobEnded:
                return ""
            except UNAVAILABLE as error:
                why = str(error)
                wait(min(0.05, max(0.0, ends - time.monotonic())))
            except EchoError as error:
                return "" if "has no operation" in str(error) else str(error)  # a server that serve_shard does not run ends by itself

    def leave(self) -> None:
        """The members do not name it any more, or the learner is closed."""
        self.present = False
        if self.state == "up":
            self.state, self.error = "down", "the members do not name it any more"
        self._drop()

    def shown(self) -> ShardState:
        """What people see of it."""
        error = f"its table waits: {self.waits}" if self.state == "up" and self.waits else self.error
        return ShardState(self.member.name, self._address, self.life, self.mass, self.size, self.state, error)
