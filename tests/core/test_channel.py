"""The channel transport, between a real server and real connections over a network made of socket pairs that can be cut."""

from __future__ import annotations

import errno
import math
import queue
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core.address import Address
from echo_core.channel import Acceptor, Channel, ChannelTransport
from echo_core.channel import link as link_module
from echo_core.channel import served as served_module
from echo_core.channel import uplink as uplink_module
from echo_core.channel.connection import ChannelConnection
from echo_core.channel.link import wait_until
from echo_core.channel.turn import Turn
from echo_core.channel.window import Window
from echo_core.errors import (
    ClosedError,
    ConfigError,
    ConnectionClosedError,
    EchoError,
    EchoTimeoutError,
    ForkError,
    HandshakeRefused,
    ProtocolError,
    SecurityError,
    SpecError,
)
from echo_core.handshake import ClientHandshake
from echo_core.options import ListenOptions
from echo_core.server import Server
from echo_core.spec import Spec
from echo_core.testing.processes import descriptors, forked, returns, settled, until
from echo_core.testing.samples import (
    Pair,
    Tally,
    assert_same,
    example,
    random_like,
    rich_example,
    sample,
    stacked,
)
from echo_core.wire import FIRST, LAST, REPLY, TO_WORKER, Header, Kind, frame, pack_header, parse_header

pytestmark = pytest.mark.needs("echo-samplers")

TOKEN = b"a token of the tests"
SPEC = Spec.from_example(example())

# ------------------------------------------------------------------- a network that can be cut


class LocalChannel(Channel):
    """A socket pair's end; it breaks after `budget` bytes, wherever in a frame that is."""

    def __init__(self, sock: socket.socket, budget: float = math.inf) -> None:
        self.sock, self.budget, self.peer = sock, budget, "somebody local"

    def send(self, buffers: Any) -> None:
        for buffer in buffers:
            if len(buffer) > self.budget:
                self.sock.sendall(memoryview(buffer)[: int(self.budget)])
                self.shutdown()
                raise ConnectionResetError("cut")
            self.budget -= len(buffer)
            self.sock.sendall(buffer)

    def recv_into(self, buffer: memoryview) -> int:
        return self.sock.recv_into(buffer)

    def shutdown(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.sock.close()


@dataclass
class Net:
    """What is behind the addresses `local://<path>`.

    Attributes:
        budget: bytes that the next channels of workers live for.
        accepting: what accept() raises, one after another, before it works again.
    """

    listening: dict[str, queue.SimpleQueue[socket.socket | None]] = field(default_factory=dict)
    budget: Iterator[float] = field(default_factory=lambda: iter(()))
    channels: list[LocalChannel] = field(default_factory=list)
    accepting: list[OSError] = field(default_factory=list)
    accepts: int = 0

    def dial(self, path: str) -> socket.socket:
        if path not in self.listening:
            raise ConnectionRefusedError(f"nobody listens at {path}")
        mine, theirs = socket.socketpair()
        self.listening[path].put(theirs)
        return mine

    def cut(self) -> None:
        """Every connection of this moment is lost."""
        for channel in self.channels:
            channel.shutdown()


net = Net()


class LocalAcceptor(Acceptor):
    def __init__(self, path: str) -> None:
        if path in net.listening:
            raise OSError(errno.EADDRINUSE, f"local://{path} is taken")
        self.address = Address("local", path=path)
        self.queue = net.listening[path] = queue.SimpleQueue()

    def accept(self) -> Channel:
        net.accepts += 1
        if net.accepting:
            raise net.accepting.pop(0)
        if (sock := self.queue.get()) is None:
            raise OSError("shut down")
        return LocalChannel(sock)

    def shutdown(self) -> None:
        net.listening.pop(self.address.path)
        self.queue.put(None)

    def close(self) -> None:
        while not self.queue.empty():
            if (sock := self.queue.get()) is not None:
                sock.close()


@dataclass(frozen=True, kw_only=True)
class LocalOptions(ListenOptions):
    path: str = "learner"


class LocalTransport(ChannelTransport):
    scheme = "local"
    Options = LocalOptions

    @classmethod
    def dial(cls, address: Address, options: Any, timeout: float) -> Channel:
        channel = LocalChannel(net.dial(address.path), next(net.budget, math.inf))
        net.channels.append(channel)
        return channel

    def bind(self) -> Acceptor:
        return LocalAcceptor(self.options.path)


@pytest.fixture(autouse=True)
def fresh_net() -> Iterator[None]:
    before = descriptors()
    net.__init__()  # type: ignore[misc]
    yield
    net.channels.clear()
    settled(descriptors, before, "file descriptors")


def serve(like: Any = None, batch_size: int = 2, num_buffers: int = 3, **options: Any) -> Server:
    like = example() if like is None else like
    transport = LocalTransport(**options)
    return Server(like, batch_size, transport, num_buffers=num_buffers, token=TOKEN).start()


def connect(spec: Spec = SPEC, path: str = "learner", **options: Any) -> ChannelConnection:
    options = {"token": TOKEN, "timeout": 10.0, "name": "w"} | options
    connection = LocalTransport.connect(Address("local", path=path), spec, **options)
    assert isinstance(connection, ChannelConnection)
    return connection


class Consumer:
    """Takes batches on a thread until told to stop."""

    def __init__(self, server: Server) -> None:
        self.tally = Tally()
        self.server = server
        self.stopping = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self) -> None:
        while not self.stopping:
            with suppress(EchoTimeoutError):
                batch = self.server.sample(0.05)
                if batch is None:
                    return
                self.tally.add(batch.batch)

    def check(self, expected: dict[int, int]) -> None:
        total = sum(expected.values())
        until(lambda: self.tally.count >= total, f"{total} samples")
        self.stopping = True
        self.thread.join()
        self.tally.check(expected)


