"""A shard that is left out of draws is shown as it is, holds nobody up, loses nothing, and hears of the end of the job."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner, LocalCluster, serve_shard
from echo_cluster.draw import Draw
from echo_core import Client, EchoError, EchoTimeoutError, MinSize, Ragged, SecurityError, Server, SpecError, Table

EXAMPLE = {"id": np.zeros((), np.int64)}
WAIT_SECONDS = 60.0


@contextmanager
def shards(*tables: Table) -> Iterator[list[Server]]:
    servers = [Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start() for table in tables]
    try:
        yield servers
    finally:
        for server in servers:
            server.close()


def members(servers: list[Server]) -> list[str]:
    return [str(server.addresses[0]) for server in servers]


def fill(server: Server, ids: range, example: Any = EXAMPLE) -> None:
    with Client(server.address, example) as client:
        for number in ids:
            client.send({"id": np.array(number), **({"tokens": np.full(number % 5, number, np.int32)} if "tokens" in example else {})})
        client.wait()


def wait_for(ready: Callable[[], bool]) -> None:
    ends = time.monotonic() + WAIT_SECONDS
    while not ready():
        assert time.monotonic() < ends
        time.sleep(0.01)


@contextmanager
def learning(*arguments: Any, **more: Any) -> Iterator[ClusterLearner]:
    """A learner that does not end the job."""
    learner = ClusterLearner(*arguments, **more)
    try:
        yield learner
    finally:
        learner._end()


def table(sampler: str = "uniform", least: int = 1, example: Any = EXAMPLE, **more: Any) -> Table:
    return Table("replay", example, sampler=sampler, capacity=1000, rate_limiter=MinSize(least), **more)


# ---- the end of the job ---------------------------------------------------------------------------------------------------


@pytest.fixture
def queues() -> Iterator[LocalCluster]:
    with LocalCluster(2, [table("fifo", max_times_sampled=1)]) as cluster:
        for number in range(2):
            with Client(cluster.wait(number).addresses[0], EXAMPLE, token=cluster.token) as client:
                client.send_batch({"id": np.arange(20)})
        yield cluster


def all_end(cluster: LocalCluster) -> None:
    for process in cluster.processes:
        process.join(WAIT_SECONDS)
        assert process.exitcode == 0


def test_close_ends_shards_that_had_too_few_items(queues: LocalCluster) -> None:
    learner = ClusterLearner(queues.members, EXAMPLE, token=queues.token, patience=0.2)
    with pytest.raises(EchoTimeoutError):
        learner.sample(64, timeout=0.5)
    learner.close(WAIT_SECONDS)
    all_end(queues)


def test_close_ends_a_shard_that_stands_still(queues: LocalCluster) -> None:
    learner = ClusterLearner(queues.members, EXAMPLE, token=queues.token, patience=0.2)
    queues.pause(0)
    wait_for(lambda: learner.shards[0].state == "down")
    resume = threading.Timer(0.5, queues.resume, [0])
    resume.start()
    learner.close(WAIT_SECONDS)
    resume.join()
    all_end(queues)


def test_close_says_which_shards_it_could_not_tell(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One does not live, and one does not take this from a token that may only read."""
    server = Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0", token=["a" * 32, "read:" + "r" * 32])
    serving = threading.Thread(target=serve_shard, args=(server,), kwargs={"folder": tmp_path / "shards", "number": 0})
    serving.start()
    wait_for((tmp_path / "shards" / "shard-0").exists)
    address = str(server.addresses[0])
    with caplog.at_level(logging.WARNING, "echo"):
        ClusterLearner([address, "tcp://127.0.0.1:1"], EXAMPLE, token="r" * 32, role="observer", patience=0.2).close(0.3)
    (told,) = [record.getMessage() for record in caplog.records if "could not tell" in record.getMessage()]
    assert f"{address}: operation 'cluster/end' needs a token for admin" in told
    assert "tcp://127.0.0.1:1: " in told and "Connection refused" in told
    caplog.clear()
    ClusterLearner([address], EXAMPLE, token="a" * 32).close()
    serving.join(WAIT_SECONDS)
    assert not serving.is_alive() and "could not tell" not in caplog.text


# ---- shards that wait -----------------------------------------------------------------------------------------------------


