"""The native TCP ends and the Python ones speak the same bytes: each is put before the other."""

from __future__ import annotations

import random
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from local_net import SPEC, TOKEN, LocalChannel

from echo_core.base.address import Address
from echo_core.base.errors import EchoError, EchoTimeoutError, ProtocolError, SecurityError, SpecError
from echo_core.base.transport_options import ListenOptions
from echo_core.server.server import Server
from echo_core.spec.spec import Spec
from echo_core.wire.transport import Connection, Transport
from echo_net.channel import Acceptor, Channel, ChannelTransport
from echo_testing.processes import returns, until
from echo_testing.samples import Tally, assert_same, example, random_like, rich_example, sample, stacked

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")

dialled: list[socket.socket] = []  # of workers with the Python end


class SocketChannel(LocalChannel):
    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        super().__init__(sock)
        self.peer = "{}:{}".format(*sock.getpeername()[:2])


class SocketAcceptor(Acceptor):
    def __init__(self) -> None:
        self.sock = socket.create_server(("127.0.0.1", 0))
        self.address = Address("tcp", *self.sock.getsockname())

    def accept(self) -> Channel:
        return SocketChannel(self.sock.accept()[0])

    def shutdown(self) -> None:
        self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


@dataclass(frozen=True, kw_only=True)
class PythonOptions(ListenOptions):
    port: int = 0


class PythonTcp(ChannelTransport):
    scheme = "tcp"
    Options = PythonOptions

    def bind(self) -> Acceptor:
        return SocketAcceptor()

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        sock = socket.create_connection(address.endpoint, timeout)
        sock.settimeout(None)
        dialled.append(sock)
        return SocketChannel(sock)


@pytest.fixture(params=["native learner, Python worker", "Python learner, native worker"])
def ends(request: pytest.FixtureRequest) -> tuple[type[Transport], type[Transport]]:
    from echo_tcp.transport import TcpTransport

    both: tuple[type[Transport], type[Transport]] = (TcpTransport, PythonTcp)
    return both if request.param.startswith("native") else both[::-1]


class Pair:
    """A server with one kind of end, and connections with the other."""

    def __init__(self, ends: tuple[type[Transport], type[Transport]], like: Any, batch_size: int) -> None:
        self.listening, self.connecting = ends
        self.server = Server(like, batch_size, self.listening(port=0), token=TOKEN)

    def __enter__(self) -> Pair:
        self.server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.close()
        dialled.clear()

    def connect(self, spec: Spec = SPEC, **options: Any) -> Connection:
        return self.connecting.connect(self.server.address, spec, **{"token": TOKEN, "timeout": 10.0} | options)


def test_every_kind_of_leaf_and_both_ways_of_sending(ends: Any) -> None:
    tree = rich_example()
    spec = Spec.from_example(tree)
    with Pair(ends, tree, 6) as pair, pair.connect(spec) as connection:
        for seed in range(4):
            batch = random_like(tree, seed, (6,))
            connection.send_batch(batch)
            assert_same(pair.server.sample(10).batch, batch)
        ones = [random_like(tree, seed) for seed in range(6)]
        for one in ones:
            connection.send(one)
        got = pair.server.sample(10).batch
        for i, one in enumerate(ones):
            assert_same(spec.treedef.unflatten([leaf[i] for leaf in spec.treedef.flatten_up_to(got)]), one)


@pytest.mark.parametrize("filler", [48, 400_000])
def test_a_flood_across_cut_connections(ends: Any, filler: int) -> None:
    """The learner's end hangs up on the worker again and again."""
    count = 20_000 if filler == 48 else 200
    rng = random.Random(filler)
    tally = Tally()
    with Pair(ends, example(filler), 10) as pair:

        def consume() -> None:
            while tally.count < count:
                with suppress(EchoTimeoutError):
                    tally.add(pair.server.sample(0.1).batch)
                    if rng.random() < 100 / count:
                        cut(pair)

        consumer = threading.Thread(target=consume)
        consumer.start()
        with pair.connect(Spec.from_example(example(filler)), window_bytes=4 << 20, timeout=60.0) as connection:
            i = 0
            while i < count:
                n = min(rng.choice([1, 1, 5, 60]), count - i)
                connection.send_batch(stacked(0, i, n, filler)) if n > 1 else connection.send(sample(0, i, filler))
                i += n
            connection.wait()
            stats = connection.stats()
            assert stats["acknowledged"] == count and stats["reconnects"] > 0
        returns(consumer.join)
        tally.check({0: count})


def cut(pair: Pair) -> None:
    """Lose every connection of this moment, from whichever side is Python's."""
    if pair.connecting is PythonTcp:
        victims = list(dialled)
    else:
        victims = [client.channel.sock for client in pair.server._listeners[0].serving()]
    for sock in victims:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


def test_weights_and_receipts(ends: Any) -> None:
    with Pair(ends, example(), 10) as pair, pair.connect() as connection:
        for version in range(1, 6):
            published = pair.server.publish({"w": np.full(300_000, float(version)), "n": version})
            weights = connection.weights(10, newer_than=version - 1)
            assert (weights.version, weights.digest) == tuple(published)
            assert (weights.params["w"] == version).all() and weights.params["n"] == version
        until(lambda: pair.server.peers()[0].weights_version == 5, "the receipt")
        assert pair.server.peers()[0].weights_digest == weights.digest
        cut(pair)
        pair.server.publish({"w": np.zeros(2)})
        assert connection.weights(10, newer_than=5).version == 6


def test_requests(ends: Any) -> None:
    with Pair(ends, example(), 10) as pair, pair.connect() as connection:
        body, blob = connection.request("ping", {}, b"x" * 1_000_000)
        assert "time" in body and blob == b"x" * 1_000_000
        with pytest.raises(EchoError, match="'nonsense'"):
            connection.request("nonsense", {})
        with pytest.raises((ValueError, EchoError), match="1048576"):
            connection.request("ping", {}, bytes(2 << 20))
        assert connection.request("stats", {})[0]["store/batch_size"] == 10


def test_strangers(ends: Any) -> None:
    with Pair(ends, example(), 10) as pair:
        with pytest.raises(SecurityError, match="ECHO_TOKEN"):
            pair.connect(token=b"another-token-of-the-tests")
        with pytest.raises(SpecError, match="filler"):
            pair.connect(Spec.from_example(example(7)))
        with socket.create_connection(pair.server.address.endpoint, 10) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with suppress(ConnectionError):
                assert stranger.recv(100) == b""


def test_a_session_goes_on_from_one_kind_of_worker_to_the_other(ends: Any) -> None:
    """The same client id, first with the one end, then with the other."""
    options = {"client_id": "e" * 32}
    with Pair(ends, example(), 10) as pair:
        with pair.connect(**options) as connection:
            connection.send_batch(stacked(0, 0, 4))
        pair.connecting = pair.listening
        with pair.connect(**options) as connection:
            connection.send_batch(stacked(0, 4, 6))
        tally = Tally()
        tally.add(pair.server.sample(10).batch)
        tally.check({0: 10})


def test_closing_each_end_is_seen_by_the_other(ends: Any) -> None:
    with Pair(ends, example(), 10) as pair:
        connection = pair.connect(reconnect=False)
        connection.close()
        until(lambda: not pair.server.peers(), "the worker has left")
        connection = pair.connect(reconnect=False)
        pair.server.close()
        error = returns(lambda: connection.weights(10))
        assert isinstance(error, EchoError) and not isinstance(error, (EchoTimeoutError, ProtocolError))
        with suppress(EchoError):
            connection.close()
