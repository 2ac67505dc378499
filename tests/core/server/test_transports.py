"""A server and its transports: chosen, opened, closed, told of weights and asked."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from filling import filled

from echo_core import Address, ClosedError, ConfigError, EchoError, PluginError, Server, Transport
from echo_core.server.sink import ServerSink
from echo_core.wire.peer import Peer
from echo_core.wire.sink import Sink
from echo_core.wire.transport import Connection, Listener
from echo_testing.samples import example

pytestmark = pytest.mark.needs("echo-samplers")  # a server needs one


@pytest.mark.parametrize(
    ("transport", "error", "said"),
    [
        ("tpc://127.0.0.1:0", PluginError, "tpc"),
        ({"port": 0}, ConfigError, "type"),
        ({"type": "nowhere"}, PluginError, "nowhere"),
        (5, ConfigError, "not 5"),
        ([Transport], ConfigError, "Transport"),
    ],
)
def test_transports_that_cannot_be(transport: Any, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        Server(example(), 2, transport=transport)


class Direct(Transport):
    """The smallest transport: its listener is its worker, within this process."""

    scheme = "direct"
    opened: list[DirectListener]

    def __init__(self, broken: bool = False) -> None:
        self.broken = broken
        self.listeners: list[DirectListener] = []

    def listen(self, sink: Sink) -> Listener:
        if self.broken:
            raise OSError("direct://: no more room")
        self.listeners.append(DirectListener(sink))
        return self.listeners[-1]

    @classmethod
    def connect(cls, address: Address, spec: Any, **options: Any) -> Connection:
        raise OSError("only within the learner")


class DirectListener(Listener):
    address = Address("direct", path="here")

    def __init__(self, sink: Sink) -> None:
        self.sink = sink
        self.peer = Peer(id="0" * 32, name="nobody", address="here", connected_at=time.time())
        self.published: list[int] = []
        self.closed = 0
        sink.connected(self.peer)

    def publish(self, weights: Any) -> None:
        self.published.append(weights.version)

    def peers(self) -> list[Peer]:
        return [self.peer]

    def stats(self) -> dict[str, float | int]:
        return {"samples": 3}

    def close(self, timeout: float | None = None) -> None:
        self.closed += 1
        self.sink.lost(self.peer, "")


def test_a_server_opens_and_closes_its_transports() -> None:
    first, second = Direct(), Direct()
    server = Server(example(), 2, transport=[first, second])
    with pytest.raises(EchoError, match="start"):
        _ = server.address
    with server:
        assert server.start() is server
        assert (len(first.listeners), len(second.listeners)) == (1, 1)
        assert str(server.address) == "direct:here" or "direct" in str(server.address)
        assert len(server.addresses) == 2
        with pytest.raises(EchoError, match="no port"):
            _ = server.port
        assert [peer.name for peer in server.peers()] == ["nobody"] * 2
        stats = server.stats()
        assert stats["transport/direct/samples"] == 6  # of both together
        assert stats["worker/nobody/state"] == "idle"
        server.publish(np.zeros(2))
        server.publish(np.zeros(2))
        assert [listener.published for listener in (*first.listeners, *second.listeners)] == [
            [1, 2]
        ] * 2
    assert [listener.closed for listener in (*first.listeners, *second.listeners)] == [1, 1]
    assert server.peers() == []
    with pytest.raises(EchoError, match="closed"):
        _ = server.address


def test_versions_reach_a_transport_in_order() -> None:
    transport = Direct()
    with Server(example(), 2, transport=transport) as server:
        threads = [
            threading.Thread(target=lambda: [server.publish(np.zeros(9)) for _ in range(100)])
            for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert transport.listeners[0].published == list(range(1, 301))


def test_a_transport_that_cannot_open_closes_the_others() -> None:
    good = Direct()
    server = Server(example(), 2, transport=[good, Direct(broken=True)])
    with pytest.raises(OSError, match="no more room"):
        server.start()
    assert good.listeners[0].closed == 1
    server.close()


class Faulty(Direct):
    """Its listener raises when weights are published and when it is closed."""

    def listen(self, sink: Sink) -> Listener:
        self.listeners.append(FaultyListener(sink))
        return self.listeners[-1]


class FaultyListener(DirectListener):
    def publish(self, weights: Any) -> None:
        raise OSError("no memory for weights")

    def close(self, timeout: float | None = None) -> None:
        super().close(timeout)
        raise RuntimeError("cannot close")


def test_a_transport_that_raises_keeps_no_other_from_weights_and_from_closing() -> None:
    faulty, good = Faulty(), Direct()
    server = Server(example(), 2, transport=[faulty, good]).start()
    with pytest.raises(OSError, match="no memory for weights"):
        server.publish(np.zeros(2))
    assert good.listeners[0].published == [1]
    with pytest.raises(RuntimeError, match="cannot close"):
        server.close()
    assert (faulty.listeners[0].closed, good.listeners[0].closed, server.closed) == (1, 1, True)
    server.close()
    assert (faulty.listeners[0].closed, good.listeners[0].closed) == (1, 1)


def test_a_start_that_fails_says_why_and_leaves_nothing_open() -> None:
    good, faulty = Direct(), Faulty()
    server = Server(example(), 2, transport=[good, faulty, Direct(broken=True)])
    with pytest.raises(OSError, match="no more room"):
        server.start()
    assert (good.listeners[0].closed, faulty.listeners[0].closed) == (1, 1)
    with pytest.raises(EchoError, match="not been started"):
        _ = server.address
    server.close()


def test_a_dropped_server_closes_its_transports() -> None:
    transport = Direct()
    server = Server(example(), 2, transport=transport).start()
    sink, peer = transport.listeners[0].sink, transport.listeners[0].peer
    del server
    assert transport.listeners[0].closed == 1
    sink.connected(peer)
    sink.lost(peer, "late")
    assert sink.weights is None
    for call in (sink.claim, lambda: sink.control(peer, "stats", {}, b""), lambda: sink.tokens):
        with pytest.raises(ClosedError):
            call()


def test_requests_are_answered_or_refused_in_words() -> None:
    server = filled(2)
    sink, peer = ServerSink(server), Peer("0" * 32, "w", "here")
    body, blob = sink.control(peer, "stats", {}, b"")
    assert (body["store/samples_inserted_total"], blob) == (2, b"")
    assert sink.control(peer, "ping", {}, b"abc")[1] == b"abc"
    with pytest.raises(EchoError, match="no operation 'shutdown'"):
        sink.control(peer, "shutdown", {}, b"")