def test_a_shard_that_lacks_items_is_up() -> None:
    with shards(table(least=50), table(least=50)) as servers:
        for server in servers:
            fill(server, range(30))
        with learning(members(servers), EXAMPLE, patience=0.2) as learner:
            for timeout in (0.1, 0.5):
                with pytest.raises(EchoTimeoutError, match=r"is up \(its table waits: .*MinSize\(50\) allows no batch"):
                    learner.sample(8, timeout=timeout)
                assert [(shard.state, shard.size) for shard in learner.shards] == [("up", 30), ("up", 30)]
                assert learner.stats()["shards_up"] == 2 and learner.stats()["items"] == 60
                assert all("timeout=" not in shard.error for shard in learner.shards), "the patience has ended the wait"
            for server in servers:
                fill(server, range(30, 60))
            assert set(learner.sample(64, timeout=WAIT_SECONDS).info.shards) == {0, 1}
            assert [shard.error for shard in learner.shards] == ["", ""]


def test_a_closed_limiter_holds_up_one_draw_only(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    ask = Draw.ask

    def noted(draw: Draw, shard: Any, reached: Any, count: int, seconds: float) -> None:
        if shard.number == 1:
            waits.append(seconds)
        ask(draw, shard, reached, count, seconds)

    with shards(table(least=100), table(least=100)) as servers:
        fill(servers[0], range(400))
        fill(servers[1], range(1000, 1080))
        monkeypatch.setattr(Draw, "ask", noted)
        with learning(members(servers), EXAMPLE, patience=0.3) as learner:
            for _ in range(100):
                sample = learner.sample(64)
                assert sample.info.degraded and sample.info.shards == {0: 64}
                np.testing.assert_allclose(sample.probabilities, 1 / 400)
            assert waits[0] == pytest.approx(0.3) and not any(waits[1:]), "afterwards it is asked without a wait"
            fill(servers[1], range(1080, 1200))
            wait_for(lambda: set(learner.sample(64).info.shards) == {0, 1} and learner.shards[1].size == 200)
            sample = learner.sample(64)
            np.testing.assert_allclose(sample.probabilities, 1 / 600)
            assert not sample.info.degraded


# ---- one server by two names ----------------------------------------------------------------------------------------------


def test_a_server_with_two_names_is_drawn_from_once(caplog: pytest.LogCaptureFixture) -> None:
    with shards(table(), table()) as servers:
        for shard, server in enumerate(servers):
            fill(server, range(10 * shard, 10 * shard + 10))
        first, second = members(servers)
        other = first.replace("127.0.0.1", "localhost")
        there = [first, other, second]
        with learning(there, EXAMPLE, seed=0) as learner:
            assert sorted(shard.state for shard in learner.shards) == ["refused", "up", "up"]
            sample = learner.sample(60)
            np.testing.assert_allclose(sample.probabilities, 1 / 20)
            assert sample.info.store_size == 20 == learner.stats()["items"]
            assert (sample.batch["id"] < 10).sum() == 30 and not sample.info.degraded
        (said,) = [record.getMessage() for record in caplog.records if "same server" in record.getMessage()]
        assert first in said and other in said


def test_the_other_name_of_a_server_takes_over() -> None:
    from echo_cluster import Member

    with shards(table()) as (server,):
        fill(server, range(10))
        address = server.addresses[0]
        there = [Member("a", (address,)), Member("b", (type(address).parse(str(address).replace("127.0.0.1", "localhost")),))]
        with learning(lambda: list(there), EXAMPLE) as learner:
            (drawn,) = learner.sample(4).info.shards
            del there[drawn]
            wait_for(lambda: learner.shards[1 - drawn].state == "up")
            assert learner.sample(4).info.shards == {1 - drawn: 4}


# ---- what came for a batch that was given up ------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
def test_a_batch_that_was_not_in_time_loses_no_items(ragged: bool) -> None:
    example = {**EXAMPLE, "tokens": Ragged(np.int32, most=8)} if ragged else EXAMPLE
    once = {"sampler": "fifo", "example": example, "max_times_sampled": 1}
    with shards(table(**once), table(least=100, **once)) as servers:
        fill(servers[0], range(32), example)
        fill(servers[1], range(100, 132), example)
        with learning(members(servers), example, patience=0.2) as learner:
            for _ in range(2):
                with pytest.raises(EchoTimeoutError, match="had 32 of 64 items"):
                    learner.sample(64, timeout=0.3)
            found: list[int] = []
            for n in (1, 10, 21):
                sample = learner.sample(n)
                assert sample.info.shards == {0: n} and (sample.probabilities > 0).all() and len(sample.keys) == n
                if ragged:
                    assert [len(sample.row(row)["tokens"]) for row in range(n)] == [number % 5 for number in sample.batch["id"]]
                found += sample.batch["id"].tolist()
            assert found == list(range(32))
            fill(servers[1], range(132, 300), example)
            fill(servers[0], range(32, 64), example)
            rest = [number for _ in range(2) for number in learner.sample(32, timeout=WAIT_SECONDS).batch["id"].tolist()]
            assert len(set(rest)) == 64 and set(rest) <= {*range(32, 64), *range(100, 300)}


def test_items_that_can_be_drawn_again_are_not_kept() -> None:
    """They would be in the next batch more often than their probability says."""
    with shards(table(), table(least=100)) as servers:
        fill(servers[0], range(32))
        fill(servers[1], range(100, 132))
        with learning(members(servers), EXAMPLE, patience=0.2) as learner:
            draw = learner._begin(64, None, 0.3)
            draw.collect()
            assert draw.missing == 32
            learner._give_up(draw, True)
            assert learner.sample(8).info.shards == {0: 8} and not learner._kept


# ---- reasons --------------------------------------------------------------------------------------------------------------


def test_the_reason_is_said_when_nobody_is_reached() -> None:
    with pytest.raises(EchoTimeoutError, match=r"no shard was reached within 2 s: tcp://127.0.0.1:1 is down \(.*Connection refused"):
        ClusterLearner(["tcp://127.0.0.1:1"], EXAMPLE, timeout=2)


@pytest.mark.parametrize(
    ("kind", "text", "more"),
    [
        (SecurityError, "token is not the learner's", {"token": "f" * 32}),
        (SpecError, "leaf 'id' is int64 ", {"example": {"id": np.zeros(3, np.int64)}}),
        (EchoError, "no table 'nope'", {"table": "nope"}),
    ],
)
def test_an_error_at_every_shard_is_raised_at_once(kind: type[Exception], text: str, more: dict[str, Any]) -> None:
    with shards(table(), table()) as servers, pytest.raises(kind, match=text) as raised:
        ClusterLearner(members(servers), more.pop("example", EXAMPLE), timeout=600, **more)
    assert not isinstance(raised.value, EchoTimeoutError)


def test_a_peer_that_speaks_another_protocol_may_be_replaced() -> None:
    """Something else listens at the address, such as a proxy whose shard does not run yet. So the learner tries again until its time is over."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = listening.accept()
                    with peer:
                        peer.sendall(b"HTTP/1.1 502 Bad Gateway\r\n\r\n" * 10)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(EchoTimeoutError, match=r"is refused \(.*does not speak Echo"):
                ClusterLearner([f"tcp://127.0.0.1:{listening.getsockname()[1]}"], EXAMPLE, timeout=1)
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_invalid_timeouts_are_refused(timeout: float) -> None:
    with shards(table()) as servers, learning(members(servers), EXAMPLE) as learner:
        fill(servers[0], range(4))
        keys = learner.sample(1).keys
        for call in (lambda: learner.sample(1, timeout), lambda: learner.delete(keys, timeout), lambda: next(learner.dataset_iter(1, timeout=timeout))):
            with pytest.raises(ValueError, match="timeout must be at least 0 seconds"):
                call()
        assert learner.delete(keys, 0) == 1


def test_a_worker_hears_of_the_end_after_a_draw_in_vain(queues: LocalCluster) -> None:
    learner = ClusterLearner(queues.members, EXAMPLE, token=queues.token, patience=0.2)
    with ClusterClient(queues.members, EXAMPLE, token=queues.token) as worker:
        with pytest.raises(EchoTimeoutError):
            learner.sample(64, timeout=0.5)
        learner.close(WAIT_SECONDS)
        with pytest.raises(EchoError, match="ended"):
            while True:
                worker.send({"id": np.array(0)}, timeout=WAIT_SECONDS)
                worker.wait(WAIT_SECONDS)
