"""The learner's end of the loop: it issues tickets, draws their records, and hands out one batch of groups for each policy version."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from echo_core import ConfigError, EchoTimeoutError, Queue, Server, Table
from echo_rl.rollouts.actor import HAND_BACK, PREFIX, Collector, Partial
from echo_rl.rollouts.records import PackedRecords, pack, result, result_example, rows
from echo_rl.rollouts.ticket_table import TicketTable
from echo_rl.rollouts.tickets import Group, Ticket, Tickets

__all__ = ["Published", "RolloutLoop"]

_LOOK = 0.5  # seconds between two looks at the actors while a batch is waited for


@dataclass(frozen=True)
class Published:
    """The policy that is published now."""

    params: Any
    version: int


class RolloutLoop:
    """One batch of groups after the other, each exactly as old as ``Tickets`` allows.

    ::

        loop.publish(weights)
        while ...:
            groups = loop.batch(timeout=60)
            weights = update(loop.packed(groups))
            loop.publish(weights)

    Args:
        server: has the tables ``TicketTable(...).table()`` and ``results``. It is started, and nothing is published yet.
        leaves: the example of a record, as the actors have it.
        tickets: how many groups make a batch, and how old they may be.
        task_of: gives the task that belongs to a ticket's number; by default they are the same. A run that is resumed needs the same function.
        table: the name of the table of results.
        at_once: how many tickets an actor takes together, as the table of tickets was made.
        collector: makes the rollouts in this process, instead of actors.

    Attributes:
        ages: how many groups were trained at each age: the learner's version less the version that has made the rollouts.
        waited: for how many seconds ``batch`` has waited.
        drawn: how many records were drawn from the table, and in how many draws.
    """

    def __init__(
        self,
        server: Server,
        leaves: Mapping[str, Any],
        tickets: Tickets,
        task_of: Callable[[int], int] = int,
        *,
        table: str = "rollouts",
        at_once: int = 1,
        collector: Collector | None = None,
    ) -> None:
        self._server, self.tickets, self._task_of, self._table = server, tickets, task_of, server.table(table)
        self._leaves, self._example, self._collector = dict(leaves), result_example(leaves), collector
        self._at_once = at_once
        self._policy: Published | None = None
        self.ages: Counter[int] = Counter()
        self.waited = 0.0
        self.drawn = [0, 0]
        self._lock = threading.Lock()  # actors hand back tickets on the server's threads
        self._late: list[Ticket] = []  # the table had no room for them yet
        if collector is None:
            server.serve(PREFIX, lambda _, peer, body, blob: self._prefix(body))
            server.serve(HAND_BACK, lambda _, peer, body, blob: self._hand_back(body, blob))

    @staticmethod
    def results(leaves: Mapping[str, Any], most: int, *, name: str = "rollouts", max_bytes: int | None = None) -> Table:
        """The description of the table of results. Its limiter lets no actor send more than ``most`` records that are not drawn."""
        return Table(name, result_example(leaves), capacity=most, sampler="fifo", rate_limiter=Queue(most), max_bytes=max_bytes)

    def publish(self, weights: Any) -> None:
        """Publish the weights of the present version, and issue the tickets that it allows. After a batch this is the next version."""
        with self._lock:
            if self._policy is not None:
                self.tickets.updated()
        self._policy = Published(weights, self.tickets.version)
        self._server.publish(weights, version=self.tickets.version)
        with self._lock:
            self._offer(self.tickets.issue(self._task_of))

    def batch(self, timeout: float | None = None, look: Callable[[], None] = lambda: None) -> list[Group]:
        """Wait for the groups of the next update, in the order of their tickets. The rollouts of each are one record, whose arrays are its own.

        Args:
            timeout: in seconds; None waits for ever.
            look: called about twice a second while this waits. What it raises ends the wait.

        Raises EchoTimeoutError if they are not there within ``timeout`` seconds; the message says which tickets are waited for. What has arrived stays.
        """
        began = time.monotonic()
        try:
            while (groups := self._groups()) is None:
                look()
                if self._collector is None:
                    self._wait(began, timeout)
                else:
                    self._collect(self._collector)
        finally:
            self.waited += time.monotonic() - began
        for group in groups:
            self.ages[self.tickets.version - int(group.rollouts["version"])] += 1
        return groups

    def _groups(self) -> list[Group] | None:
        with self._lock:
            return self.tickets.take()

    def packed(self, groups: list[Group]) -> PackedRecords:
        """The records of groups as one batch, for ``RolloutSchema.unpack``."""
        return pack([group.rollouts for group in groups], self._leaves)

    def draw(self) -> None:
        """Take every result that has arrived, so that ``state`` has it."""
        if self._collector is None and (there := len(self._table)):
            self._take(there, 0.0)

    def _wait(self, began: float, timeout: float | None) -> None:
        """Draw what the next update needs, in one draw if nothing else comes first."""
        arrived, batch = self.tickets.arrived, self.tickets.batch
        left = _LOOK if timeout is None else min(_LOOK, timeout - (time.monotonic() - began))
        # With a batch of groups there, an old ticket is missing, and its record is one of the next ones.
        if left > 0 and self._take(batch - arrived if arrived < batch else 1, left):
            return
        # Not all of them are there. The server may stop, so what is there is kept.
        self.draw()
        with self._lock:
            self._offer_late()
        if timeout is not None and time.monotonic() - began >= timeout:
            raise EchoTimeoutError(self._nothing_within(timeout))

    def _take(self, n: int, timeout: float) -> bool:
        try:
            sample = self._table.sample(n, timeout)
        except EchoTimeoutError:
            return False
        assert sample is not None  # a closed server raises
        with self._lock:
            for record in rows(sample, self._example):
                if max(int(record["version"]), int(np.max(record.get("versions", 0), initial=0))) <= self.tickets.version:
                    self.tickets.arrive(int(record["ticket"]), record)
                # A policy newer than the present one was made by a learner that was killed after its last checkpoint. It is gone.
                elif (ticket := self.tickets.again(int(record["ticket"]))) is not None:
                    self._late.append(ticket)
            self._offer_late()
        self.drawn[0] += n
        self.drawn[1] += 1
        return True

    def _collect(self, collector: Collector) -> None:
        tickets = self.tickets.missing()[: collector.at_once]
        assert self._policy is not None
        for ticket, record in zip(tickets, collector.collect(tickets, self._policy, lambda _: None), strict=True):
            assert not isinstance(record, Partial)  # nobody tells this collector to leave
            found = result(record, ticket.number, self._policy.version)
            self.tickets.arrive(ticket.number, {name: np.array(leaf) for name, leaf in found.items()})

    def _offer(self, tickets: list[Ticket]) -> None:
        if self._collector is None:
            TicketTable.offer(self._server, tickets, self._at_once)

    def _offer_late(self) -> None:
        """Offer what there is room for. It comes too late where a result has arrived meanwhile, which does no harm."""
        if self._late:
            try:
                self._offer(self._late)
            except EchoTimeoutError:
                return  # at the next look
            self._late = []

    # ---- what actors request, on threads of the server ----------------------------------------------------------------

    def _prefix(self, body: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
        asked = [[_whole(value) for value in ticket] for ticket in body["tickets"]]
        with self._lock:
            found = [self.tickets.lent(number, part) for number, part in asked]
        parts = [[None, 0] if ticket is None else [ticket.part, len(ticket.prefix)] for ticket in found]
        return {"parts": parts}, b"".join(ticket.prefix for ticket in found if ticket is not None)

    def _hand_back(self, body: Mapping[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
        parts = [[_whole(value) for value in part] for part in body["parts"]]
        if sum(size for _, _, size in parts) != len(blob):
            raise ConfigError(f"{HAND_BACK}: the sizes of the prefixes are not that of the blob, {len(blob)} bytes")
        with self._lock:
            at = 0
            for number, part, size in parts:
                if (ticket := self.tickets.hand_back(number, part, bytes(blob[at : at + size]))) is not None:
                    self._late.append(ticket)
                at += size
            self._offer_late()
        return {}, b""

    def missing(self) -> str:
        """What the next update waits for, in words; "" if nothing is missing."""
        with self._lock:
            missing = self.tickets.missing()
        if not missing:
            return ""
        shown = ", ".join(str(ticket.number) for ticket in missing[:8]) + (" ..." if len(missing) > 8 else "")
        return (
            f"{self.tickets.arrived} of {self.tickets.batch} groups are there, and the results of tickets {shown} are missing "
            f"(the oldest is of version {missing[0].version}, the policy has version {self.tickets.version})"
        )

    def _nothing_within(self, timeout: float | None) -> str:
        return f"no batch within {timeout} s: {self.missing()}; {self.actors()}"

    def actors(self) -> str:
        """How many actors are connected, and how many tickets they hold, in words."""
        if self._collector is not None:
            return "this process makes the rollouts itself"
        stats = self._server.stats()
        return f"{stats['store/active_connections']} actors are connected, and {stats['table/tickets/on_loan']} tickets are in their hands"

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs besides the weights: the tickets, the groups that wait, and the ages. Call ``draw`` first."""
        with self._lock:
            tickets = self.tickets.state()
        return {"tickets": tickets, "ages": {str(age): count for age, count in self.ages.items()}, "waited": self.waited}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at a new server, before the first ``publish``. Tickets without a result are issued again, because their actors may be gone.

        Raises ConfigError if the state was made with another batch or bound.
        """
        with self._lock:
            self.tickets.restore(state["tickets"])
        self.ages = Counter({int(age): int(count) for age, count in state["ages"].items()})
        self.waited = float(state["waited"])
        with self._lock:
            self._offer(self.tickets.issue_again())


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ConfigError(f"{HAND_BACK}: a number of a ticket or a part has to be a whole number, not {value!r:.80}")
    return value
