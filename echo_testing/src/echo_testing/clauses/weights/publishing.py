"""Clauses about weights: workers get only complete versions, the latest wins, receipts return, and samples are never delayed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from echo_core.base.errors import EchoTimeoutError, SpecError

from ...processes import returns, until
from ...rig import PATIENCE, Rig, drain
from ...samples import FILLER, Pair, assert_same, example, random_like, rich_example, sample, stacked
from ...threads import ended, in_thread
from .. import carrier

BIG = (3 << 20) + 12_345  # bytes: several chunks, the last of them odd


def filled(version: int, size: int = BIG) -> dict[str, Any]:
    """Weights in which every element is the version number."""
    return {
        "policy": {"w": np.full(size // 4, version, np.float32), "b": np.full(7, version)},
        "steps": version,
    }


def check(weights: Any, size: int = BIG) -> None:
    """Check that all elements belong to one version and none is missing."""
    policy = weights.params["policy"]
    assert policy["w"].shape == (size // 4,)
    assert (policy["w"] == weights.version).all(), f"version {weights.version} is torn"
    assert (policy["b"] == weights.version).all() and weights.params["steps"] == weights.version


@contextmanager
def beside(call: Callable[[], Any]) -> Iterator[None]:
    """Within the block, another thread is in `call()`; the block's end waits until it has returned, and raises what it raised."""
    with ThreadPoolExecutor(1) as pool:
        called = pool.submit(call)
        yield
        called.result(PATIENCE)