class RawWorker:
    """Speaks the wire format by hand, to say what no connection would."""

    def __init__(self, client_id: str = "a" * 32, base: int = 0, spec: Spec = SPEC) -> None:
        self.sock = net.dial("learner")
        self.sock.settimeout(10)
        handshake = ClientHandshake(spec, TOKEN, client_id, base, name="raw")
        self.sock.sendall(handshake.start())
        while not handshake.done:
            self.sock.sendall(handshake.receive(self.sock.recv(65536)))
        self.data = handshake.leftover
        self.resume = self.read(Kind.ACK).seq

    def read(self, kind: Kind) -> Header:
        header, _ = self.read_payload(kind)
        return header

    def read_payload(self, kind: Kind) -> tuple[Header, bytes]:
        header = parse_header(self.exactly(24), SPEC.sample_bytes, TO_WORKER)
        assert header.kind is kind, header
        return header, self.exactly(header.length)

    def exactly(self, n: int) -> bytes:
        while len(self.data) < n:
            more = self.sock.recv(65536)
            if not more:
                raise EOFError
            self.data += more
        data, self.data = self.data[:n], self.data[n:]
        return data

    def send(self, first: int, count: int, maker: int = 0) -> None:
        _, payload = SPEC.flattener.batch_tobytes(stacked(maker, first - 1, count))
        self.sock.sendall(pack_header(Kind.DATA, count=count, seq=first, length=len(payload)) + payload)

    def gone(self) -> bool:
        """The learner has hung up on us."""
        try:
            while True:
                self.exactly(1)
        except (EOFError, ConnectionError):
            return True

    def close(self) -> None:
        self.sock.close()


@contextmanager
def raw(**arguments: Any) -> Iterator[RawWorker]:
    worker = RawWorker(**arguments)
    try:
        yield worker
    finally:
        worker.close()


# ------------------------------------------------------------------------------------- delivery


def test_every_kind_of_leaf_arrives_with_its_bits() -> None:
    tree = rich_example()
    spec = Spec.from_example(tree)
    with serve(tree, batch_size=5) as server, connect(spec) as connection:
        samples = [random_like(tree, seed) for seed in range(5)]
        for one in samples:
            connection.send(one)
        got = server.sample(10).batch
        for i, one in enumerate(samples):
            assert_same(spec.treedef.unflatten([leaf[i] for leaf in spec.treedef.flatten_up_to(got)]), one)
        batch = random_like(tree, 9, (5,))
        connection.send_batch(batch)
        assert_same(server.sample(10).batch, batch)


def test_samples_without_any_bytes() -> None:
    empty = {"nothing": np.zeros((0, 3), np.float32)}
    with serve(empty) as server, connect(Spec.from_example(empty)) as connection:
        connection.send(empty)
        connection.send_batch({"nothing": np.zeros((3, 0, 3), np.float32)})
        for _ in range(2):
            assert server.sample(10).batch["nothing"].shape == (2, 0, 3)


@pytest.mark.parametrize("filler", [1, 3000, 300_000])
def test_a_flood_arrives_whole_and_in_order(filler: int) -> None:
    count = min(20_000, 30_000_000 // filler)
    spec = Spec.from_example(example(filler))
    with serve(example(filler), batch_size=10) as server:
        consumer = Consumer(server)
        with connect(spec, window_bytes=8 << 20) as connection:
            for i in range(count):
                if i % 100 == 50:
                    connection.send_batch(stacked(0, i, 50, filler))
                elif not 50 < i % 100 < 100:
                    connection.send(sample(0, i, filler))
        assert connection.stats()["acknowledged"] == count
        consumer.check({0: count})


def test_a_batch_larger_than_a_frame_or_the_window_is_taken_whole() -> None:
    with serve(batch_size=1000) as server:
        consumer = Consumer(server)
        with connect(window_bytes=10_000, max_inflight_msgs=7) as connection:
            connection.send_batch(stacked(0, 0, 150_000))
            connection.send_batch(stacked(0, 150_000, 10))
            connection.send_batch(stacked(0, 0, 0))
            connection.send_batch(stacked(0, 150_010, 990))
        consumer.check({0: 151_000})


def test_close_delivers_what_was_sent_just_before() -> None:
    with serve(batch_size=100) as server:
        for maker in range(5):
            with connect() as connection:
                for i in range(20):
                    connection.send(sample(maker, i))
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check(dict.fromkeys(range(5), 20))
        until(lambda: not server.peers(), "every worker is seen to leave")


def test_flush_hands_over_and_wait_waits_for_the_commit() -> None:
    with serve(batch_size=4) as server, connect() as connection:
        for i in range(4):
            connection.send(sample(0, i))
        connection.flush()
        until(lambda: connection.stats()["bytes_sent"] >= 4 * SPEC.sample_bytes, "they are sent")
        connection.wait()
        assert server.stats()["store/samples_inserted_total"] == 4
        stats = connection.stats()
        assert (stats["samples"], stats["acknowledged"], stats["unacknowledged"]) == (4, 4, 0)


def test_the_arrays_may_be_changed_as_soon_as_send_returns() -> None:
    with serve(batch_size=300) as server, connect() as connection:
        one = sample(0, 0)
        for i in range(300):
            one["number"][...] = i
            one["filler"][...] = sample(0, i)["filler"]
            connection.send(one)
        one["filler"][...] = 0
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 300})


