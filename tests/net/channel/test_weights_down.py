"""Weights on their way down: whole, the newest, with a receipt."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest
from local_net import SPEC, Consumer, RawWorker, connect, net, raw, serve

from echo_core.base.errors import EchoTimeoutError, SpecError
from echo_core.wire.protocol import LAST, TO_WORKER, U64, Kind, frame, parse_header
from echo_testing.processes import until
from echo_testing.samples import Pair, assert_same, stacked

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]


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


def version(worker: RawWorker) -> int:
    """The number of the next version, which travels in one frame."""
    while True:
        header = parse_header(worker.exactly(24), SPEC.sample_bytes, TO_WORKER)
        worker.exactly(header.length)
        if header.kind is Kind.WEIGHTS:
            return header.seq
        assert header.kind is Kind.ACK


def test_a_worker_whose_samples_wait_gets_the_next_version_without_a_receipt() -> None:
    with serve() as server, raw() as worker:
        worker.sock.sendall(frame(Kind.SUBSCRIBE))
        worker.send(1, 10)  # the store has room for 6
        until(lambda: [peer.state for peer in server.peers()] == ["waiting for space"], "its samples wait")
        digests = []
        for number in range(1, 6):
            digests.append(server.publish({"w": np.full(3, number)}).digest)
            assert version(worker) == number
        for number in (1, 3, 5):  # a worker confirms no version that a newer one has replaced
            worker.sock.sendall(frame(Kind.RECEIPT, U64.pack(digests[number - 1]), seq=number))
        for _ in range(3):
            server.sample(10)
        until(lambda: server.peers()[0].weights_version == 5, "the receipts are read")
        assert server.peers()[0].weights_digest == digests[4]
        assert server.stats()["transport/local/weights_sent"] == 5
        server.publish({"w": np.zeros(3)})
        assert version(worker) == 6
        worker.sock.sendall(frame(Kind.RECEIPT, U64.pack(0), seq=7))  # it was never sent
        assert worker.gone()
        until(lambda: server.stats()["transport/local/protocol_errors"] == 1, "it is counted")


def test_a_worker_that_cannot_write_keeps_only_its_newest_receipt() -> None:
    with serve() as server, connect(window_bytes=1 << 20, max_inflight_msgs=1 << 30) as connection:
        server.publish({"w": np.full(3, 1)})
        assert connection.weights().version == 1
        sent = 0
        with pytest.raises(EchoTimeoutError):
            while True:
                connection.send_batch(stacked(0, sent, 100), timeout=0.2)
                sent += 100
        for number in range(2, 52):
            server.publish({"w": np.full(3, number)})
            assert connection.weights(newer_than=number - 1).version == number
        with connection.uplink.gate.lock:
            link = connection.uplink.link
            assert link is not None and link.posted_bytes <= len(frame(Kind.RECEIPT, bytes(8))) + len(frame(Kind.SUBSCRIBE))
        Consumer(server).check({0: sent})
        until(lambda: server.peers()[0].weights_version == 51, "the newest receipt has come")


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


@pytest.mark.parametrize("held", [5, 1])
def test_the_weights_of_a_restarted_learner_are_news(held: int) -> None:
    """It counts from 1 again: its first version is new to a worker that holds a later one of the learner before, and to one that holds the same number."""
    with serve() as server:
        for _ in range(held):
            server.publish({"w": np.zeros(3)})
        connection = connect()
        assert connection.weights().version == held
        server.close(restarting=True)
    with serve() as server:
        server.publish({"w": np.ones(3)})
        weights = connection.weights(10, newer_than=held)
        assert weights.version == 1 and weights.params["w"].tolist() == [1, 1, 1]
        with pytest.raises(EchoTimeoutError):
            connection.weights(0, newer_than=1)
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
