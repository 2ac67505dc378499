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

__all__ = ["NAME", "LentTickets", "TicketTable", "example"]

NAME = "tickets"
_FIELDS = ("number", "task", "version", "attempt", "part")


def example(at_once: int = 1) -> dict[str, Any]:
    """The example of an item of the table: ``at_once`` tickets; the places of those that it lacks have the number -1."""
    return {name: np.zeros(at_once, np.int64) for name in _FIELDS}


@dataclass(frozen=True)
class LentTickets:
    """Tickets in the hands of an actor, and the key by which they are acknowledged."""

    tickets: tuple[Ticket, ...]
    key: int


class TicketTable:
    """The learner's end and the actors' end of the table. An actor's client has to know it: ``Client(..., tables={NAME: example(at_once)})``.

    Args:
        most: the most tickets that can be issued and have no result: ``(1 + eta) * batch``.
        actors: the most actors. Each may hold tickets whose results are trained already, because they are done a moment after the results have come.
        lease: after how many seconds tickets that are not done are given to another actor. An actor whose connection ends gives them back at once.
        at_once: how many tickets an actor takes together. It cannot take what happens to be there, since a draw that is given up loses its tickets until
            their lease ends.
    """

    def __init__(self, most: int, lease: float = 60.0, actors: int = 1024, at_once: int = 1) -> None:
        self.room, self.lease, self.at_once = most + actors, lease, at_once

    def table(self) -> Table:
        """The description of the table, for ``Server(tables=[...])``."""
        return Table(NAME, example(self.at_once), capacity=self.room, sampler="fifo", rate_limiter=Queue(self.room), lease_timeout=self.lease)

    @staticmethod
    def offer(server: Server, tickets: Iterable[Ticket], at_once: int = 1) -> None:
        """Put issued tickets into the table. Raises EchoTimeoutError if it is full: more are issued than it was made for."""
        given = list(tickets)
        if not given:
            return
        columns = {name: np.full((-(-len(given) // at_once), at_once), -1, np.int64) for name in _FIELDS}
        for name, column in columns.items():
            column.reshape(-1)[: len(given)] = [getattr(ticket, name) for ticket in given]
        server.table(NAME).submit_batch(columns, timeout=0.0)

    @staticmethod
    def take(client: Client, timeout: float | None = None) -> LentTickets:
        """Wait for tickets. Raises EchoTimeoutError if none come within ``timeout`` seconds, and JobEnded if the learner is done.

        Tickets that come at the very end of ``timeout`` may be lost until their lease ends, so it should be long.
        """
        sample = client.sample(1, timeout, table=NAME)
        rows = zip(*(sample.batch[name][0].tolist() for name in _FIELDS), strict=True)
        return LentTickets(tuple(Ticket(*row) for row in rows if row[0] >= 0), int(sample.keys[0]))

    @staticmethod
    def done(client: Client, lent: LentTickets) -> bool:
        """Say that the results are at the learner: call it after ``client.wait()``.

        Returns False if another actor was lent the tickets meanwhile, and was done first.
        """
        return client.ack(np.array([lent.key], np.uint64), table=NAME) == 1
