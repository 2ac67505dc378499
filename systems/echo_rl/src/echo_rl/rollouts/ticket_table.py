"""The table through which tickets reach the actors. A ticket is lent: if its actor dies or hangs, another one gets it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from echo_core import Client, Queue, Table
from echo_rl.rollouts.tickets import Ticket

if TYPE_CHECKING:
    from echo_core import Server

__all__ = ["EXAMPLE", "NAME", "LentTicket", "TicketTable"]

EXAMPLE = {"number": np.int64(0), "task": np.int64(0), "version": np.int64(0), "attempt": np.int64(0)}
NAME = "tickets"


@dataclass(frozen=True)
class LentTicket:
    """A ticket in the hands of an actor, and the key by which it is acknowledged."""

    ticket: Ticket
    key: int


class TicketTable:
    """The learner's end and the actors' end of the table. An actor's client has to know it: ``Client(..., tables={NAME: EXAMPLE})``.

    Args:
        most: the most tickets that can be issued and have no result: ``(1 + eta) * batch``.
        actors: the most actors. Each may hold one ticket whose result is trained already, because it is done a moment after its result has come.
        lease: after how many seconds a ticket that is not done is given to another actor. An actor whose connection ends gives it back at once.
    """

    def __init__(self, most: int, lease: float = 60.0, actors: int = 1024) -> None:
        self.room, self.lease = most + actors, lease

    def table(self) -> Table:
        """The description of the table, for ``Server(tables=[...])``."""
        return Table(NAME, EXAMPLE, capacity=self.room, sampler="fifo", rate_limiter=Queue(self.room), lease_timeout=self.lease)

    @staticmethod
    def offer(server: Server, tickets: Iterable[Ticket]) -> None:
        """Put issued tickets into the table. Raises EchoTimeoutError if it is full: more are issued than it was made for."""
        given = list(tickets)
        if given:
            columns: dict[str, Any] = {name: np.array([getattr(ticket, name) for ticket in given], np.int64) for name in EXAMPLE}
            server.table(NAME).submit_batch(columns, timeout=0.0)

    @staticmethod
    def take(client: Client, timeout: float | None = None) -> LentTicket:
        """Wait for a ticket. Raises EchoTimeoutError if none comes within ``timeout`` seconds, and JobEnded if the learner is done."""
        sample = client.sample(1, timeout, table=NAME)
        numbers = {name: int(column[0]) for name, column in sample.batch.items()}
        return LentTicket(Ticket(**numbers), int(sample.keys[0]))

    @staticmethod
    def done(client: Client, lent: LentTicket) -> bool:
        """Say that the result is at the learner: call it after ``client.wait()``.

        Returns False if another actor was lent the ticket meanwhile, and was done first.
        """
        return client.ack(np.array([lent.key], np.uint64), table=NAME) == 1