def test_many_threads_on_one_connection() -> None:
    with serve(batch_size=50) as server:
        consumer = Consumer(server)
        with connect(max_inflight_msgs=20) as connection:

            def work(maker: int) -> None:
                for i in range(500):
                    connection.send(sample(maker, i))
                    if i % 100 == 0:
                        connection.flush()
                        connection.wait()

            threads = [threading.Thread(target=work, args=(maker,)) for maker in range(6)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        consumer.check(dict.fromkeys(range(6), 500))


def test_the_samples_of_each_of_many_workers_stay_in_order() -> None:
    with serve(batch_size=20) as server:
        consumer = Consumer(server)

        def work(maker: int) -> None:
            with connect(name=f"w{maker}") as connection:
                for i in range(0, 1500, 3):
                    connection.send(sample(maker, i))
                    connection.send_batch(stacked(maker, i + 1, 2))

        threads = [threading.Thread(target=work, args=(maker,)) for maker in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        consumer.check(dict.fromkeys(range(5), 1500))


def test_equal_workers_of_a_full_store_get_equal_shares() -> None:
    """Each has far more under way than the store holds, in frames larger than the store."""
    with serve(batch_size=4, num_buffers=2) as server:
        connections = [connect(name=f"w{maker}") for maker in range(3)]
        for maker, connection in enumerate(connections):
            connection.send_batch(stacked(maker, 0, 400))
        until(lambda: [p.state for p in server.peers()] == ["waiting for space"] * 3, "all of them wait")
        tally = Tally()
        while tally.count < 600:
            tally.add(server.sample(10).batch)
        shares = [len(numbers) for numbers in tally.numbers.values()]
        assert len(shares) == 3 and max(shares) < 2 * min(shares), shares
        while tally.count < 1200:
            tally.add(server.sample(10).batch)
        for connection in connections:
            connection.close()
        tally.check(dict.fromkeys(range(3), 400))


def test_a_turn_is_handed_on_in_the_order_of_asking() -> None:
    turn, order = Turn(), []
    assert turn.acquire(0) and not turn.acquire(0) and not turn.acquire(0.01)

    def ask(name: int) -> None:
        assert turn.acquire(10)
        order.append(name)
        turn.release()

    threads = []
    for name in range(5):
        threads.append(threading.Thread(target=ask, args=(name,)))
        threads[-1].start()
        until(lambda: len(turn._waiting) == len(threads), "it waits")
    turn.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert turn.acquire(0)


def test_a_sample_that_does_not_fit_is_refused_and_nothing_of_it_is_sent() -> None:
    with serve() as server, connect() as connection:
        bad = sample(0, 0) | {"filler": np.zeros(47, np.uint8)}
        with pytest.raises(SpecError, match="filler"):
            connection.send(bad)
        ragged = stacked(0, 0, 3) | {"number": np.zeros(2, np.int64)}
        with pytest.raises(SpecError, match="number"):
            connection.send_batch(ragged)
        connection.send_batch(stacked(0, 0, 2))
        assert server.sample(10).batch["number"].tolist() == [0, 1]


# ----------------------------------------------------------------------- losing the connection


@pytest.mark.parametrize("seed", range(4))
def test_nothing_is_lost_or_doubled_across_cut_connections(seed: int) -> None:
    rng = random.Random(seed)
    count = 5000
    with serve(batch_size=50) as server:
        consumer = Consumer(server)
        # Bytes a connection lives for: it is cut in the handshake, between frames, within one.
        net.budget = (rng.choice([rng.randrange(1000), rng.randrange(50_000)]) for _ in range(40))
        with connect(max_inflight_msgs=1000, timeout=60) as connection:
            i = 0
            while i < count:
                n = min(rng.choice([1, 1, 1, 7, 400]), count - i)
                connection.send_batch(stacked(0, i, n)) if n > 1 else connection.send(sample(0, i))
                i += n
                if rng.random() < 0.01:
                    net.cut()
        stats = connection.stats()
        assert stats["acknowledged"] == count and stats["reconnects"] > 0
        consumer.check({0: count})
        assert server.stats()["store/samples_inserted_total"] == count


def test_acknowledgements_that_were_lost_are_made_up_for() -> None:
    """The learner commits, and the connection is cut before the worker hears of it."""
    with serve(batch_size=10) as server:
        with raw() as first:
            first.send(1, 10)
            until(lambda: server.stats()["store/samples_inserted_total"] == 10, "ten samples")
        with raw(base=0) as again:
            assert again.resume == 10
            again.send(1, 15)  # as a worker does that has not read the ACK
            assert again.read(Kind.ACK).seq == 15
            again.send(3, 4)
            assert again.read(Kind.ACK).seq == 15
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 10})
        stats = server.stats()
        assert stats["store/samples_inserted_total"] == 15
        assert stats["transport/local/duplicates"] == 10 + 4


def test_a_gap_in_the_numbers_is_refused() -> None:
    with serve() as server, raw() as worker:
        worker.send(2, 1)
        assert worker.gone()
        assert server.stats()["transport/local/protocol_errors"] == 1
        assert server.stats()["store/samples_inserted_total"] == 0


