"""Clauses about workers that send priorities, or to several tables: each is one peer, and its tables do not disturb each other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import EchoError, EchoTimeoutError
from echo_core.server.server import Server

from ...processes import until
from ...rig import PATIENCE, Rig
from ...samples import example, sample, stacked
from .. import carrier

Needs = Callable[[str], None]


def _tables(**options: object) -> list[echo_core.Table]:
    first = echo_core.Table("first", example(), capacity=4096, sampler="max_heap")
    return [first, echo_core.Table("second", example(), capacity=4096, sampler="fifo", **options)]  # type: ignore[arg-type]


def _numbers(server: Server, table: str) -> list[int]:
    """The numbers of a table's samples, in the order of their arrival."""
    stored = server.table(table)
    number: list[int] = stored.peek(stored.keys())[0]["number"].tolist()
    return number


class OnePeerClauses:
    def test_a_worker_is_one_peer_whatever_it_sends(self, rig: Rig) -> None:
        server = rig.server(tables=_tables(), batch_size=4)
        workers = [rig.client(server, name="worker", tables={"second": example()}) for _ in range(2)]
        for worker in workers:
            worker.send(sample(1, 0))
            worker.send(sample(1, 1), priority=2.0)
            worker.send(sample(1, 2), table="second")
            worker.send_batch(stacked(1, 3, 3), table="second", priorities=np.ones(3))
            worker.wait()
            assert worker.stats()["samples"] == worker.stats()["acknowledged"] == 6
        until(lambda: [(peer.name, peer.samples) for peer in server.peers()] == [("worker", 6), ("worker#2", 6)], "both are shown, with all samples")
        stats = server.stats()
        scheme = server.address.scheme
        assert stats["store/active_connections"] == stats[f"transport/{scheme}/active_connections"] == 2
        assert [stats[f"worker/{name}/samples"] for name in ("worker", "worker#2")] == [6, 6]
        workers[0].close()
        until(lambda: [peer.name for peer in server.peers()] == ["worker#2"], "all its connections are gone")

    def test_every_peer_that_is_listed_can_be_asked(self, rig: Rig) -> None:
        server = rig.server(tables=_tables(), batch_size=4)
        for number in range(2):
            worker = rig.client(server, tables={"second": example()})
            worker.send(sample(1, 0), table="second", priority=1.0)
            worker.serve("kit/number", lambda body, blob, number=number: ({"number": number}, b""))  # type: ignore[misc]
            worker.wait()
        assert sorted(server.ask(peer, "kit/number", timeout=PATIENCE)[0]["number"] for peer in server.peers()) == [0, 1]

    def test_asking_a_worker_that_serves_nothing_fails_by_name(self, rig: Rig) -> None:
        server = rig.server()
        rig.client(server, name="silent").send(sample(1, 0))
        with pytest.raises(EchoError, match="silent serves nothing, so it was not asked for 'kit/nothing'"):
            server.ask(server.peers()[0], "kit/nothing", timeout=PATIENCE)

    def test_a_full_table_does_not_stop_another(self, rig: Rig) -> None:
        server = rig.server(tables=_tables(rate_limiter=echo_core.Queue(4)), batch_size=4)
        worker = rig.client(server, tables={"second": example()}, max_inflight_msgs=8)
        sent = 0
        with pytest.raises(EchoTimeoutError):
            while True:
                worker.send(sample(2, sent), 0.2, table="second")
                sent += 1
        for number in range(64):  # many times the window
            worker.send(sample(1, number))
            worker.send(sample(1, number), priority=1.0)
        until(lambda: len(server.table("first")) == 128, "the other table goes on", PATIENCE)
        taken: list[int] = []
        while len(taken) + 4 <= sent:
            taken += server.sample(PATIENCE, table="second").batch["number"].tolist()
        assert taken == list(range(len(taken)))
        worker.wait()
        assert len(taken) + len(server.table("second")) == sent

    @carrier
    def test_a_cut_loses_and_doubles_nothing_of_any_table(self, rig: Rig, needs: Needs) -> None:
        needs("severable")
        server = rig.server(tables=_tables(), batch_size=4)
        worker = rig.client(server, tables={"second": example()})
        worker.send(sample(1, 0), table="second")
        worker.send(sample(1, 0), priority=0.5)
        worker.wait()
        for number in range(1, 400):
            worker.send(sample(1, number), priority=float(number))
            worker.send(sample(1, number), table="second", priority=1.0)
            if number % 100 == 50:
                until(lambda: worker.stats()["connected"], "there is a link to cut")
                rig.contract.sever(server, worker, reset=True)
        worker.wait()
        for table in ("first", "second"):
            assert _numbers(server, table) == list(range(400))
        first = server.table("first")
        keys, priorities = first.top(399)
        assert priorities.tolist() == first.peek(keys)[0]["number"].tolist() == [*range(399, 0, -1)], "each sample has its own priority"
        until(lambda: len(server.peers()) == 1, "it is one peer again")
