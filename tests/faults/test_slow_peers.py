"""One slow, stopped or deaf peer slows nobody else."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.proxy import Plan, Proxy
from rig.raw import RawWorker, data_frame
from rig.strain import keeping_learner
from rig.workers import flood, numbered

from echo_core import Client, EchoTimeoutError, Server
from echo_core.wire.protocol import Kind, frame
from echo_testing.processes import until
from echo_testing.samples import example, stacked

LARGE = 300_000  # bytes; read straight into its slot

# Everybody else delivers so many samples meanwhile: far more than fit into all buffers on the way.
ENOUGH = {48: 50_000, LARGE: 400}


def others(start: Callable[..., Child], server: Server, filler: int) -> list[Child]:
    """Two workers, makers 0 and 1, that deliver what is enough and end."""
    children = [
        start(flood, str(server.address), maker, filler, ENOUGH[filler]) for maker in range(2)
    ]
    for child in children:
        assert child.hear() == "ready"
    return children


@pytest.mark.parametrize("held", ["header", "first leaf", "last byte"])
@pytest.mark.parametrize("filler", [48, LARGE])
def test_half_a_message_held_for_ever(
    filler: int, held: str, serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    server = serve(batch_size=4, filler=filler)
    size = 24 + 16 + filler
    part = {"header": 10, "first leaf": 24 + filler // 2, "last byte": size - 1}[held]
    with Consumer(server) as consumer:
        # More of them than the store has slots.
        holders = [RawWorker(server, filler, name=f"holder {i}") for i in range(20)]
        frames = {}
        for maker, raw in enumerate(holders, 100):
            raw.samples(maker, 0)
            raw.acknowledged(1)
            frames[maker] = data_frame(stacked(maker, 1, 1, filler), 1, 2)
            raw.send(frames[maker][:part])
        until(
            lambda: sum(peer.state == "half a message" for peer in server.peers()) == 20,
            "the learner sees what they do",
        )
        for child in others(start, server, filler):
            assert child.hear(within=60)["unacknowledged"] == 0
            child.end()
        for maker, raw in enumerate(holders, 100):
            raw.send(frames[maker][part:])
            raw.acknowledged(2)
            raw.close()
        expected = dict.fromkeys(range(100, 120), 2)
        consumer.finish().check(expected | dict.fromkeys(range(2), ENOUGH[filler]))


@pytest.mark.parametrize(("filler", "piece"), [(48, 7), (LARGE, 2000)], ids=["small", "large"])
def test_a_slow_sender(
    filler: int,
    piece: int,
    serve: Callable[..., Server],
    start: Callable[..., Child],
    proxy: Callable[..., Proxy],
) -> None:
    server = serve(batch_size=4, filler=filler)
    slow = Plan(piece=piece, pause=0.005)
    shaken = 2000  # bytes that pass before it is slow, so that it gets through the handshake
    with Consumer(server) as consumer:
        clients = [
            Client(proxy(server.port, Plan(piece=shaken)).address, example(filler), name="slow")
            for _ in range(4)
        ]
        links = proxy(server.port, slow)
        trickle = Client(links.address, example(filler), name="trickle")
        for maker, client in enumerate([*clients, trickle], 100):
            client.send(next(numbered(maker, filler)))
        for child in others(start, server, filler):
            assert child.hear(within=60)["unacknowledged"] == 0
            child.end()
        for client in (*clients, trickle):
            client.close()
        expected = dict.fromkeys(range(100, 105), 1)
        consumer.finish().check(expected | dict.fromkeys(range(2), ENOUGH[filler]))


@pytest.mark.parametrize("filler", [48, LARGE])
def test_a_worker_stopped_in_the_middle(
    filler: int, serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    server = serve(batch_size=4, filler=filler)
    with Consumer(server) as consumer:
        stopped = [start(flood, str(server.address), maker, filler) for maker in (100, 101)]
        for child in stopped:
            assert child.hear() == "ready"
        for child, maker in zip(stopped, (100, 101)):
            consumer.wait_for(maker, 50)
            child.freeze()
        for child in others(start, server, filler):
            assert child.hear(within=60)["unacknowledged"] == 0
            child.end()
        sent = {}
        for child, maker in zip(stopped, (100, 101)):
            child.thaw()
            sent[maker] = child.ask("stop", within=60)["acknowledged"]
            child.end()
        consumer.finish().check(sent | dict.fromkeys(range(2), ENOUGH[filler]))


def test_a_worker_that_never_reads(serve: Callable[..., Server]) -> None:
    """Neither its acknowledgements nor its weights: both pile up for it alone."""
    server = serve(batch_size=4)
    big = {"w": np.arange(2 << 20, dtype=np.float64)}  # more than the buffers of a socket take
    with Consumer(server) as consumer, RawWorker(server, name="deaf") as deaf:
        deaf.send(frame(Kind.SUBSCRIBE))
        with Client(server.address, example()) as client:
            for number in range(10):
                published = server.publish(big)
                weights = client.weights(newer_than=number)
                assert weights.version == published.version
                client.send_batch(stacked(0, 500 * number, 500))
                # It goes on sending, and is acknowledged without reading it.
                deaf.samples(1, 100 * number, 100)
            client.wait()
        consumer.wait_for(1, 1000)
        consumer.finish().check({0: 5000, 1: 1000})
        held = {peer.name: peer.weights_version for peer in server.peers()}
        assert held["deaf"] == 0


def test_a_learner_that_takes_nothing_stops_those_who_send_and_nobody_else(
    serve: Callable[..., Server],
) -> None:
    server = serve(batch_size=2)
    with Client(server.address, example()) as eager, Client(server.address, example()) as calm:
        server.publish({"w": np.full(3, 1)})
        for client in (eager, calm):
            assert client.weights().version == 1
        until(lambda: all(p.weights_version == 1 for p in server.peers()), "they say so")
        over = threading.Event()

        def send() -> None:
            for sample in numbered(0, 48):
                if over.is_set():
                    return
                eager.send(sample)

        thread = threading.Thread(target=send)
        thread.start()
        until(lambda: any(p.state == "waiting for space" for p in server.peers()), "it is full")
        # Weights still travel, to the one that waits as well; what it has to say waits in line.
        server.publish({"w": np.full(3, 2)})
        assert eager.weights(newer_than=1).version == 2
        assert calm.weights(newer_than=1).version == 2
        server.publish({"w": np.full(3, 3)})
        assert calm.weights(newer_than=2).version == 3
        assert calm.server_stats()["store/batch_size"] == 2
        over.set()
        with Consumer(server) as consumer:
            thread.join(60)
            assert not thread.is_alive()
            eager.close()
            calm.close()
            consumer.finish()


def test_a_learner_that_is_stopped_is_waited_for(start: Callable[..., Child]) -> None:
    server = start(keeping_learner)
    address = f"tcp://127.0.0.1:{server.hear()}"
    worker = start(flood, address, 0)
    assert worker.hear() == "ready"
    with Client(address, example()) as client:
        samples = numbered(1, 48)
        sent = 0
        for _ in range(3):
            until(lambda: worker.ask("?")["acknowledged"] > 100, "it flows")
            server.freeze()
            with pytest.raises(EchoTimeoutError):
                while True:  # until every buffer is full
                    client.send(sample := next(samples), timeout=0.1)
                    sent += 1
            server.thaw()
            client.send(sample)  # which was not taken
            sent += 1
        client.close()
        assert client.stats()["reconnects"] == 0
    counters = worker.ask("stop")
    worker.end()
    assert counters["reconnects"] == 0
    came = server.ask("end", within=60)
    assert {maker: came[maker] for maker in (0, 1)} == {0: counters["samples"], 1: sent}
    server.end()
