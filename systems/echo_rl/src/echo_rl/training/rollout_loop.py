"""The learner's end of the loop: it issues tickets, collects results, and hands out one batch of groups for each policy version."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import optree

from echo_core import EchoTimeoutError, Server
from echo_rl.rollouts.ticket_table import TicketTable
from echo_rl.rollouts.tickets import Group, Tickets

__all__ = ["RolloutLoop"]


class RolloutLoop:
    """One batch of groups after the other, each exactly as old as ``Tickets`` allows.

    ::

        loop.publish(weights)
        while ...:
            groups = loop.batch(timeout=60)
            weights = update(groups)
            loop.publish(weights)

    Args:
        server: has the table of ``TicketTable`` and the table of results, whose example is ``result_example``. It is started, and nothing is published yet.
        tickets: how many groups make a batch, and how old they may be.
        task_of: gives the task that belongs to a ticket's number; by default they are the same. A run that is resumed needs the same function.
        table: the name of the table of results.

    Attributes:
        ages: how many groups were trained at each age: the learner's version less the version that has made the rollouts.
    """

    def __init__(self, server: Server, tickets: Tickets, task_of: Callable[[int], int] = int, *, table: str = "rollouts") -> None:
        self._server, self.tickets, self._task_of, self._table = server, tickets, task_of, server.table(table)
        self._versions: dict[int, int] = {}  # by ticket: which version made the rollouts that wait
        self._published = 0
        self.ages: Counter[int] = Counter()

    def publish(self, weights: Any) -> None:
        """Publish the weights of the present version, and issue the tickets that it allows. After a batch this is the next version."""
        if self._published:
            self.tickets.updated()
        self._published = self.tickets.version
        self._server.publish(weights, version=self.tickets.version)
        TicketTable.offer(self._server, self.tickets.issue(self._task_of))

    def batch(self, timeout: float | None = None) -> list[Group]:
        """Wait for the groups of the next update, in the order of their tickets. Each has the rollouts as arrays of its own.

        Raises EchoTimeoutError if they are not there within ``timeout`` seconds; the message says which tickets are waited for. What has arrived stays.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while (groups := self.tickets.take()) is None:
            left = None if ends is None else ends - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise EchoTimeoutError("")
                sample = self._table.sample(1, left)
            except EchoTimeoutError:
                raise EchoTimeoutError(self._late(timeout)) from None
            assert sample is not None  # a closed server raises
            self._arrived(optree.tree_map(lambda column: np.array(column[0]), sample.batch))
        for group in groups:
            self.ages[self.tickets.version - self._versions.pop(group.ticket.number)] += 1
        return groups

    def _arrived(self, result: Any) -> None:
        number = int(result["number"])
        if self.tickets.arrive(number, result["rollouts"]):
            self._versions[number] = int(result["version"])

    def _late(self, timeout: float | None) -> str:
        missing = self.tickets.missing()
        shown = ", ".join(str(ticket.number) for ticket in missing[:8]) + (" ..." if len(missing) > 8 else "")
        return (
            f"no batch within {timeout} s: {self.tickets.arrived} of {self.tickets.batch} groups are there, and the results of tickets {shown} are missing "
            f"(the oldest is of version {missing[0].version}, the policy has version {self.tickets.version}); {self._actors()}"
        )

    def _actors(self) -> str:
        stats = self._server.stats()
        return f"{stats['store/active_connections']} actors are connected, and {stats['table/tickets/on_loan']} tickets are in their hands"

    # ---- checkpoints --------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs besides the weights: the tickets, the groups that wait, and the ages."""
        return {
            "tickets": self.tickets.state(),
            "versions": {str(number): version for number, version in self._versions.items()},
            "ages": {str(age): count for age, count in self.ages.items()},
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state at a new server, before the first ``publish``. Tickets without a result are issued again, because their actors may be gone.

        Raises ConfigError if the state was made with another batch or bound.
        """
        self.tickets.restore(state["tickets"])
        self._versions = {int(number): int(version) for number, version in state["versions"].items()}
        self.ages = Counter({int(age): int(count) for age, count in state["ages"].items()})
        TicketTable.offer(self._server, self.tickets.issue_again())
