"""Servers that pass weights on, and are killed or stopped: workers get only whole versions, each with the learner's number and digest."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig.processes import Child

from echo_core import Client, EchoTimeoutError, SecurityError, Server
from echo_testing.ports import free_port
from echo_testing.processes import until
from echo_testing.samples import example

SCHEMES = ["tcp", "shm"]
FLOATS = 2 << 20  # of one version: 8 MiB, which are many chunks
CLIENTS = 8  # of one process in the tree


def tree(version: int) -> dict[str, Any]:
    return {"w": np.full(FLOATS, version, np.float32), "version": version}


def check(weights: Any) -> None:
    assert (weights.params["w"] == weights.version).all() and weights.params["version"] == weights.version, f"version {weights.version} is torn"


def address_of(scheme: str, name: object) -> str:
    return f"tcp://127.0.0.1:{free_port()}" if scheme == "tcp" else f"shm://{name}"


def relay(link: Any, source: str, at: str) -> None:
    """A process that passes the weights of `source` on at the address `at`."""
    with Server(example(), 4, at, weights_from=source):
        link.send("up")
        threading.Event().wait()


def learner(link: Any, at: str, first: int, token: str | None = None) -> None:
    """A learner that publishes for ever, as fast as it can; versions begin with `first`."""
    with Server(example(), 4, at, token=token) as server:
        link.send("up")
        version = first
        while True:
            server.publish(tree(version), version=version)
            version += 1
            time.sleep(0.02)


def tree_clients(link: Any, relay_address: str, count: int, version: int) -> None:
    """Several workers, each with a connection of its own, that wait for `version`."""
    clients = [Client(relay_address, example(), name=f"{relay_address} {n}", timeout=120) for n in range(count)]
    link.send("up")
    got = []
    for client in clients:
        weights = client.weights(newer_than=version - 1)
        check(weights)
        got.append((weights.version, weights.digest))
    link.send(got)
    threading.Event().wait()


class Follower:
    """A worker that takes one version after another and checks each."""

    def __init__(self, address: str) -> None:
        self.client = Client(address, example(), timeout=60)
        self.seen: list[tuple[str, int]] = []
        self.error: BaseException | None = None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            newest: int | None = None
            while not self.over.is_set():
                try:
                    weights = self.client.weights(timeout=0.5, newer_than=newest)
                except (EchoTimeoutError, ConnectionError):
                    continue
                check(weights)
                newest = weights.version
                self.seen.append((weights.learner, weights.version))
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.over.set()
        self.thread.join(60)
        self.client.close(0)
        assert self.error is None

    def goes_on(self, what: str) -> None:
        count = len(self.seen)
        until(lambda: self.error is not None or len(self.seen) >= count + 3, what, 30)
        assert self.error is None


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_relay_that_is_killed_in_the_middle_of_versions_tears_nothing(start: Callable[..., Child], scheme: str, tmp_path: Any) -> None:
    source, at = address_of("tcp", ""), address_of(scheme, tmp_path / "relay")
    start(learner, source, 1).hear()
    passing = start(relay, source, at)
    passing.hear()
    followers = [Follower(at) for _ in range(3)]
    for follower in followers:
        follower.goes_on("versions come")
    for pause in (0.0, 0.013, 0.04):
        time.sleep(pause)  # at another place of a version
        passing.kill()
        passing = start(relay, source, at)
        passing.hear()
        for follower in followers:
            follower.goes_on("versions come from the relay that was started again")
    for follower in followers:
        follower.end()
        versions = [version for _, version in follower.seen]
        assert versions == sorted(set(versions)), "numbers went back, or came twice"


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_relay_that_is_stopped_holds_up_only_its_own_workers(start: Callable[..., Child], scheme: str, tmp_path: Any) -> None:
    source, at = address_of("tcp", ""), address_of(scheme, tmp_path / "relay")
    start(learner, source, 1).hear()
    passing = start(relay, source, at)
    passing.hear()
    behind, direct = Follower(at), Follower(source)
    behind.goes_on("versions come")
    passing.freeze()
    direct.goes_on("the learner publishes on")
    passing.thaw()
    behind.goes_on("versions come again")
    behind.end()
    direct.end()


def test_the_source_dies_and_another_learner_comes_in_its_place(start: Callable[..., Child]) -> None:
    source, at = address_of("tcp", ""), address_of("tcp", "")
    old = start(learner, source, 1000)
    old.hear()
    with Server(example(), 4, at, weights_from=source) as passing:
        follower = Follower(at)
        follower.goes_on("versions come")
        old.kill()
        until(lambda: passing.stats()["weights/source_connected"] == 0, "the relay knows it", 30)
        with Client(at, example()) as late:
            check(late.weights())  # the relay goes on serving what it has
        start(learner, source, 1).hear()
        until(lambda: follower.error is not None or follower.seen[-1][1] < 1000, "the new learner's versions come", 60)
        follower.goes_on("they go on")
        follower.end()
    changes = [k for k in range(1, len(follower.seen)) if follower.seen[k][1] <= follower.seen[k - 1][1]]
    assert len(changes) == 1, "numbers go back only once"
    (k,) = changes
    assert follower.seen[k - 1][0] != follower.seen[k][0], "it is another learner"


def test_a_relay_whose_token_may_not_read_says_so() -> None:
    write, read = "a-token-that-may-write-0123456789abcdef", "a-token-that-may-read-0123456789abcdef"
    with Server(example(), 4, "tcp://127.0.0.1:0", token=[f"write:{write}", f"read:{read}"]) as server:
        server.publish(tree(1))
        for token, right in ((write, False), ("another-token-that-is-long-enough-0123456789", False), (read, True)):
            with Server(example(), 4, "tcp://127.0.0.1:0", token=token, weights_from=server.address) as passing:
                where = passing.weights_source
                assert where is not None
                until(lambda where=where: where.connected or where.error is not None, "the first attempt is over")  # type: ignore[misc]
                assert where.connected is right
                if right:
                    with Client(passing.address, example(), token=token) as client:
                        check(client.weights())
                else:
                    assert isinstance(where.error, SecurityError) and where.refused
                    assert "token" in str(passing.stats()["weights/source_error"])


def test_a_tree_of_1_4_64_has_the_learners_version_and_digest_and_the_learner_sends_four_copies(start: Callable[..., Child]) -> None:
    with Server(example(), 4, "tcp://127.0.0.1:0") as server:
        places = [address_of("tcp", "") for _ in range(4)]
        for passing in [start(relay, str(server.address), place) for place in places]:
            passing.hear()
        workers = [start(tree_clients, places[n % 4], CLIENTS, 1) for n in range(64 // CLIENTS)]
        for worker in workers:
            worker.hear()
        published = server.publish(tree(1))
        got = [pair for worker in workers for pair in worker.hear()]
        assert [tuple(pair) for pair in got] == [published] * 64
        until(lambda: server.receipts() == {published: 64}, "the learner knows of all 64", 30)
        stats = server.stats()
        assert stats["transport/tcp/weights_sent"] == 4
        sent = int(stats["transport/tcp/bytes_sent"])
        assert 4 * 4 * FLOATS <= sent < 4 * 4 * FLOATS * 1.01
        assert [value for key, value in stats.items() if key.startswith("relay/") and key.endswith("/holders_of_newest")] == [16] * 4
