"""An actor: it takes a ticket, makes the rollouts of its task with the policy that the ticket asks for, and sends them to the learner as one record.

The order is what makes a rollout count exactly once although any process may die at any moment: the ticket is done only after the learner has
acknowledged the result. An actor that dies before that gives its ticket back, by the end of its connection, and another actor gets it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from echo_core import Client, EchoTimeoutError, JobEnded
from echo_rl.rollouts.records import result_example
from echo_rl.rollouts.ticket_table import EXAMPLE, NAME, LentTicket, TicketTable
from echo_rl.rollouts.tickets import Ticket

__all__ = ["Collector", "Policy", "Worked", "run_actor"]

_log = logging.getLogger("echo.rl")


class Policy(Protocol):
    """Published weights, such as ``echo_core.Weights``."""

    @property
    def params(self) -> Any:
        """The pytree that the learner has published."""

    @property
    def version(self) -> int:
        """The policy version."""


class Collector(Protocol):
    """Makes rollouts."""

    @property
    def at_once(self) -> int:
        """The most tickets of a call of ``collect``."""

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> Sequence[Mapping[str, Any]]:
        """Make all rollouts of each ticket with this policy, and return each ticket's as the record that the learner's example describes.

        ``newer(version)`` returns a newer policy that has arrived meanwhile, or None. Whatever this raises ends the actor, and the tickets go to
        other ones.
        """


@dataclass
class Worked:
    """What an actor has done.

    Attributes:
        tickets: how many tickets it has done.
        overtaken: how many of them another actor had done before.
        version: the newest policy version that it has used.
    """

    tickets: int = 0
    overtaken: int = 0
    version: int = 0


def run_actor(address: Any, leaves: Mapping[str, Any], collector: Collector, *, table: str = "rollouts", timeout: float = 60.0, **options: Any) -> Worked:
    """Work until the learner ends the job.

    Args:
        address: the learner's address.
        leaves: the example of what ``collector`` returns.
        collector: makes the rollouts.
        table: the name of the table of results.
        timeout: after how many seconds without a ticket a line in the log says so, and the most seconds that weights, an acknowledgement or a new connection
            may take.
        options: of ``echo_core.Client``, such as ``token``.

    Raises:
        EchoTimeoutError: the learner gave no weights, or took no result, within ``timeout``.
        What the collector raises.
    """
    worked = Worked()
    with Client(address, result_example(leaves), table=table, tables={NAME: EXAMPLE}, timeout=timeout, **options) as client:

        def newer(version: int) -> Policy | None:
            try:
                return client.weights(0.0, newer_than=version)
            except EchoTimeoutError:
                return None

        while True:
            try:
                lent = _take(client, collector.at_once, timeout)
            except EchoTimeoutError:
                _log.warning("there was no ticket for %.0f s; the learner may be busy, or may wait for another actor", timeout)
                continue
            except JobEnded:
                return worked
            try:
                policy = client.weights(timeout, newer_than=max(one.ticket.version for one in lent) - 1)
                records = collector.collect([one.ticket for one in lent], policy, newer)
                for one, record in zip(lent, records, strict=True):
                    client.send({**record, "ticket": np.int64(one.ticket.number), "version": np.int64(policy.version)}, timeout)
                client.wait(timeout)
                done = sum(TicketTable.done(client, one) for one in lent)
            except JobEnded:
                return worked
            worked.tickets += len(lent)
            worked.overtaken += len(lent) - done
            worked.version = policy.version


def _take(client: Client, most: int, timeout: float) -> list[LentTicket]:
    """Wait for a ticket, and take others that are there already."""
    lent = [TicketTable.take(client, timeout)]
    try:
        while len(lent) < most:
            lent.append(TicketTable.take(client, 0.0))
    except EchoTimeoutError:
        pass
    return lent
