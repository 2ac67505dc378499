"""An actor: it takes a ticket, makes the rollouts of its task with the policy that the ticket asks for, and sends them to the learner.

The order is what makes a rollout count exactly once although any process may die at any moment: the ticket is done only after the learner has
acknowledged the result. An actor that dies before that gives its ticket back, by the end of its connection, and another actor gets it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from echo_core import Client, EchoTimeoutError, JobEnded
from echo_rl.rollouts.ticket_table import EXAMPLE, NAME, TicketTable
from echo_rl.rollouts.tickets import Ticket

if TYPE_CHECKING:
    from echo_core import Weights

__all__ = ["Collector", "Worked", "result_example", "run_actor"]

_log = logging.getLogger("echo.rl")


class Collector(Protocol):
    """Makes rollouts."""

    def collect(self, ticket: Ticket, weights: Weights) -> Any:
        """Make all rollouts of a ticket with these weights, and return them as the pytree that the learner's example describes.

        Whatever it raises ends the actor, and the ticket goes to another one.
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


def result_example(rollouts: Any) -> dict[str, Any]:
    """The example of the table of results: the rollouts of one ticket, its number, and the policy version that has made them."""
    return {"number": np.int64(0), "version": np.int64(0), "rollouts": rollouts}


def run_actor(address: Any, rollouts: Any, collector: Collector, *, table: str = "rollouts", timeout: float = 60.0, **options: Any) -> Worked:
    """Work until the learner ends the job.

    Args:
        address: the learner's address.
        rollouts: an example of what ``collector`` returns.
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
    with Client(address, result_example(rollouts), table=table, tables={NAME: EXAMPLE}, timeout=timeout, **options) as client:
        while True:
            try:
                lent = TicketTable.take(client, timeout)
            except EchoTimeoutError:
                _log.warning("there was no ticket for %.0f s; the learner may be busy, or may wait for another actor", timeout)
                continue
            except JobEnded:
                return worked
            try:
                weights = client.weights(timeout, newer_than=lent.ticket.version - 1)
                result = {"number": np.int64(lent.ticket.number), "version": np.int64(weights.version), "rollouts": collector.collect(lent.ticket, weights)}
                client.send(result, timeout)
                client.wait(timeout)
                done = TicketTable.done(client, lent)
            except JobEnded:
                return worked
            worked.tickets += 1
            worked.overtaken += not done
            worked.version = weights.version
