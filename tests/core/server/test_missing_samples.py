"""Why no samples come, in the learner's error, in the figures of tables, and in the live view."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

import echo_core
from echo_core import Client, EchoTimeoutError, Server
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")

EXAMPLE = {"x": np.zeros(2, np.float32)}
TCP = "tcp://127.0.0.1:0"


def why(server: Server) -> str:
    with pytest.raises(EchoTimeoutError) as caught:
        server.sample(timeout=0.01)
    return str(caught.value)


@contextmanager
def waiting_for_weights(server: Server, source: Server, workers: int) -> Iterator[list[Client]]:
    """Within the block, workers of `server` wait for weights from `source`; at the end `server` publishes some."""
    clients = [Client(server.address, EXAMPLE, name=f"w{i}", weights=None if source is server else source.address) for i in range(workers)]
    with ThreadPoolExecutor(workers) as pool:
        calls = [pool.submit(client.weights, 60) for client in clients]
        until(lambda: [peer.state for peer in source.peers()].count("waiting for weights") == workers, "they wait")
        yield clients
        server.publish(EXAMPLE)
        for call in calls:
            call.result()
    for client in clients:
        client.close()


def test_workers_and_learner_that_wait_for_each_other_are_told() -> None:
    with Server(EXAMPLE, 4, TCP) as server, waiting_for_weights(server, server, 3):
        assert "; 3 workers connected, 3 waiting for weights; call publish() [w0 waiting for weights for " in why(server)
        assert all(server.stats()[f"worker/w{i}/state"] == "waiting for weights" for i in range(3))


def test_the_error_of_a_table_says_it_too() -> None:
    queue = echo_core.Table("queue", EXAMPLE, capacity=10, sampler="fifo", rate_limiter=echo_core.Queue(10))
    with Server(tables=[queue], batch_size=2, transport=TCP) as server:
        assert why(server).endswith("; no worker is connected; start workers, or wait longer (timeout=)")
        with waiting_for_weights(server, server, 2):
            assert why(server).endswith("; 2 workers connected, 2 waiting for weights; call publish()")
            assert str(server.stats()["table/queue/blocked_by"]).endswith("2 waiting for weights; call publish()")


def test_a_worker_that_acts_is_only_slow() -> None:
    with Server(EXAMPLE, 4, TCP) as server, Client(server.address, EXAMPLE) as client:
        assert "; 1 worker connected, and nothing was sent yet; wait longer" in why(server)
        client.send(EXAMPLE)
        client.wait(60)
        assert "; 1 worker connected, and slower than the learner; start more of them" in why(server)


def test_workers_behind_a_relay_wait_for_the_same_publish() -> None:
    with Server(EXAMPLE, 4, TCP) as server, Server(EXAMPLE, 4, TCP, weights_from=server.address) as relay:
        until(lambda: any(peer.relayed is not None for peer in server.peers()), "the relay is here")
        assert "; 0 workers connected, 0 waiting for weights, and 1 relay; call publish()" in why(server)
        with waiting_for_weights(server, relay, 1):
            assert "; 1 worker connected, 0 waiting for weights, and 1 relay; call publish()" in why(server)
        assert "publish()" not in why(server)


def test_a_server_that_does_not_listen_names_no_workers() -> None:
    with Server(EXAMPLE, 4) as server:
        assert "worker" not in why(server)
