"""An actor: it takes a ticket, makes the rollouts of its task with the policy that the ticket asks for, and sends them to the learner as one record.

The order is what makes a rollout count exactly once although any process may die at any moment: the ticket is done only after the learner has
acknowledged the result. An actor that dies before that gives its ticket back, by the end of its connection, and another actor gets it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from echo_core import Client, ConnectionClosedError, EchoTimeoutError, JobEnded
from echo_core.base.errors import HandshakeRefused
from echo_rl.rollouts.records import result_example
from echo_rl.rollouts.ticket_table import NAME, TicketTable, example
from echo_rl.rollouts.tickets import Ticket

__all__ = ["Collector", "Policy", "Worked", "run_actor"]

_AGAIN = 0.1  # seconds


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
        """How many tickets an actor takes together: the most of a call of ``collect``."""

    def collect(self, tickets: Sequence[Ticket], policy: Policy, newer: Callable[[int], Policy | None]) -> Sequence[Mapping[str, Any]]:
        """Make all rollouts of each ticket with this policy, and return each ticket's as the record that the learner's example describes.

        ``newer(version)`` returns a newer policy that has arrived meanwhile, or None. Whatever this raises ends the actor, and the tickets go to
        other ones.
        """


@dataclass
class Worked:
    """The counts of an actor's work.

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
        timeout: the most seconds that weights, an acknowledgement or a new connection may take. A ticket is waited for as long as the job lasts.
        options: of ``echo_core.Client``, such as ``token``.

    Raises:
        EchoTimeoutError: the learner gave no weights, or took no result, within ``timeout``.
        HandshakeRefused: the learner describes its records otherwise, or has another version.
        What the collector raises.
    """
    worked = Worked()
    with Client(address, result_example(leaves), table=table, tables={NAME: example(collector.at_once)}, timeout=timeout, **options) as client:

        def newer(version: int) -> Policy | None:
            try:
                return client.weights(0.0, newer_than=version)
            except EchoTimeoutError:
                return None

        while True:
            try:
                lent = TicketTable.take(client, math.inf)
            except JobEnded:
                return worked
            except HandshakeRefused:
                raise  # the learner that has come back is another one
            except ConnectionClosedError:
                time.sleep(_AGAIN)  # the learner is restarted, or the connection was lost; then the tickets have gone back
                continue
            try:
                policy = client.weights(timeout, newer_than=max(ticket.version for ticket in lent.tickets) - 1)
                records = collector.collect(lent.tickets, policy, newer)
                for ticket, record in zip(lent.tickets, records, strict=True):
                    client.send({**record, "ticket": np.int64(ticket.number), "version": np.int64(policy.version)}, timeout)
                client.wait(timeout)
                done = TicketTable.done(client, lent)
            except JobEnded:
                return worked
            worked.tickets += len(lent.tickets)
            worked.overtaken += 0 if done else len(lent.tickets)
            worked.version = policy.version
