"""Clauses about workers in their own processes: spawned, pickled, forked, interrupted, stopped and killed."""

from __future__ import annotations

import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import echo_core
from echo_core.base.errors import EchoTimeoutError, ForkError
from echo_core.client.leftovers import Leftover
from echo_core.client.observer import Observer
from echo_core.server.server import Server

from .. import workers
from ..processes import forked, interrupted, returns, until
from ..rig import PATIENCE, Rig, drain, hear
from ..rig_locks import held_locks
from ..rig_roles import Linked
from ..samples import Tally, example, sample, stacked
from . import carrier

Needs = Callable[[str], None]


class ProcessClauses:
    @carrier
    def test_spawned_workers_deliver_everything_and_end(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server(batch_size=20)
        each = {0: (700, 0), 1: (900, 33), 2: (400, 1)}  # maker: samples, batch
        processes = [
            rig.spawn(
                workers.flood, str(server.address), maker, count, batch, self.connect_options
            )
            for maker, (count, batch) in each.items()
        ]
        drain(server, 2000).check({maker: count for maker, (count, _) in each.items()})
        for process in processes:
            process.join(PATIENCE)
            assert process.exitcode == 0

    @carrier
    def test_a_worker_that_ends_right_after_sending_loses_nothing(
        self, rig: Rig, needs: Needs
    ) -> None:
        needs("processes")
        server = rig.server(batch_size=1, num_buffers=64)
        process = rig.spawn(workers.flood, str(server.address), 1, 50, 0, self.connect_options)
        process.join(PATIENCE)
        assert process.exitcode == 0
        drain(server, 50).check({1: 50})

    def test_a_pickled_client_connects_anew(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server(batch_size=10)
        client = rig.client(server)
        assert b"token" not in pickle.dumps(client).lower().replace(b"max_token", b"")
        process = rig.spawn(workers.use, client, 1, 100)
        client.send_batch(stacked(0, 0, 50))
        drain(server, 150).check({0: 50, 1: 100})
        process.join(PATIENCE)
        assert process.exitcode == 0

    def test_a_forked_child_is_told_and_the_parent_goes_on(self, rig: Rig) -> None:
        server = rig.server(batch_size=1, num_buffers=2)
        client = rig.client(server)
        client.send_batch(stacked(1, 0, 5))  # three of them still under way

        def child() -> None:
            for call in (
                lambda: client.send(sample(1, 5)),
                lambda: client.send_batch(stacked(1, 5, 2)),
                lambda: client.flush(timeout=1),
                lambda: client.wait(timeout=1),
                lambda: client.weights(timeout=1),
                lambda: client.request("ping", timeout=1),
            ):
                with pytest.raises(ForkError, match="fork"):
                    call()
            returns(lambda: client.close(timeout=1), PATIENCE / 2)  # it may raise, but must end

        forked(child, PATIENCE)
        tally = drain(server, 5)
        client.send(sample(1, 5))
        drain(server, 6, tally).check({1: 6})
        server.publish({"w": np.ones(3)})
        assert client.weights().version == 1

    def test_a_forked_child_waits_for_no_lock_of_its_parent(self, rig: Rig, needs: Needs) -> None:
        """Each public method of each object, while a thread that the child does not have holds all locks."""
        needs("processes")
        stream = rig.server(batch_size=1, num_buffers=2)
        steps = echo_core.Table("steps", example(), capacity=64, items=echo_core.Sequences(2), sampler="fifo")
        store = rig.server(tables=[steps, echo_core.Table("t", example(), capacity=64, sampler="fifo")], batch_size=1)
        keys = store.table("t").submit_batch(stacked(1, 0, 8))
        sampled = [store.sample(PATIENCE, table="t"), store.table("t")]
        worker, reader = rig.client(stream), rig.client(store, table="t", role="observer")
        stepper = rig.client(store, echo_core.Steps(example()), tables={"t": example()})
        taker = Linked(rig, "weights", stream).client
        observer = Observer(rig.source(stream), timeout=PATIENCE)
        peer, pending = stream.peers()[0], worker._requests.ask("calls/next", {"op": "kit/nothing"})
        worker.send_batch(stacked(1, 0, 5))  # three of them still under way
        batches, remote = reader.dataset_iter(1), reader.table()
        drawn = next(batches).keys
        ones = np.ones(len(drawn))
        told: dict[Any, dict[str, Callable[[], Any]]] = {
            worker: {
                "send": lambda: worker.send(sample(1, 5)),
                "send_batch": lambda: worker.send_batch(stacked(1, 5, 2)),
                "send_again": lambda: worker.send_again(Leftover(None, stacked(1, 5, 2), None, 2)),
                "end_episode": lambda: stepper.end_episode(),
                "reserve": lambda: worker.reserve(),
                "flush": lambda: worker.flush(),
                "wait": lambda: worker.wait(),
                "table": lambda: worker.table(),
                "sample": lambda: reader.sample(1),
                "sample_begin": lambda: reader.sample_begin(1).collect(),
                "sample_mixture": lambda: reader.sample_mixture({"t": 1.0}, 1),
                "dataset_iter": lambda: next(reader.dataset_iter(1)),
                "ack": lambda: reader.ack(drawn),
                "update_priorities": lambda: reader.update_priorities(drawn, ones),
                "weights": lambda: worker.weights(),
                "request": lambda: worker.request("ping"),
                "serve": lambda: worker.serve("kit/op", lambda body, blob: (body, blob)),
                "server_stats": lambda: worker.server_stats(),
                "stats": lambda: worker.stats(),
                "unacknowledged": lambda: worker.unacknowledged,
                "send a step": lambda: stepper.send(sample(1, 5)),
                "send steps": lambda: stepper.send_batch(stacked(1, 5, 2), stream=0),
                "send with a priority": lambda: stepper.send(sample(1, 5), table="t", priority=1.0),
                "weights from elsewhere": lambda: taker.weights(),
                "stats with weights from elsewhere": lambda: taker.stats(),
                "the answer to a request": lambda: pending(PATIENCE),
                "the next batch": lambda: next(batches),
                "sample of a table": lambda: remote.sample(1),
                "insert into a table": lambda: remote.insert(stacked(1, 0, 1)),
            },
            observer: {
                "request": lambda: observer.request("ping"),
                "stats": lambda: observer.stats(),
                "tap": lambda: observer.tap(),
                "ping": lambda: observer.ping(),
            },
            stream: {
                "start": lambda: stream.start(),
                "drain": lambda: stream.drain(),
                "sample": lambda: stream.sample(),
                "dataset_iter": lambda: next(stream.dataset_iter()),
                "sample_mixture": lambda: store.sample_mixture({"t": 1.0}),
                "table": lambda: store.table("t"),
                "submit": lambda: stream.submit(sample(1, 5)),
                "submit_batch": lambda: stream.submit_batch(stacked(1, 5, 2)),
                "update_priorities": lambda: store.update_priorities(keys, np.ones(8), table="t"),
                "ack": lambda: store.ack(keys, table="t"),
                "checkpoint": lambda: store.checkpoint(self.scratch),
                "restore": lambda: store.restore(self.scratch),
                "publish": lambda: stream.publish({"w": np.ones(3)}),
                "serve": lambda: stream.serve("kit/op", lambda server, peer, body, blob: (body, blob)),
                "ask": lambda: stream.ask(peer, "kit/op"),
                "add_stats": lambda: stream.add_stats("kit", dict),
                "stats": lambda: stream.stats(),
                "peers": lambda: stream.peers(),
                "receipts": lambda: stream.receipts(),
                "sample of a table": lambda: sampled[1].sample(),
                "counters of a table": lambda: sampled[1].counters(),
            },
        }
        for thing, calls in told.items():
            missing = _public_methods(type(thing)) - set(calls) - {"close", "ended", "from_config", "has", "pass_on", "reset_histograms"}
            assert not missing, f"no call of {type(thing).__name__}.{missing} is tried here"

        def child() -> None:
            for thing, calls in told.items():
                for name, call in calls.items():
                    outcome = returns(call, PATIENCE / 2)
                    assert isinstance(outcome, ForkError) and "fork" in str(outcome), f"{type(thing).__name__}: {name}: {outcome!r}"
            for thing in (worker, reader, stepper, taker, observer, stream, store):
                assert returns(thing.close, PATIENCE / 2) is None
            sampled.clear()

        with held_locks(stream, store, worker, reader, stepper, taker, observer, pending, batches, remote) as count:
            assert count > 20
            forked(child, PATIENCE)
        tally = drain(stream, 5)
        worker.send(sample(1, 5))
        drain(stream, 6, tally).check({1: 6})
        assert reader.sample(1).batch["maker"].tolist() == [1] and observer.request("ping")
        observer.close()

    def test_a_forked_child_makes_a_client_of_its_own(self, rig: Rig, needs: Needs) -> None:
        needs("processes")
        server = rig.server(batch_size=4)
        client = rig.client(server)
        client.send_batch(stacked(0, 0, 4))

        if not self.capabilities.forks:

            def told() -> None:
                with pytest.raises(ForkError, match="fork"):
                    rig.client(server.address)

            forked(told, PATIENCE)
            assert client.request("ping", blob=b"parent")[1] == b"parent"
            return

        def child() -> None:
            with rig.client(server.address) as own:
                own.send_batch(stacked(1, 0, 8))
                assert own.request("ping", blob=b"child")[1] == b"child"

        drained: list[Tally] = []
        learner = threading.Thread(target=lambda: drained.append(drain(server, 12)), daemon=True)
        learner.start()
        forked(child, PATIENCE)
        learner.join(PATIENCE)
        drained[0].check({0: 4, 1: 8})
        assert client.request("ping", blob=b"parent")[1] == b"parent"

    def test_a_forked_child_that_closes_the_server_leaves_it_to_the_parent(self, rig: Rig) -> None:
        """A child also closes it when it leaves a `with` block, for example because of an exception."""
        server = rig.server(batch_size=4)
        client = rig.client(server)
        client.send_batch(stacked(0, 0, 4))
        forked(server.close, PATIENCE)
        rig.client(server).send_batch(stacked(1, 0, 4))
        client.send_batch(stacked(0, 4, 4))
        drain(server, 12).check({0: 8, 1: 4})

    @pytest.mark.parametrize("call", ["send", "send_batch", "wait", "weights", "connect"])
    def test_ctrl_c_ends_every_wait(
        self, rig: Rig, needs: Needs, call: str, tmp_path: Path
    ) -> None:
        needs("processes")
        server = rig.server(batch_size=1, num_buffers=2)
        address = str(server.address)
        if call == "connect":
            server.close()
        setup = f"""
            from echo_core import Client
            from echo_testing.samples import example, sample, stacked

            def connect():
                options = {self.connect_options!r}
                return Client({address!r}, example(), timeout=1000, max_inflight_msgs=4, **options)

            def fill(client):
                client.send_batch(stacked(1, 0, 6))
                return client

            def within(client, call):
                with client:
                    call(client)
        """
        code = {
            "connect": "connect()",
            "send": "within(client, lambda c: c.send(sample(1, 6)))",
            "send_batch": "within(client, lambda c: c.send_batch(stacked(1, 6, 3)))",
            "wait": "within(client, lambda c: c.wait())",
            "weights": "within(client, lambda c: c.weights())",
        }[call]
        if call != "connect":
            setup += "\n            client = fill(connect())\n"
        interrupted(setup, code, tmp_path)

    @pytest.mark.parametrize("filler", [48, 400_000])
    def test_a_stopped_worker_delays_nobody(self, rig: Rig, needs: Needs, filler: int) -> None:
        needs("processes")
        server = rig.server(example(filler), batch_size=1, num_buffers=8)
        server.publish({"w": np.full(1 << 20, 1.0)})
        hearing, saying = rig.pipe()
        process = rig.spawn(
            workers.pour, str(server.address), 0, filler, True, saying, self.connect_options
        )
        tally = drain(server, 20)
        assert hear(hearing) == "ready"
        drain(server, 25, tally)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGSTOP)  # at any point, perhaps in the middle of a sample
        client = rig.client(server, example(filler))
        for version in range(2, 12):
            outcome = returns(lambda v=version: server.publish({"w": np.full(1 << 20, float(v))}))
            assert outcome.version == version
        worker = threading.Thread(
            target=lambda: [client.send(sample(1, number, filler)) for number in range(40)],
            daemon=True,
        )
        worker.start()
        while len(tally.numbers.get(1, [])) < 40:
            tally.add(server.sample(timeout=PATIENCE).batch)
        weights = client.weights(newer_than=10)
        assert (weights.params["w"] == weights.version).all()
        worker.join(PATIENCE)
        os.kill(process.pid, signal.SIGCONT)
        before = len(tally.numbers[0])
        drain(server, tally.count + 20, tally)
        assert len(tally.numbers[0]) == before + 20, "the stopped worker carries on"
        process.kill()
        until(lambda: len(server.peers()) == 1, "its death is noticed", PATIENCE)
        assert tally.numbers[0] == list(range(len(tally.numbers[0])))

    @carrier
    @pytest.mark.parametrize("filler", [48, 700_000])
    def test_killed_workers_leave_no_torn_and_no_missing_samples(
        self, rig: Rig, needs: Needs, filler: int
    ) -> None:
        needs("processes")
        server = rig.server(example(filler), batch_size=2, num_buffers=4)
        tally = Tally()
        for maker in range(3):
            hearing, saying = rig.pipe()
            process = rig.spawn(
                workers.pour, str(server.address), maker, filler, False, saying,
                self.connect_options,
            )
            drain(server, tally.count + 20 + 2 * maker, tally)
            assert hear(hearing) == "ready"
            process.kill()
            process.join(PATIENCE)
            until(
                lambda: _empty(server, tally) and server.peers() == [], "its end is noticed", 30
            )
        for maker in range(3):  # the samples that arrived are the first ones that it made
            assert tally.numbers[maker] == list(range(len(tally.numbers[maker])))
        client = rig.client(server, example(filler))
        client.send_batch(stacked(9, 0, 4, filler))
        until(lambda: _empty(server, tally) and len(tally.numbers.get(9, [])) >= 3, "it goes on")


def _public_methods(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_") and callable(getattr(kind, name))}


def _empty(server: Server, tally: Tally) -> bool:
    """Take every complete batch, until none arrives for a moment."""
    while True:
        try:
            tally.add(server.sample(timeout=0.1).batch)
        except EchoTimeoutError:
            return True