def test_a_returning_worker_evicts_its_old_connection_first() -> None:
    """The old one is blocked on the full store with samples that the new one will send again."""
    with serve(batch_size=2, num_buffers=2) as server, raw() as old:
        old.send(1, 7)  # four fit
        assert old.read(Kind.ACK).seq == 4
        until(lambda: server.peers()[0].state == "waiting for space", "the store is full")
        with raw() as new:
            assert new.resume == 4 and old.gone()
            assert [peer.id for peer in server.peers()] == ["a" * 32]
            new.send(5, 4)
            tally = Tally()
            for _ in range(4):
                tally.add(server.sample(10).batch)
            tally.check({0: 8})


def test_a_session_of_another_life_goes_on_where_it_was() -> None:
    with serve(batch_size=10) as server:
        with connect(client_id="b" * 32) as connection:
            connection.send_batch(stacked(0, 0, 3))
        with connect(client_id="b" * 32) as connection:
            connection.send_batch(stacked(0, 3, 7))
            connection.wait()
            assert server.peers()[0].samples == 10
        tally = Tally()
        tally.add(server.sample(10).batch)
        tally.check({0: 10})


def test_a_learner_that_comes_back_is_found_again(caplog: pytest.LogCaptureFixture) -> None:
    first = serve(batch_size=10)
    with connect(timeout=30) as connection:
        connection.send_batch(stacked(0, 0, 10))
        connection.wait()
        first.close()
        until(lambda: not connection.stats()["connected"], "the worker hears of it")
        connection.send_batch(stacked(0, 10, 10))
        with serve(batch_size=10) as second:
            assert second.sample(10).batch["number"].tolist() == list(range(10, 20))
            connection.wait()
            stats = connection.stats()
            assert (stats["learner_restarts"], stats["reconnects"]) == (1, 1)
    assert "the learner is closing" in caplog.text


def test_a_learner_that_stays_away_ends_the_connection() -> None:
    with serve():
        connection = connect(timeout=0.5)
    connection.send(sample(0, 0))
    for call in (lambda: connection.wait(10), connection.flush, connection.weights, connection.close):
        error = returns(call)
        assert isinstance(error, ConnectionClosedError), error
    assert "1 samples not acknowledged" in str(error) and "local://learner" in str(error)


def test_without_reconnecting_a_loss_is_final() -> None:
    with serve():
        connection = connect(reconnect=False)
        net.cut()
        taken = 0
        with pytest.raises(ConnectionClosedError, match="gone"):
            while True:
                connection.send(sample(0, 0))
                taken += 1
        if taken:  # the loss may have been heard of before the first
            with pytest.raises(ConnectionClosedError, match="samples not acknowledged"):
                connection.close()
        else:
            connection.close()


def test_a_learner_with_another_spec_in_its_place_is_refused() -> None:
    server = serve()
    connection = connect()
    server.close()
    with serve(example(7)):
        with pytest.raises(SpecError, match="filler"):
            connection.weights(10)
        with pytest.raises(SpecError, match="filler"):
            connection.send(sample(0, 0))
    connection.close()


def test_closing_in_the_middle_of_reconnecting() -> None:
    with serve():
        connection = connect()
    until(lambda: not connection.stats()["connected"], "the worker hears of it")
    connection.send(sample(0, 0))
    with pytest.raises(EchoTimeoutError, match="1 samples not acknowledged"):
        connection.close(0.1)


# ------------------------------------------------------------------------- waiting, and its end


def fill(connection: ChannelConnection) -> int:
    """Send until nothing more is taken; how many were."""
    taken = 0
    with suppress(EchoTimeoutError):
        while True:
            connection.send(sample(0, taken), timeout=0.2)
            taken += 1
    return taken


def test_a_full_store_holds_the_worker_back_and_says_so() -> None:
    with serve(batch_size=2, num_buffers=2) as server, connect(max_inflight_msgs=3) as connection:
        taken = fill(connection)
        assert taken == 4 + 3
        for call in (
            lambda: connection.send(sample(0, taken), timeout=0.05),
            lambda: connection.send_batch(stacked(0, taken, 2), timeout=0.05),
            lambda: connection.wait(0.05),
            lambda: connection.weights(0.05),
        ):
            with pytest.raises(EchoTimeoutError, match=r"waits for the learner at local://learner \(3 samples"):
                call()
        assert connection.stats()["send_blocked"] >= 2
        assert server.peers()[0].state == "waiting for space"
        tally = Tally()
        for _ in range(3):
            tally.add(server.sample(10).batch)
        connection.wait()
        connection.send(sample(0, taken))
        tally.add(server.sample(10).batch)
        tally.check({0: taken + 1})


