"""Clauses about a learner's requests to the tables of a server whose link is cut again and again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import echo_core
from echo_core.base.errors import ClosedError
from echo_core.client.client import Client
from echo_core.server.server import Server

from ...processes import until
from ...rig import PATIENCE, Rig
from ...rig_roles import asking_roles
from ...samples import example, stacked
from .. import carrier
from .waiting_at_tables import Call, waiting

Needs = Callable[[str], None]

ITEMS = 300
CUTS = 4
ROUNDS = 40


@contextmanager
def cuts(rig: Rig, server: Server, client: Client, done: Callable[[], float]) -> Iterator[None]:
    """Cut the client's link `CUTS` times, also with data under way, whenever a further part of the work is done. `done` goes from 0 to 1."""
    over = threading.Event()

    def cut() -> None:
        for number in range(1, CUTS + 1):
            until(lambda number=number: over.is_set() or (done() >= number / (CUTS + 1) and client.stats()["connected"]), "work is done", PATIENCE)
            if not over.is_set():
                rig.contract.sever(server, client, reset=number % 2 == 0)

    cutting = Call(cut)
    try:
        yield
    finally:
        over.set()
        assert cutting.outcome() is None


@carrier
class LostLinkClauses:
    @asking_roles
    def test_items_of_a_queue_that_lends_are_acknowledged_once_each_over_links_that_are_cut(self, rig: Rig, needs: Needs, role: str) -> None:
        """When a link is lost, another learner may get its items. The count of `ack` says who was the first to acknowledge one."""
        needs("severable")
        queue = echo_core.Table("queue", example(), capacity=ITEMS, sampler="fifo", rate_limiter=echo_core.Queue(ITEMS), lease_timeout=3600)
        server = rig.server(tables=[queue], batch_size=1)
        client = rig.client(server, role=role)
        done: list[int] = []

        def learn() -> None:
            while True:
                drawn = client.sample(1, PATIENCE)
                if client.ack(drawn.keys, PATIENCE):
                    done.extend(drawn.batch["number"].tolist())

        learners = [Call(learn) for _ in range(3)]
        with cuts(rig, server, client, lambda: len(done) / ITEMS):
            server.submit_batch(stacked(0, 0, ITEMS))
            until(lambda: len(done) >= ITEMS or not all(learner.waits for learner in learners), "all are learned from", PATIENCE)
        assert sorted(done) == list(range(ITEMS)), [learner.outcome() for learner in learners if not learner.waits]
        assert server.table().counters()["acknowledged"] == ITEMS
        waiting(server, draws=len(learners))  # a draw that began after the server has closed would wait for another server
        server.close(restarting=True)
        outcomes = [learner.outcome() for learner in learners]
        assert all(isinstance(outcome, ClosedError) for outcome in outcomes), outcomes

    @asking_roles
    def test_requests_by_key_and_batches_ahead_survive_links_that_are_cut(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("severable")
        server = rig.server(tables=[echo_core.Table("often", example(), capacity=ITEMS, sampler="fifo")], batch_size=1)
        keys = server.table().submit_batch(stacked(0, 0, ITEMS))
        client = rig.client(server, role=role)
        table = client.table()
        batches = client.dataset_iter(4, prefetch=3)

        def one_round(number: int) -> None:
            assert all(0 <= drawn < ITEMS for drawn in next(batches).batch["number"])
            assert client.update_priorities(keys, np.full(ITEMS, 1.0 + number), PATIENCE) == 0
            items, here = table.peek(keys, PATIENCE)
            assert here.all() and items["number"].tolist() == list(range(ITEMS))
            assert table.update_items(keys[:9], {"number": items["number"][:9]}, PATIENCE).all()

        rounds: list[int] = []
        with cuts(rig, server, client, lambda: len(rounds) / ROUNDS):
            for number in range(ROUNDS):
                one_round(number)
                rounds.append(number)
        deleted: list[int] = []
        with cuts(rig, server, client, lambda: len(deleted) / ITEMS):
            for i in range(ITEMS):
                deleted.append(table.delete(keys[i : i + 1], PATIENCE))
        assert deleted == [1] * ITEMS
        assert client.stats()["reconnects"] >= CUTS and len(server.table()) == 0