class WeightsClauses:
    @carrier
    @pytest.mark.parametrize("size", [0, 400, (1 << 18) - 64, BIG])
    def test_published_weights_arrive_whole_and_read_only(self, rig: Rig, size: int) -> None:
        server = rig.server()
        client = rig.client(server)
        published = server.publish(filled(1, size))
        weights = client.weights()
        check(weights, size)
        assert weights.version == published.version == 1
        assert weights.digest == published.digest
        with pytest.raises(ValueError, match="read-only"):
            weights.params["policy"]["b"][0] = 9
        assert client.stats()["weights_version"] == 1

    @carrier
    def test_every_dtype_and_structure_arrives_bit_exact(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        tree = random_like(rich_example(), seed=3)
        server.publish(tree)
        assert_same(client.weights(like=rich_example()).params, tree)
        plain = {"a": [np.zeros(2), (np.ones((), np.int8), None)], "b": {}}
        server.publish(plain)
        assert_same(client.weights(newer_than=1).params, plain)
        server.publish(Pair(np.zeros(1), np.ones(2)))
        with pytest.raises(SpecError, match="like"):
            client.weights(newer_than=2)
        got = client.weights(like=Pair(np.zeros(1), np.zeros(2))).params
        assert isinstance(got, Pair) and got.right.tolist() == [1, 1]

    def test_the_newest_wins_for_who_comes_late(self, rig: Rig) -> None:
        server = rig.server()
        for version in range(1, 6):
            server.publish(filled(version, 400))
        weights = rig.client(server).weights()
        assert weights.version == 5
        check(weights, 400)

    def test_a_worker_that_waits_for_weights_is_shown(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)

        def waits() -> bool:
            return [peer.state for peer in server.peers()] == ["waiting for weights"]

        def why() -> str:
            with pytest.raises(EchoTimeoutError) as caught:
                server.sample(timeout=0)
            return str(caught.value)

        with beside(lambda: client.weights()):
            until(waits, "it waits for the first weights")
            assert "1 worker connected, 1 waiting for weights; call publish()" in why()
            server.publish(filled(1, 400))
        until(lambda: not waits(), "it has weights")
        with beside(lambda: client.weights(newer_than=1)):
            until(waits, "it waits for the next weights")
            until(lambda: "1 waiting for weights newer than version 1; call publish()" in why(), "its receipt")
            server.publish(filled(2, 400))
        until(lambda: not waits(), "it has them")
        with pytest.raises(EchoTimeoutError):
            client.weights(newer_than=2, timeout=0.05)
        until(lambda: not waits(), "a call that has given up waits no more")
        assert "1 worker connected, and nothing was sent yet" in why()

    def test_waiting_for_a_newer_version(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        for newer_than in (None, 0, 3):
            with pytest.raises(EchoTimeoutError, match="(?i)learner|server|publish"):
                client.weights(timeout=0.05, newer_than=newer_than)
        publishing = threading.Timer(0.2, server.publish, (filled(1, 400),))
        publishing.start()
        check(client.weights(newer_than=0), 400)
        publishing.join()
        with pytest.raises(EchoTimeoutError):
            client.weights(timeout=0.2, newer_than=1)
        assert client.weights(timeout=0).version == 1
        server.publish(filled(2, 400))
        server.publish(filled(3, 400))
        until(lambda: client.weights(newer_than=1).version == 3, "the newest has come")

    @carrier
    def test_weights_are_never_torn_while_publishing_goes_on(self, rig: Rig) -> None:
        versions, size = 60, 1 << 20
        server = rig.server()
        clients = [rig.client(server) for _ in range(2)]
        seen: list[list[int]] = [[], []]

        def follow(index: int) -> None:
            newest = 0
            while newest < versions:
                weights = clients[index].weights(newer_than=newest)
                check(weights, size)
                assert weights.version > newest
                newest = weights.version
                seen[index].append(newest)

        followers = [
            threading.Thread(
                target=lambda index=index: outcomes.append(returns(lambda: follow(index), 60)),
                daemon=True,
            )
            for index in range(2)
        ]
        outcomes: list[Any] = []
        for follower in followers:
            follower.start()
        for version in range(1, versions + 1):
            server.publish(filled(version, size))
        for follower in followers:
            follower.join(70)
        assert outcomes == [None, None]
        assert all(versions_seen[-1] == versions for versions_seen in seen)

    def test_versions_that_are_held_stay_as_they_were(self, rig: Rig) -> None:
        server = rig.server()
        client = rig.client(server)
        held = []
        for version in range(1, 8):
            server.publish(filled(version, 300_000))
            held.append(client.weights(newer_than=version - 1))
        for weights in held:
            check(weights, 300_000)
        assert [weights.version for weights in held] == list(range(1, 8))

    def test_receipts_say_who_holds_what(self, rig: Rig) -> None:
        server = rig.server()
        alice, bob = rig.client(server, name="alice"), rig.client(server, name="bob")
        first = server.publish(filled(1))
        alice.weights()

        def held() -> dict[str, int]:
            return {peer.name: peer.weights_version for peer in server.peers()}

        until(lambda: held() == {"alice": 1, "bob": 0}, "alice's receipt has come")
        stats = server.stats()
        assert stats["worker/alice/weights_version"] == 1
        assert stats["worker/alice/weights_digest"] == f"{first.digest:016x}"
        assert stats["worker/bob/weights_version"] == 0
        second = server.publish(filled(2))
        bob.weights(newer_than=1)
        alice.weights(newer_than=1)
        until(lambda: held() == {"alice": 2, "bob": 2}, "both receipts have come")
        assert {peer.weights_digest for peer in server.peers()} == {second.digest}

    @carrier
    def test_publishing_does_not_stall_experience(self, rig: Rig) -> None:
        server = rig.server(batch_size=20)
        client = rig.client(server)
        stop = threading.Event()
        published = [0]

        def publish() -> None:
            while not stop.is_set():
                published[0] += 1
                server.publish(filled(published[0]))
                time.sleep(0.01)

        def follow() -> None:
            newest = 0
            while not stop.is_set():
                try:
                    weights = client.weights(timeout=0.1, newer_than=newest)
                except EchoTimeoutError:
                    continue
                check(weights)
                newest = weights.version

        def send() -> None:
            for number in range(6_000):
                client.send(sample(1, number))

        threads = [in_thread(work) for work in (publish, follow, send)]
        drain(server, 6_000).check({1: 6_000})
        stop.set()
        ended(*threads)

    @carrier
    @pytest.mark.parametrize(("waiting", "filler", "size"), [(4, FILLER, 400), (2_000, 8 << 10, BIG)])
    def test_weights_reach_a_worker_whose_samples_wait(self, rig: Rig, waiting: int, filler: int, size: int) -> None:
        server = rig.server(example(filler), batch_size=2, num_buffers=2)
        client = rig.client(server, example(filler), max_inflight_msgs=waiting, window_bytes=1 << 30)
        client.send_batch(stacked(1, 0, 4, filler))
        client.wait()  # the store is full, and nobody takes batches
        server.publish(filled(1, size))
        assert client.weights().version == 1  # from now on, weights come by themselves
        for number in range(4, 4 + waiting, 4):
            client.send_batch(stacked(1, number, 4, filler))
        with pytest.raises(EchoTimeoutError):
            client.send(sample(1, 4 + waiting, filler), timeout=0)
        for version in range(2, 8):
            server.publish(filled(version, size))
            weights = client.weights(newer_than=version - 1)
            check(weights, size)
            assert weights.version == version
        for version in range(8, 28):  # faster than it takes them: it gets the newest in the end
            server.publish(filled(version, size))
        until(lambda: client.weights(newer_than=7).version == 27, "the newest has come")
        check(client.weights(), size)
        assert client.stats()["unacknowledged"] == waiting
        drain(server, 4 + waiting).check({1: 4 + waiting})
        client.wait()
        until(lambda: [peer.weights_version for peer in server.peers()] == [27], "its receipts have come")

    def test_publishing_needs_no_worker(self, rig: Rig) -> None:
        server = rig.server()
        for version in range(1, 4):
            assert server.publish(filled(version)).version == version
        check(rig.client(server).weights())