def test_waiting_is_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "LOG_AFTER", 0.05)
    monkeypatch.setattr(served_module, "LOG_AFTER", 0.05)
    with serve(batch_size=2, num_buffers=2) as server, connect(max_inflight_msgs=2) as connection:
        taken = fill(connection)
        until(lambda: "worker w waits for space" in caplog.text, "the learner says so too")
        caplog.clear()
        with pytest.raises(EchoTimeoutError):
            connection.send(sample(0, taken), timeout=0.5)
        lines = [record.message for record in caplog.records if "send() waits for" in record.message]
        assert len(lines) == 1
        for _ in range(taken // 2):
            server.sample(10)


def test_a_worker_that_stops_in_the_middle_of_a_sample_holds_up_nobody() -> None:
    with serve(batch_size=10) as server, raw() as slow:
        _, payload = SPEC.flattener.batch_tobytes(stacked(9, 0, 5))
        whole = pack_header(Kind.DATA, count=5, seq=1, length=len(payload)) + payload
        slow.sock.sendall(whole[:-1])
        with connect() as quick:
            consumer = Consumer(server)
            for i in range(1000):
                quick.send(sample(0, i))
            quick.wait()
            states = {peer.name: peer.state for peer in server.peers()}
            assert states == {"raw": "half a message", "w": "streaming"}
            slow.sock.sendall(whole[-1:])
            assert slow.read(Kind.ACK).seq == 5
            quick.send_batch(stacked(0, 1000, 5))
            consumer.check({0: 1005, 9: 5})


def test_a_worker_that_never_reads_holds_up_nobody() -> None:
    """It subscribes to weights and reads none of them; the learner goes on publishing."""
    with serve(batch_size=10) as server, raw() as deaf:
        deaf.sock.sendall(frame(Kind.SUBSCRIBE))
        with connect() as quick:
            for version in range(1, 4):
                returns(lambda: server.publish({"w": np.zeros(1_000_000)}))
                assert quick.weights(10, newer_than=version - 1).version == version
            quick.send_batch(stacked(0, 0, 10))
            quick.wait()
            deaf.send(1, 1)
            until(lambda: server.stats()["store/samples_inserted_total"] == 11, "it can still send")


def test_closing_the_server_lets_go_of_everybody() -> None:
    server = serve(batch_size=2, num_buffers=2)
    with raw() as silent, raw(client_id="d" * 32) as blocked:
        blocked.send(1, 9)
        until(lambda: any(peer.state == "waiting for space" for peer in server.peers()), "full")
        returns(lambda: server.close(0.2))
        assert silent.gone() and blocked.gone()
        assert server.peers() == []
    server.close()


def test_closing_the_server_commits_what_has_come_whole() -> None:
    server = serve(batch_size=10)
    with raw() as worker:
        worker.send(1, 20)
        worker.read(Kind.ACK)
        server.close()
        _, reason = worker.read_payload(Kind.BYE)
        assert reason == b"the learner is closing" and worker.gone()
    assert [server.sample(1).batch["number"].tolist() for _ in range(2)] == [[*range(10)], [*range(10, 20)]]


def test_a_timeout_below_zero_is_refused() -> None:
    with serve() as server, connect() as connection:
        for bad in (-1, math.nan):
            for call in (connection.wait, connection.flush, connection.weights, connection.close):
                with pytest.raises(ValueError, match="timeout must be at least 0"):
                    call(bad)
            with pytest.raises(ConfigError, match="timeout must be at least 0"):
                connect(timeout=bad)
        connection.send_batch(stacked(0, 0, 2), timeout=math.inf)
        assert server.sample(10)


@pytest.mark.parametrize("option", [{"window_bytes": 0}, {"max_inflight_msgs": -1}, {"client_id": "me"}, {"windw_bytes": 1}])
def test_an_unusable_option_is_named(option: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(option))):
        connect(**option)


def test_use_after_close() -> None:
    with serve():
        connection = connect()
        connection.close()
        connection.close()
        for call in (
            lambda: connection.send(sample(0, 0)),
            lambda: connection.send_batch(stacked(0, 0, 2)),
            connection.flush,
            connection.wait,
            connection.weights,
            lambda: connection.request("ping", {}),
        ):
            with pytest.raises(ClosedError, match="closed"):
                call()


def test_close_cuts_short_the_calls_of_other_threads() -> None:
    with serve(batch_size=2, num_buffers=2) as server:
        connection = connect(max_inflight_msgs=1)
        taken = fill(connection)
        outcome: list[Any] = []
        calls = [lambda: connection.send(sample(0, taken), math.inf), lambda: connection.weights(math.inf)]
        threads = [threading.Thread(target=lambda c=call: outcome.append(returns(c))) for call in calls]
        for thread in threads:
            thread.start()
        time.sleep(0.1)
        with pytest.raises(EchoTimeoutError):
            connection.close(0.2)
        for thread in threads:
            thread.join()
        assert [type(one) for one in outcome] == [ClosedError, ClosedError]
        server.close()


def test_a_forked_child_is_told_and_harms_nobody() -> None:
    with serve(batch_size=4) as server, connect() as connection:
        connection.send_batch(stacked(0, 0, 2))
        connection.wait()

        def child() -> None:
            for call in (lambda: connection.send(sample(0, 9)), connection.wait, connection.weights):
                with pytest.raises(ForkError, match="make a new Client in the child"):
                    call()
            connection.close()

        forked(child)
        connection.send_batch(stacked(0, 2, 2))
        assert server.sample(10).batch["number"].tolist() == [0, 1, 2, 3]


def test_a_connection_nobody_closed_is_closed_with_a_warning() -> None:
    with serve() as server:
        connection = connect()
        connection.send_batch(stacked(0, 0, 2))
        with pytest.warns(ResourceWarning, match="unclosed connection to local://learner"):
            del connection
        assert server.sample(10).batch["number"].tolist() == [0, 1]
        until(lambda: not server.peers(), "it has left")


