"""One damaged byte in the handshake with which a worker returns: it tries again. A verdict that comes twice ends it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
from strangers import EXAMPLE

from echo_core import Client, ConnectionClosedError, SecurityError, Server
from echo_core.base.errors import EchoError
from echo_testing.relay import Relay

pytestmark = pytest.mark.needs("echo-samplers")
# Places that wait for nothing: the version and kind of messages, and their JSON (never the length of a message, or a TLS record).
SPOTS = [("up", 4), ("up", 30), ("up", 130), ("up", 260), ("down", 4), ("down", 5), ("down", 40), ("down", 100), ("down", 300)]


@pytest.mark.parametrize("scheme", ["tcp", "grpc"], indirect=True)  # the contract of transports with TLS has a test for those
def test_a_worker_returns_after_damage(serve: Callable[..., Server]) -> None:
    server = serve()
    with Relay(server.address.endpoint) as relay, Client(dataclasses.replace(server.address, port=relay.port), EXAMPLE) as client:
        for number, (way, at) in enumerate(SPOTS, 1):
            relay.cut(way, at)
            client.send_batch({"x": np.zeros((4, 4), np.float32), "n": np.full(4, number)})
            client.wait(60)
            assert server.sample(timeout=20).batch["n"].tolist() == [number] * 4
            assert relay.damaged == number


def test_a_learner_that_refuses_twice_is_believed(serve: Callable[..., Server], monkeypatch: pytest.MonkeyPatch) -> None:
    server = serve()
    address = server.address
    with Client(address, EXAMPLE, timeout=60) as client:
        server.close(restarting=True)
        monkeypatch.setenv("ECHO_TOKEN", "a-token-of-another-learner")
        serve(port=address.port)
        with pytest.raises(EchoError, match="token"):
            client.send({"x": np.zeros(4, np.float32), "n": 0})
            client.wait(60)
        with pytest.raises((SecurityError, ConnectionClosedError)):
            client.close(timeout=1)
