"""Clauses about draws and inserts of clients that wait at a table of the server, in the order in which they came."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import pytest

import echo_core
from echo_core.base.errors import ClosedError, ConnectionClosedError, EchoError, EchoTimeoutError
from echo_core.client.client import Client
from echo_core.server.server import Server

from ... import workers
from ...processes import pressing_ctrl_c, returns, stop, until
from ...rig import PATIENCE, Rig, hear
from ...rig_roles import asking_roles
from ...samples import example, stacked
from .. import carrier

Needs = Callable[[str], None]


class Call:
    """One call on a thread of its own."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._outcome: Any = None
        self._call = call
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._outcome = self._call()
        except Exception as error:
            self._outcome = error

    @property
    def waits(self) -> bool:
        return self._thread.is_alive()

    def outcome(self) -> Any:
        """What the call returned or raised."""
        self._thread.join(PATIENCE)
        assert not self.waits, "the call still waits"
        return self._outcome


def queue(rig: Rig, size: int = 64, **options: Any) -> Server:
    """A server with a queue of this size."""
    return rig.server(tables=[echo_core.Table("queue", example(), capacity=size, sampler="fifo", rate_limiter=echo_core.Queue(size))], batch_size=1, **options)


def waiting(server: Server, draws: int = 0, inserts: int = 0) -> None:
    """Wait until so many requests are in the lines."""

    def there() -> bool:
        stats = server.stats()
        return (stats["table/queue/draws_waiting"], stats["table/queue/inserts_waiting"]) == (draws, inserts)

    until(there, f"{draws} draws and {inserts} inserts wait", PATIENCE)


def drawing(server: Server, clients: list[Client], sizes: list[int], timeout: float = PATIENCE) -> list[Call]:
    """Draws of so many items, one after another; each gives the numbers of its items."""
    calls = []
    for number, n in enumerate(sizes):
        client = clients[number % len(clients)]
        calls.append(Call(lambda client=client, n=n: client.sample(n, timeout).batch["number"].tolist()))
        waiting(server, number + 1)
    return calls