def test_wait_until_keeps_the_time() -> None:
    gate = threading.Condition()
    with gate:
        wait_until(gate, lambda: True, 0, lambda: "nobody waits")
        with pytest.raises(EchoTimeoutError, match=r"^a waits for b; gave up after 0.05 s$"):
            wait_until(gate, lambda: False, 0.05, lambda: "a waits for b")


# ----------------------------------------------------------------------------- getting in, or not


def test_a_worker_may_be_there_before_the_learner() -> None:
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(returns(connect)))
    thread.start()
    time.sleep(0.1)
    with serve():
        thread.join()
        outcome[0].close()


def test_a_learner_that_is_not_there_is_reported_with_the_reason() -> None:
    with pytest.raises(EchoTimeoutError, match=r"waits for a learner at local://learner: nobody listens .* 0.2 s"):
        connect(timeout=0.2)


def test_a_learner_that_does_not_answer_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    net.listening["learner"] = queue.SimpleQueue()  # takes connections, never reads
    monkeypatch.setattr(uplink_module, "ATTEMPT_SECONDS", 0.1)
    with pytest.raises(EchoTimeoutError, match=r"the handshake with local://learner took longer than 0.1 s"):
        connect(timeout=1)
    while not net.listening["learner"].empty():
        net.listening["learner"].get().close()  # type: ignore[union-attr]


def test_wrong_token_wrong_spec_and_no_token_raise_at_once() -> None:
    with serve() as server:
        with pytest.raises(SecurityError, match="ECHO_TOKEN"):
            connect(token=b"another token of the tests")
        with pytest.raises(SecurityError, match="asks for a token"):
            connect(token=None)
        with pytest.raises(SpecError, match=r"filler.*uint8.*here.*uint8.*learner"):
            connect(Spec.from_example(example(7)))
        with pytest.raises(HandshakeRefused) as caught:
            connect(role="spectator")
        assert caught.value.code == "role"
        until(lambda: server.stats()["transport/local/refused"] >= 3, "they are counted")
        assert server.peers() == []


def test_a_learner_without_authentication() -> None:
    with serve(auth=False) as server:
        with pytest.raises(SecurityError, match="may be anybody"):
            connect()
        with connect(token=None) as connection:
            connection.send_batch(stacked(0, 0, 2))
            assert server.sample(10)
        connect(allow_unauthenticated=True).close()


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", b"\xff" * 5000, b"ECHO\x02\x01\0\0\xff\xff\xff\xff", b""])
def test_strangers_are_turned_away(data: bytes) -> None:
    with serve(handshake_timeout=0.3) as server, net.dial("learner") as stranger, net.dial("learner") as hasty:
        hasty.close()
        stranger.sendall(data)
        stranger.settimeout(10)
        with suppress(ConnectionError):
            assert stranger.recv(100) == b""
        with connect() as connection:
            connection.send_batch(stacked(0, 0, 2))
            assert server.sample(10)


def test_one_too_many_is_told_so_and_let_in_when_there_is_room() -> None:
    with serve(max_connections=1):
        first = connect()
        with pytest.raises(HandshakeRefused, match=r"\(busy\): this learner serves 1 clients already"):
            connect(timeout=0.3)
        first.close()
        connect().close()


def test_out_of_file_descriptors_the_listener_pauses_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    net.accepting = [OSError(errno.EMFILE, "Too many open files")] * 3
    with serve():
        connect().close()
        assert net.accepts <= 3 + 2 + 1


def test_an_address_that_is_taken() -> None:
    with serve(), pytest.raises(OSError, match="local://learner is taken"):
        serve()


# -------------------------------------------------------------------------------------- weights


def test_weights_come_whole_with_a_receipt_and_the_newest_wins() -> None:
    with serve() as server, connect() as connection:
        with pytest.raises(EchoTimeoutError, match=r"weights\(\) waits for .* to publish a version;"):
            connection.weights(0.05)
        published = server.publish({"w": np.arange(300_000.0), "b": [np.int8(1)]})
        weights = connection.weights()
        assert (weights.version, weights.digest) == tuple(published)
        assert weights.params["w"].tolist() == list(range(300_000)) and weights.params["b"] == [1]
        assert not weights.params["w"].flags.writeable and weights.params["w"].flags.aligned
        until(lambda: server.peers()[0].weights_version == 1, "the receipt")
        assert server.peers()[0].weights_digest == weights.digest
        with pytest.raises(EchoTimeoutError, match="newer than 1"):
            connection.weights(0.05, newer_than=1)
        for i in range(2, 30):
            server.publish({"w": np.full(300_000, float(i))})
        newest = connection.weights(10, newer_than=28)
        assert newest.version == 29 and (newest.params["w"] == 29).all()
        assert connection.stats()["weights_received"] <= 29
        assert connection.weights(0).version == 29


def test_weights_published_before_anybody_came_and_across_a_cut() -> None:
    with serve() as server:
        server.publish({"w": np.zeros(3)})
        with connect() as connection:
            assert connection.weights().version == 1
            net.cut()
            server.publish({"w": np.ones(3)})
            assert connection.weights(newer_than=1).version == 2
            received = connection.stats()["weights_received"]
            net.cut()
            until(lambda: connection.stats()["reconnects"] == 2, "it is back")
            connection.request("ping", {})
            assert connection.stats()["weights_received"] == received  # it said what it holds


