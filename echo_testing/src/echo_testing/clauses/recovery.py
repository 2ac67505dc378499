"""Clauses about recovery: links that are cut, learners that start late, and learners that are replaced."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import EchoError, EchoTimeoutError

from .. import workers
from ..processes import returns, until
from ..rig import PATIENCE, Rig, drain, hear
from ..rig_roles import Linked, asking_roles, each_role
from ..samples import FILLER, Tally, example, sample, stacked
from . import carrier

Needs = Callable[[str], None]


class Sender:
    """Sends samples 0, 1, 2, ... of `maker`, with `filler` bytes each, until stopped."""

    def __init__(self, client: Any, maker: int, filler: int = FILLER) -> None:
        self.client, self.maker, self.filler, self.sent = client, maker, filler, 0
        self.error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                if self.sent % 10 == 0:
                    self.client.send_batch(stacked(self.maker, self.sent, 5, self.filler))
                    self.sent += 5
                else:
                    self.client.send(sample(self.maker, self.sent, self.filler))
                    self.sent += 1
        except BaseException as error:
            self.error = error

    def stop(self, whole: int) -> int:
        """Stop at a multiple of `whole` samples, once all are acknowledged."""
        self._stop.set()
        self._thread.join(PATIENCE)
        assert self.error is None, repr(self.error)
        assert not self._thread.is_alive(), "send() hangs"
        if rest := -self.sent % whole:
            self.client.send_batch(stacked(self.maker, self.sent, rest, self.filler))
            self.sent += rest
        self.client.wait()
        return self.sent


class Drainer:
    """Takes batches from a server on a thread until the server is closed."""

    def __init__(self, server: Any) -> None:
        self.tally = Tally()
        self._server = server
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for one in self._server.dataset_iter():
            self.tally.add(one.batch)
            del one

    def finish(self, restarting: bool = False) -> Tally:
        self._server.close(restarting=restarting)
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        return self.tally


@carrier
class RecoveryClauses:
    @pytest.mark.parametrize("reset", [False, True])
    def test_a_cut_link_loses_nothing_and_doubles_nothing(
        self, rig: Rig, needs: Needs, reset: bool
    ) -> None:
        needs("severable")
        server = rig.server(batch_size=10)
        clients = [rig.client(server) for _ in range(2)]
        drainer = Drainer(server)
        senders = [Sender(client, maker) for maker, client in enumerate(clients)]
        for turn in range(4):
            client = clients[turn % 2]
            before = client.stats()["reconnects"]
            until(lambda: all(c.stats()["connected"] for c in clients), "both are connected")
            time.sleep(0.03)
            self.sever(server, client, reset)
            until(lambda client=client, before=before: client.stats()["reconnects"] > before, "the client is back")
        sent = {sender.maker: sender.stop(10) for sender in senders}
        until(lambda: drainer.tally.count == sum(sent.values()), "every sample has arrived")
        drainer.finish().check(sent)
        assert server.stats()["store/samples_inserted_total"] == sum(sent.values())
        assert clients[0].stats()["learner_restarts"] == 0

    def test_every_sample_is_counted_once_however_its_link_ends(self, rig: Rig, needs: Needs) -> None:
        needs("severable")
        server = rig.server(batch_size=2, num_buffers=2)
        client = rig.client(server)

        def counted() -> int:
            return int(server.stats()[f"transport/{server.address.scheme}/samples"])

        client.send_batch(stacked(1, 0, 20))
        until(lambda: counted() == 4, "samples of a frame are counted, although the store is full before its end")
        self.sever(server, client, True)
        until(lambda: client.stats()["reconnects"] == 1, "the client is back")
        drain(server, 20).check({1: 20})
        client.wait()
        assert counted() == server.stats()["store/samples_inserted_total"] == 20

    @each_role
    def test_weights_and_requests_survive_a_cut_link(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("severable")
        server = rig.server()
        linked = Linked(rig, role, server)
        client = linked.client
        server.publish({"w": np.full(500_000, 1.0)})
        assert client.weights().version == 1
        self.sever(server, client, True)
        server.publish({"w": np.full(500_000, 2.0)})
        weights = client.weights(newer_than=1)
        assert (weights.version, weights.params["w"][-1]) == (2, 2.0)
        until(lambda: linked.stats()["connected"], "the client is back")
        assert until(lambda: server.peers()[0].weights_version == 2, "the receipt has come")
        linked.use(server)

    def test_nobody_there_is_an_error_in_time(self, rig: Rig) -> None:
        address = rig.place()
        outcome = returns(lambda: rig.client(address, timeout=0.4), PATIENCE)
        assert isinstance(outcome, EchoTimeoutError), outcome
        assert str(address).split("?")[0] in str(outcome)
        assert "start the learner" in str(outcome), "what to do about it"

    @each_role
    def test_a_client_may_come_before_its_learner(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("restarts")
        address = rig.place()
        clients: list[Linked] = []
        early = threading.Thread(target=lambda: clients.append(Linked(rig, role, address)), daemon=True)
        early.start()
        time.sleep(0.3)
        server = rig.server(at=address)
        early.join(PATIENCE)
        assert clients, "the early client never connected"
        clients[0].use(server)

    @each_role
    def test_a_client_of_each_role_carries_on_with_a_restarted_learner(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("restarts")
        server = rig.server(at=rig.place())
        linked, address = Linked(rig, role, server), server.address
        linked.use(server)
        for restarts in (1, 2):
            server.close(restarting=True)
            server = rig.server(at=address)
            linked.use(server)
            assert linked.stats()["learner_restarts"] == restarts

    def test_a_worker_carries_on_with_a_restarted_learner(self, rig: Rig, needs: Needs) -> None:
        needs("restarts")
        old = rig.server(at=rig.place())
        client = rig.client(old)
        old.publish({"w": np.full(9, 1.0)})
        assert client.weights().params["w"][0] == 1.0
        client.send_batch(stacked(1, 0, 16))
        client.wait()
        tally = drain(old, 16)
        address = old.address
        old.close(restarting=True)
        new = rig.server(at=address)
        assert new.address == address
        for number in range(16, 32):
            client.send(sample(1, number))
        client.wait()
        drain(new, 32, tally).check({1: 32})
        assert client.stats()["learner_restarts"] == 1
        new.publish({"w": np.full(9, 2.0)})
        new.publish({"w": np.full(9, 3.0)})
        weights = client.weights(newer_than=1)
        assert weights.params["w"][0] == weights.version + 1
        assert client.request("ping", blob=b"you?")[1] == b"you?"

    @asking_roles
    def test_keys_of_a_dead_server_do_nothing_at_its_successor(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("restarts")
        tables = [
            echo_core.Table("memory", example(), capacity=64, sampler="prioritized", seed=1),
            echo_core.Table("jobs", example(), capacity=64, sampler="fifo", rate_limiter=echo_core.Queue(64), lease_timeout=PATIENCE * 10, seed=1),
        ]
        examples = {table.name: table.example for table in tables}
        old = rig.server(at=rig.place(), tables=tables)
        client = rig.client(old, tables=examples, role=role)
        for name in ("memory", "jobs"):
            old.submit_batch(stacked(1, 0, 16), table=name)
        drawn, lent = client.sample(8, table="memory").keys, client.sample(8, table="jobs").keys
        address = old.address
        old.close(restarting=True)
        new = rig.server(at=address, tables=tables)
        for name in ("memory", "jobs"):
            new.submit_batch(stacked(2, 0, 16), table=name)
        other = rig.client(new, tables=examples)
        others = other.sample(8, table="jobs").keys
        before = new.table("memory").top(16)
        assert client.update_priorities(drawn, np.full(8, 100.0), table="memory") == 8, "all are gone"
        assert client.table("memory").delete(drawn) == 0 and not client.table("memory").peek(drawn)[1].any()
        assert client.ack(lent, table="jobs") == 0, "they end no loan of another learner"
        assert [part.tolist() for part in new.table("memory").top(16)] == [part.tolist() for part in before]
        assert other.ack(others, table="jobs") == 8

    @pytest.mark.parametrize("filler", [FILLER, 1 << 16])
    def test_a_learner_that_closes_leaves_nothing_to_be_sent_twice(self, rig: Rig, needs: Needs, filler: int) -> None:
        """The learner acknowledges all stored samples before its BYE and stores none after it, so the next learner gets the rest."""
        needs("restarts")
        tree = example(filler)
        address = rig.place()
        server = rig.server(tree, batch_size=1, num_buffers=64, at=address)
        sender = Sender(rig.client(server, tree), 1, filler)
        tally = Tally()
        for _ in range(4):
            drainer = Drainer(server)
            until(lambda drainer=drainer: drainer.tally.count > 20, "samples arrive")
            tally.merge([drainer.finish(restarting=True)])
            server = rig.server(tree, batch_size=1, num_buffers=64, at=address)
        drainer = Drainer(server)
        sent = sender.stop(1)
        tally.merge([drainer.finish()]).check({1: sent})

    @each_role
    def test_a_client_of_each_role_returns_to_the_successor_of_a_killed_learner(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("processes")
        needs("restarts")
        address = rig.place()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.learn, str(address), 8, saying, self.listen_options())
        assert hear(hearing) == str(address)
        linked = Linked(rig, role, address)
        learner.kill()
        learner.join(PATIENCE)
        until(lambda: not linked.stats()["connected"], "the loss is noticed")
        linked.use(rig.server(at=address))
        assert linked.stats()["learner_restarts"] == 1

    def test_a_killed_learner_is_replaced(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        needs("restarts")
        address = rig.place()
        hearing, saying = rig.pipe()
        learner = rig.spawn(workers.learn, str(address), 10, saying, self.listen_options())
        assert hear(hearing) == str(address)
        client = rig.client(address)
        sender = Sender(client, 1)
        until(lambda: client.stats()["acknowledged"] > 50, "the first learner learns")
        learner.kill()
        learner.join(PATIENCE)
        until(lambda: not client.stats()["connected"], "the loss is noticed")
        server = rig.server(at=address, batch_size=1)
        drainer = Drainer(server)
        before = client.stats()["acknowledged"]
        until(lambda: client.stats()["acknowledged"] > before + 50, "the second learner learns")
        sent = sender.stop(1)
        numbers = until(
            lambda: (seen := drainer.tally.numbers.get(1)) and seen[-1] == sent - 1 and seen,
            "the last sample has arrived",
        )
        assert numbers == list(range(numbers[0], sent)), "lost, doubled or out of order"
        assert client.stats()["learner_restarts"] == 1
        drainer.finish()

    @asking_roles
    def test_a_final_loss_is_an_error(self, rig: Rig, needs: Needs, role: str) -> None:
        needs("severable")
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server, reconnect=False, role=role)
        if role == "worker":
            client.send_batch(stacked(1, 0, 5))
        self.sever(server, client, True)
        outcome = returns(client.wait if role == "worker" else client.weights, PATIENCE)
        assert isinstance(outcome, ConnectionError), outcome
        assert isinstance(outcome, EchoError)
        with pytest.raises(ConnectionError):
            client.send(sample(1, 5)) if role == "worker" else client.request("ping")
