"""A server without an example takes no samples: it serves requests and weights, and refuses the rest by name."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoError, EchoTimeoutError, JobEnded, Server, SpecError
from echo_core.client.observer import Observer

pytestmark = pytest.mark.needs("echo-tcp", "echo-shm", "echo-samplers")

EXAMPLE = {"obs": np.zeros(3, np.float32)}


@pytest.fixture(params=["tcp", "shm"])
def transport(request: pytest.FixtureRequest) -> str:
    return "tcp://127.0.0.1:0" if request.param == "tcp" else f"shm://{uuid.uuid4().hex}"


def double(server: Any, peer: Any, body: dict[str, Any], blob: bytes) -> tuple[dict[str, Any], bytes]:
    return {"twice": 2 * body["number"]}, b""


def test_it_serves_requests_and_weights(transport: str) -> None:
    server = Server(transport=transport)
    server.serve("tests/double", double)
    with server, Client(server.address, ()) as client:
        assert client.request("tests/double", {"number": 21})[0] == {"twice": 42}
        published = server.publish({"w": np.ones(3)})
        weights = client.weights(timeout=10)
        assert (weights.version, weights.digest) == published
        stats = client.server_stats()
        assert (stats["store/batch_size"], stats["store/capacity"], stats["store/active_connections"]) == (0, 0, 1)
        assert server.sampler is None and server.tables == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda server: server.submit(EXAMPLE),
        lambda server: server.submit_batch({"obs": np.zeros((2, 3), np.float32)}),
        lambda server: server.sample(timeout=0),
        lambda server: server.table(),
        lambda server: server.sample(timeout=0, table="x"),
        lambda server: server.update_priorities([1], [1.0]),
        lambda server: server.checkpoint("nowhere"),
    ],
)
def test_it_refuses_samples_and_tables_by_name(call: Callable[[Server], Any]) -> None:
    with pytest.raises(ValueError, match="this server takes no samples, because it was made without an example"):
        call(Server())


def test_a_client_with_an_example_is_told(transport: str) -> None:
    with Server(transport=transport) as server:
        with pytest.raises(SpecError, match=r"leaf 'obs' .* but not .*without an example takes no samples, .*: Client\(address, \(\)\)"):
            Client(server.address, EXAMPLE, timeout=10)
        with Observer(server.address) as observer, pytest.raises(EchoError, match="this server takes no samples"):
            observer.tap(1, timeout=10)
        with Client(server.address, ()) as client, pytest.raises(EchoError, match="this server takes no samples"):
            client.table().sample(1, timeout=10)


def test_an_empty_sample_finds_no_room_and_its_sender_is_told_why(transport: str) -> None:
    """Nothing that is sent is lost without a word: the worker waits, and its error says for what."""
    server = Server(transport=transport).start()
    with Client(server.address, (), timeout=1.0) as client:
        with pytest.raises(EchoTimeoutError, match="this server takes no samples"):
            for _ in range(100_000):
                client.send(())
        assert server.stats()["store/samples_inserted_total"] == 0
        server.close()
        with pytest.raises(JobEnded):
            client.request("ping", {})


def test_what_only_samples_need_is_refused_without_an_example() -> None:
    with pytest.raises(ConfigError, match="Server needs the example pytree, .* has no use for batch_size and capacity"):
        Server(batch_size=32, capacity=10)
    with pytest.raises(ConfigError, match="Server needs the example pytree"):
        Server(None, 4)