class LineClauses:
    def test_draws_that_wait_are_served_in_the_order_in_which_they_came(self, rig: Rig) -> None:
        server = queue(rig)
        clients = [rig.client(server) for _ in range(3)]
        calls = drawing(server, clients, [2, 1, 3, 1, 1])
        for number in range(8):
            server.submit_batch(stacked(0, number, 1))
        assert [call.outcome() for call in calls] == [[0, 1], [2], [3, 4, 5], [6], [7]]
        waiting(server)
        assert server.stats()["clients/parked"] == 0

    def test_a_small_draw_does_not_overtake_a_large_one(self, rig: Rig) -> None:
        server = queue(rig)
        first, second = rig.client(server), rig.client(server)
        large, small = drawing(server, [first, second], [3, 1])
        server.submit_batch(stacked(0, 0, 2))
        with pytest.raises(EchoTimeoutError, match="requests that came before it wait, too; the first of them: table 'queue': Queue"):
            rig.client(server).sample(1, timeout=0.2)
        assert large.waits and small.waits and len(server.table()) == 2
        server.submit_batch(stacked(0, 2, 2))
        assert (large.outcome(), small.outcome()) == ([0, 1, 2], [3])

    def test_inserts_that_wait_come_in_the_order_in_which_they_came(self, rig: Rig) -> None:
        server = queue(rig, 2)
        server.submit_batch(stacked(0, 0, 2))
        clients, calls = [rig.client(server) for _ in range(3)], []
        for number in range(6):
            calls.append(Call(lambda number=number: clients[number % 3].table().insert(stacked(0, 2 + number, 1))))
            waiting(server, 0, number + 1)
        assert [server.sample(PATIENCE).batch["number"].tolist() for _ in range(8)] == [[number] for number in range(8)]  # type: ignore[union-attr]
        assert all(len(call.outcome()) == 1 for call in calls)

    def test_a_draw_that_is_given_up_spends_nothing(self, rig: Rig) -> None:
        server = queue(rig)
        client = rig.client(server)
        with pytest.raises(EchoTimeoutError, match=r"sample\(\) waited 0.2 s: table 'queue': Queue\(64\) allows no batch of 2"):
            client.sample(2, timeout=0.2)
        waiting(server)
        assert pressing_ctrl_c(lambda: client.sample(2), lambda: waiting(server, 1))
        waiting(server)
        batches = client.dataset_iter(2, prefetch=3)
        server.submit_batch(stacked(0, 0, 2))
        assert next(batches).batch["number"].tolist() == [0, 1]
        batches.close()  # type: ignore[attr-defined]
        client.request("ping")
        server.submit_batch(stacked(0, 2, 2))
        assert client.sample(2).batch["number"].tolist() == [2, 3]

    def test_an_insert_that_is_given_up_changes_nothing(self, rig: Rig) -> None:
        server = queue(rig, 2)
        server.submit_batch(stacked(0, 0, 2))
        table = rig.client(server).table()
        with pytest.raises(EchoTimeoutError, match=r"insert\(\) waited 0.2 s: table 'queue': Queue\(2\) allows no insert"):
            table.insert(stacked(1, 0, 1), timeout=0.2)
        assert pressing_ctrl_c(lambda: table.insert(stacked(1, 0, 1)), lambda: waiting(server, 0, 1))
        waiting(server)
        assert server.sample(PATIENCE, n=2).batch["maker"].tolist() == [0, 0]  # type: ignore[union-attr]
        assert len(table.insert(stacked(2, 0, 1))) == 1 and server.sample(PATIENCE).batch["maker"].tolist() == [2]  # type: ignore[union-attr]

    @asking_roles
    @pytest.mark.parametrize("end", ["closed", "killed"])
    def test_a_waiting_client_that_leaves_loses_nothing(self, rig: Rig, needs: Needs, end: str, role: str) -> None:
        server = queue(rig)
        if end == "closed":
            leaving = rig.client(server, role=role)
            first = drawing(server, [leaving], [2])[0]
        else:
            needs("processes")
            hearing, saying = rig.pipe()
            process = rig.spawn(workers.draw, str(server.address), 2, PATIENCE, saying, self.connect_options | {"role": role})  # type: ignore[attr-defined]
            assert hear(hearing) == "ready"
            waiting(server, 1)
        other = rig.client(server)
        second = Call(lambda: other.sample(2).batch["number"].tolist())
        waiting(server, 2)
        if end == "closed":
            leaving.close()
            assert isinstance(first.outcome(), (ClosedError, ConnectionClosedError))
        else:
            process.kill()
        waiting(server, 1)
        server.submit_batch(stacked(0, 0, 2))
        assert second.outcome() == [0, 1]

    def test_a_stopped_client_holds_up_the_others_no_longer_than_its_timeout(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = queue(rig)
        hearing, saying = rig.pipe()
        process = rig.spawn(workers.draw, str(server.address), 2, 3.0, saying, self.connect_options)  # type: ignore[attr-defined]
        assert hear(hearing) == "ready"
        waiting(server, 1)
        stop(process.pid)
        other = rig.client(server)
        second = Call(lambda: other.sample(2).batch["number"].tolist())
        waiting(server, 2)
        waiting(server, 1)
        server.submit_batch(stacked(0, 0, 2))
        assert second.outcome() == [0, 1]
        os.kill(process.pid, signal.SIGCONT)
        assert hear(hearing) in ("EchoTimeoutError", "ConnectionClosedError")
        waiting(server)

    def test_a_closing_server_answers_those_that_wait_at_its_tables(self, rig: Rig) -> None:
        server = queue(rig, 2)
        client = rig.client(server)
        calls = drawing(server, [client], [1])
        calls.append(Call(lambda: next(client.dataset_iter(1), "no further batch")))
        waiting(server, 2)
        server.close(restarting=True)
        draw, batches = (call.outcome() for call in calls)
        assert isinstance(draw, ClosedError), draw
        assert batches == "no further batch", batches

    @carrier
    @asking_roles
    def test_a_cut_link_does_not_end_a_wait_at_a_table(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("severable")
        server = queue(rig, 2)
        client = rig.client(server, role=role)
        (draw,) = drawing(server, [client], [1])
        rig.contract.sever(server, client, reset=True)
        until(lambda: client.stats()["reconnects"] == 1, "it is connected again", PATIENCE)
        waiting(server, 1)
        assert draw.waits
        server.submit_batch(stacked(0, 0, 2))
        assert draw.outcome() == [0]
        server.submit_batch(stacked(0, 2, 1))
        insert = Call(lambda: client.table().insert(stacked(0, 3, 1)))
        waiting(server, 0, 1)
        rig.contract.sever(server, client, reset=True)
        until(lambda: client.stats()["reconnects"] == 2, "it is connected again", PATIENCE)
        waiting(server, 0, 1)
        assert insert.waits
        assert [server.sample(PATIENCE).batch["number"].tolist() for _ in range(3)] == [[1], [2], [3]]  # type: ignore[union-attr]
        assert len(insert.outcome()) == 1 and len(server.table()) == 0, "it came once"

    @asking_roles
    def test_a_learner_that_dies_ends_the_waits_at_its_tables(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("processes")
        address = rig.place()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.store, str(address), saying, self.listen_options())  # type: ignore[attr-defined]
        client = rig.client(hear(hearing), role=role)
        draw = Call(lambda: client.sample(1, timeout=5.0))
        assert hear(hearing) == 1
        learner.kill()
        assert isinstance(draw.outcome(), ConnectionClosedError), draw.outcome()

    def test_too_many_draws_that_wait_are_refused_and_others_go_on(self, rig: Rig) -> None:
        server = queue(rig, max_parked_per_client=2)
        client, other = rig.client(server), rig.client(server)
        calls = drawing(server, [client], [1, 1])
        outcome = returns(lambda: client.sample(1), PATIENCE)
        assert isinstance(outcome, EchoError) and "max_parked_per_client" in str(outcome), outcome
        calls.append(Call(lambda: other.sample(1).batch["number"].tolist()))
        waiting(server, 3)
        server.submit_batch(stacked(0, 0, 3))
        assert [call.outcome() for call in calls] == [[0], [1], [2]]