def test_weights_cut_in_the_middle_are_sent_again_whole() -> None:
    with serve() as server, connect() as connection:
        for i in range(1, 20):
            server.publish({"w": np.full(200_000, float(i))})
            if i == 1:
                connection.weights()
            time.sleep(random.Random(i).random() * 0.003)
            net.cut()
        weights = connection.weights(10, newer_than=18)
        assert (weights.params["w"] == 19).all()


def test_the_weights_of_a_restarted_learner_are_news() -> None:
    with serve() as server:
        for _ in range(5):
            server.publish({"w": np.zeros(3)})
        connection = connect()
        assert connection.weights().version == 5
    with serve() as server:
        server.publish({"w": np.ones(3)})
        weights = connection.weights(10, newer_than=5)
        assert weights.version == 1 and weights.params["w"].tolist() == [1, 1, 1]
        connection.close()


def test_weights_whose_tree_needs_an_example() -> None:
    tree = Pair(np.zeros(3), np.ones(2))
    with serve() as server, connect() as connection:
        server.publish(tree)
        with pytest.raises(SpecError, match="like="):
            connection.weights()
        assert_same(connection.weights(like=tree).params, tree)
        until(lambda: server.peers()[0].weights_version == 1, "the receipt")


def test_weights_do_not_hold_up_acknowledgements() -> None:
    """A worker whose learner is sending it a long version still hears of its samples."""
    with serve() as server, raw() as worker:
        server.publish({"w": np.zeros(4_000_000)})
        worker.sock.sendall(frame(Kind.SUBSCRIBE))
        kinds = [worker.read(Kind.WEIGHTS).kind]
        worker.send(1, 1)
        while kinds[-1] is not Kind.ACK:
            header = parse_header(worker.exactly(24), SPEC.sample_bytes, TO_WORKER)
            worker.exactly(header.length)
            kinds.append(header.kind)
            assert not header.flags & LAST or header.kind is not Kind.WEIGHTS, "all of it came first"


def test_a_receipt_for_what_was_not_sent_is_refused() -> None:
    with serve() as server, raw() as worker:
        worker.sock.sendall(frame(Kind.RECEIPT, bytes(8), seq=3))
        assert worker.gone()
        assert server.stats()["transport/local/protocol_errors"] == 1


# ------------------------------------------------------------------------------------- requests


def operation(server: Server, name: str, function: Any) -> None:
    """Give this one server another operation for its workers to request."""
    server.__dict__["_operations"] = {**server._operations, name: function}


def test_requests_of_workers() -> None:
    with serve() as server, connect() as connection:
        body, blob = connection.request("ping", {}, b"x" * 1_000_000)
        assert blob == b"x" * 1_000_000 and "time" in body
        assert connection.request("stats", {})[0]["store/batch_size"] == server.batch_size
        with pytest.raises(EchoError, match="'nonsense'"):
            connection.request("nonsense", {})
        with pytest.raises(ValueError, match="at most"):
            connection.request("ping", {}, bytes(2 << 20))
        operation(server, "fail", lambda server, peer, body, blob: {}["x"])
        with pytest.raises(EchoError, match="KeyError: 'x'"):
            connection.request("fail", {})
        operation(server, "huge", lambda server, peer, body, blob: ({}, bytes(2 << 20)))
        with pytest.raises(EchoError, match="at most 1048576"):
            connection.request("huge", {})


def test_requests_are_carried_out_after_the_samples_before_them() -> None:
    with serve(batch_size=100) as server, connect() as connection:
        seen = []
        operation(server, "count", lambda server, *_: ({"n": server.stats()["store/samples_inserted_total"]}, b""))
        for i in range(20):
            connection.send(sample(0, i))
            connection.flush()
            seen.append(connection.request("count", {})[0]["n"])
        assert seen == list(range(1, 21))


def test_a_request_without_an_answer() -> None:
    release = threading.Event()
    with serve() as server, connect() as connection:
        operation(server, "slow", lambda *_: (release.wait(10), ({}, b""))[1])
        with pytest.raises(EchoTimeoutError, match="request 'slow' waits for an answer of the learner"):
            connection.request("slow", {}, timeout=0.05)
        outcome: list[Any] = []
        thread = threading.Thread(target=lambda: outcome.append(returns(lambda: connection.request("slow", {}))))
        thread.start()
        time.sleep(0.1)
        net.cut()
        thread.join()
        assert isinstance(outcome[0], ConnectionClosedError) and "may have been carried out" in str(outcome[0])
        release.set()
        assert connection.request("ping", {})


def test_requests_of_the_learner() -> None:
    with serve() as server, connect() as connection:
        listener = server._listeners[0]
        peer = server.peers()[0]
        with pytest.raises(EchoError, match="this worker answers no requests"):
            listener.request(peer, "hello", {})
        connection.on_request = lambda op, body, blob: ({"op": op, **body}, blob + b"!")
        assert listener.request(peer, "hello", {"a": 1}, b"blob") == ({"op": "hello", "a": 1}, b"blob!")
        connection.close()
        until(lambda: not server.peers(), "it has left")
        with pytest.raises(ConnectionClosedError, match="worker w is not connected"):
            listener.request(peer, "hello", {})


def test_pings_are_answered_and_an_idle_link_is_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    with serve(), raw() as worker:
        worker.sock.sendall(frame(Kind.PING, seq=77))
        answer = worker.read(Kind.PING)
        assert (answer.seq, answer.flags) == (77, REPLY)
    monkeypatch.setattr(link_module, "PROBE_AFTER", 0.05)
    with serve(), raw() as worker:
        assert worker.read(Kind.PING).flags == 0


