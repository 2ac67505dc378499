"""Tickets over a transport: each reaches one actor, and those of an actor that leaves or hangs reach another."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, Queue, Server, Table
from echo_rl.rollouts.ticket_table import NAME, TicketTable, example
from echo_rl.rollouts.tickets import Tickets

pytestmark = pytest.mark.needs("echo-tcp")
RESULT = {"number": np.int64(0)}
TABLES = {NAME: example()}


def results() -> Table:
    return Table("results", RESULT, capacity=64, sampler="fifo", rate_limiter=Queue(64))


def test_tickets_are_lent_given_back_and_done() -> None:
    tickets, table = Tickets(batch=3, eta=1), TicketTable(6)
    with Server(tables=[results(), table.table()], batch_size=1, transport="tcp://127.0.0.1:0") as server:
        table.offer(server, tickets.issue(lambda number: number + 100))
        with Client(server.address, RESULT, tables=TABLES) as leaving, Client(server.address, RESULT, tables=TABLES) as staying:
            assert table.take(leaving, 10).tickets == (tickets.outstanding[0],)
            second = table.take(staying, 10)
            assert [(ticket.number, ticket.task) for ticket in second.tickets] == [(1, 101)]
            staying.send({"number": np.int64(1)})
            staying.wait(10)
            assert table.done(staying, second)
            assert not table.done(staying, second)
            leaving.close()
            assert sorted(table.take(staying, 10).tickets[0].number for _ in range(5)) == [0, 2, 3, 4, 5]
            with pytest.raises(EchoTimeoutError):
                table.take(staying, 0.1)
        assert server.table("results").sample(1, 10).batch["number"].tolist() == [1]


def test_a_ticket_of_an_actor_that_hangs_is_lent_again() -> None:
    tickets, table = Tickets(batch=1, eta=0), TicketTable(1, lease=0.2)
    with Server(tables=[results(), table.table()], batch_size=1, transport="tcp://127.0.0.1:0") as server:
        table.offer(server, tickets.issue())
        with Client(server.address, RESULT, tables=TABLES) as hanging, Client(server.address, RESULT, tables=TABLES) as other:
            first = table.take(hanging, 10)
            again = table.take(other, 10)
            assert again.tickets == first.tickets
            assert table.done(other, again) and not table.done(hanging, first)


def test_more_tickets_than_the_table_was_made_for_are_refused() -> None:
    table = TicketTable(1, actors=1)
    with Server(tables=[results(), table.table()], batch_size=1, transport="tcp://127.0.0.1:0") as server, pytest.raises(EchoTimeoutError):
        table.offer(server, Tickets(batch=3, eta=0).issue())


def test_an_actor_takes_several_tickets_together() -> None:
    tickets, table = Tickets(batch=5, eta=0), TicketTable(5, at_once=3)
    with Server(tables=[results(), table.table()], batch_size=1, transport="tcp://127.0.0.1:0") as server:
        table.offer(server, tickets.issue(), at_once=3)
        with Client(server.address, RESULT, tables={NAME: example(3)}) as actor:
            taken = [table.take(actor, 10) for _ in range(2)]
            assert [[ticket.number for ticket in lent.tickets] for lent in taken] == [[0, 1, 2], [3, 4]]
            assert taken[0].tickets + taken[1].tickets == tuple(tickets.outstanding) and all(table.done(actor, lent) for lent in taken)
