"""Many threads on one client, many consumers on one server, forked and spawned processes."""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig.ledger import Consumer
from rig.workers import numbered

from echo_core import Client, EchoTimeoutError, ForkError, Server
from echo_testing.processes import forked
from echo_testing.samples import Tally, example, stacked

EACH = 3000  # samples of each thread


def run_all(works: list[Callable[[], None]], within: float = 60) -> None:
    """Run all on threads; fail with the first error."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(within)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"not back within {within:g} s"


@pytest.mark.parametrize("filler", [48, 100_000])
def test_many_threads_on_one_client(filler: int, serve: Callable[..., Server]) -> None:
    server = serve(batch_size=16, filler=filler)
    each = EACH if filler == 48 else 60
    with Consumer(server) as consumer, Client(server.address, example(filler)) as client:

        def one_by_one(maker: int) -> None:
            samples = numbered(maker, filler)
            for number in range(each):
                client.send(next(samples))
                if number % 100 == 0:
                    client.flush()

        def in_batches(maker: int) -> None:
            for first in range(0, each, 20):
                client.send_batch(stacked(maker, first, 20, filler))
                if first % 500 == 0:
                    client.wait()

        def talk() -> None:
            for number in range(20):
                assert client.request("ping", {}, bytes([number]))[1] == bytes([number])
                published = server.publish({"w": np.full(1000, number)})
                weights = client.weights(newer_than=published.version - 1)
                assert len(set(weights.params["w"].tolist())) == 1
                assert client.stats()["acknowledged"] <= client.stats()["samples"]

        works = [lambda m=maker: one_by_one(m) for maker in range(4)]
        works += [lambda m=maker: in_batches(m) for maker in range(4, 7)]
        run_all([*works, talk])
        client.wait()
        consumer.finish().check(dict.fromkeys(range(7), each))


def test_several_consumers_on_one_server(serve: Callable[..., Server]) -> None:
    server = serve(batch_size=4, num_buffers=8)
    tallies = [Tally() for _ in range(4)]
    count, over = 20_000, threading.Event()

    def consume(tally: Tally) -> None:
        held: list[Any] = []
        while not (over.is_set() and server.stats()["store/samples"] < 4):
            try:
                held.append(server.sample(timeout=0.2).batch)
            except EchoTimeoutError:
                continue
            if len(held) == 2:  # what it holds is its own alone until it lets go
                tally.add(held.pop(0))
        for batch in held:
            tally.add(batch)

    def produce(maker: int) -> None:
        with Client(server.address, example()) as client:
            for sample, _ in zip(numbered(maker, 48), range(count)):
                client.send(sample)

    def produce_all() -> None:
        try:
            run_all([lambda: produce(0), lambda: produce(1)])
        finally:
            over.set()

    run_all([*(lambda t=tally: consume(t) for tally in tallies), produce_all], within=90)
    tallies[0].merge(tallies[1:]).check({0: count, 1: count}, in_order=False)


def test_fork_is_a_clear_error_in_the_child_and_nothing_to_the_parent(
    serve: Callable[..., Server],
) -> None:
    server = serve(batch_size=4)
    client = Client(server.address, example())
    address, samples = server.address, numbered(0, 48)
    with Consumer(server) as consumer:
        client.send(next(samples))
        server.publish({"w": np.zeros(3)})
        client.weights()

        def child() -> None:
            sample = next(numbered(9, 48))
            for call in (
                lambda: client.send(sample),
                lambda: client.send_batch(stacked(9, 0, 2)),
                client.flush,
                client.wait,
                client.weights,
                client.server_stats,
                client.stats,
                lambda: server.submit(sample),
                lambda: server.sample(timeout=1),
            ):
                with pytest.raises(ForkError):
                    call()
            client.close()  # has nothing to close here, and must not say goodbye for the parent
            server.close()
            with Client(address, example()) as mine:  # what the error says to do
                for sample, _ in zip(numbered(1, 48), range(10)):
                    mine.send(sample)

        for turn in range(3):
            forked(child) if turn == 0 else forked(lambda: None)
            for _ in range(100):
                client.send(next(samples))
            client.wait()
        assert client.stats()["reconnects"] == 0
        client.close()
        consumer.finish().check({0: 301, 1: 10})


def test_fork_in_a_flood(serve: Callable[..., Server]) -> None:
    """A child that ends at once, while other threads send: no lock and no socket is torn."""
    server = serve(batch_size=16)
    with Consumer(server) as consumer, Client(server.address, example()) as client:
        sent = [0, 0]
        over = threading.Event()

        def flood(maker: int) -> None:
            for sample in numbered(maker, 48):
                if over.is_set():
                    return
                client.send(sample)
                sent[maker] += 1

        def fork() -> None:
            for _ in range(15):
                forked(lambda: None)
            over.set()

        run_all([lambda: flood(0), lambda: flood(1), fork])
        client.close()
        consumer.finish().check(dict(enumerate(sent)))


def spawned(client: Client, maker: int, count: int) -> None:
    with client:
        for sample, _ in zip(numbered(maker, 48), range(count)):
            client.send(sample)


def test_a_client_travels_to_a_spawned_process(serve: Callable[..., Server]) -> None:
    server = serve(batch_size=16)
    context = multiprocessing.get_context("spawn")
    with Consumer(server) as consumer, Client(server.address, example()) as client:
        assert "secret" not in repr(pickle.dumps(client))
        children = [context.Process(target=spawned, args=(client, maker, 500)) for maker in (1, 2)]
        for child in children:
            child.start()
        client.send(next(numbered(0, 48)))  # the one here is not disturbed
        for child in children:
            child.join(60)
            assert child.exitcode == 0
        client.wait()
        consumer.finish().check({0: 1, 1: 500, 2: 500})