# ------------------------------------------------------------------- a learner that breaks rules


@contextmanager
def faulty_learner(*frames: bytes) -> Iterator[ChannelConnection]:
    """A connection to a learner that says this after the handshake."""
    from echo_core.handshake import ServerHandshake

    net.listening["learner"] = queue.SimpleQueue()
    connected = threading.Event()

    def run() -> None:
        sock = net.listening["learner"].get()
        assert sock is not None
        with sock:
            handshake = ServerHandshake(SPEC, [TOKEN])
            while not handshake.done:
                sock.sendall(handshake.receive(sock.recv(65536)))
            sock.sendall(frames[0])
            connected.wait(10)
            with suppress(OSError):
                sock.sendall(b"".join(frames[1:]))
                while sock.recv(65536):
                    pass

    thread = threading.Thread(target=run)
    thread.start()
    try:
        connection = connect()
        connected.set()
        yield connection
        with suppress(EchoError):
            connection.close(0)
    finally:
        connected.set()
        thread.join()


ACK = frame(Kind.ACK)


@pytest.mark.parametrize(
    ("frames", "text"),
    [
        ([ACK, frame(Kind.ACK, seq=1)], "acknowledged 1 samples, after 0 and with 0 sent"),
        ([ACK, bytes(24)], "unknown kind 0"),
        ([ACK, frame(Kind.SUBSCRIBE)], "cannot travel this way"),
        ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=LAST)], "without its beginning"),
        ([ACK, frame(Kind.WEIGHTS, b"x", seq=1, flags=FIRST | LAST)], "whole description"),
        ([ACK, frame(Kind.WEIGHTS, b"\2\0\0\0{}payload", seq=1, flags=FIRST | LAST)], "malformed"),
    ],
)
def test_a_learner_that_breaks_the_protocol_is_left(frames: list[bytes], text: str) -> None:
    with faulty_learner(*frames) as connection:
        with pytest.raises(ProtocolError, match=text):
            connection.weights(10)
        with pytest.raises(ProtocolError, match=text):
            connection.send(sample(0, 0))


def test_a_learner_that_does_not_begin_with_an_acknowledgement_is_left() -> None:
    with pytest.raises(ProtocolError, match="began with PING"), faulty_learner(frame(Kind.PING)):
        pass


def test_damaged_weights_are_never_handed_out() -> None:
    from echo_core.weights import pack
    from echo_core.wire import weights_frames

    stream = bytearray(b"".join(b"".join(pieces) for pieces in weights_frames(pack({"w": np.ones(9)}, 1))))
    stream[-70] ^= 1
    with faulty_learner(ACK, bytes(stream)) as connection, pytest.raises(ProtocolError, match="damaged"):
        connection.weights(10)


# -------------------------------------------------------------------------------------- window


@given(st.data())
def test_the_window_resends_exactly_what_is_not_acknowledged(data: st.DataObject) -> None:
    """Against a learner that commits any part of what was sent, at any time, in order."""
    spec = Spec.from_example({"a": np.zeros(2, np.uint8), "b": np.zeros(0), "c": np.zeros(3, np.uint8)})
    window = Window(spec.flattener, max_bytes=100, most=30, coalesce_bytes=40)
    taken = committed = delivered = newest = 0  # the newest that was ever sent

    def payload(first: int, count: int) -> bytes:
        numbers = np.arange(first, first + count, dtype=np.uint8)
        return numbers.repeat(2).tobytes() + numbers.repeat(3).tobytes()

    for _ in range(data.draw(st.integers(0, 40))):
        step = data.draw(st.sampled_from(["add", "gather", "send", "ack", "resume"]))
        count = data.draw(st.integers(1, 12))
        if step == "add" and taken + count < 250:
            under_way = taken - window.acknowledged
            if window.has_room(count):
                assert not under_way or under_way + count <= 20
                window.add(count, payload(taken + 1, count))
                taken += count
        elif step == "gather" and taken + count < 250:
            for _ in range(count):
                room = taken - window.acknowledged < 20
                x = np.full(3, taken + 1, np.uint8)
                answer = window.gatherer.take({"a": x[:2], "b": np.zeros(0), "c": x})
                assert bool(answer) == room
                taken += room
        elif step == "send" and (entries := window.next_entries()):
            data_frame = b"".join(window.encode(entries))
            read = parse_header(data_frame, 5, frozenset({Kind.DATA}))
            assert data_frame[24:] == payload(read.seq, read.count)
            assert read.seq <= delivered + 1, "a gap"
            delivered = max(delivered, read.seq + read.count - 1)
            newest = max(newest, delivered)
        elif step == "ack":
            committed = data.draw(st.integers(committed, delivered))
            window.acknowledge(committed)
            with pytest.raises(ProtocolError):
                window.acknowledge(newest + 1)
        elif step == "resume":
            committed = data.draw(st.integers(committed, delivered))
            window.resume(committed)
            delivered = committed
            if again := window.next_entries():
                assert again[0].first <= committed + 1 <= again[0].last
                delivered = again[-1].last
                newest = max(newest, delivered)
        assert (window.taken, window.acknowledged) == (taken, committed)
    window.resume(committed)
    while window.next_entries():
        pass
    window.acknowledge(taken)
    assert window.has_room(1) and window.acknowledged == taken
