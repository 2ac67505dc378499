"""A worker sends to the shard of its host, and moves to another with what was not acknowledged."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner, LocalCluster, Member
from echo_cluster.client import preferred
from echo_core import Address, Client, ConfigError, ConnectionClosedError, EchoTimeoutError, JobEnded, Ragged, Server, Slices, Steps, Table

EXAMPLE = {"id": np.zeros((), np.int64)}


def item(number: int) -> dict[str, np.ndarray]:
    return {"id": np.array(number)}


def table() -> Table:
    return Table("replay", EXAMPLE, sampler="uniform", capacity=100_000)


def ids(server: Server) -> list[int]:
    """All items of a server's table, in order."""
    size = server.stats()["table/replay/size"]
    return sorted(set(server.table("replay").sample(max(1, 50 * size)).batch["id"].tolist())) if size else []


def test_workers_spread_and_few_move() -> None:
    members = [Member(f"shard-{number}", (Address.parse(f"tcp://10.0.0.{number}:1"),)) for number in range(4)]
    homes = {worker: preferred(members, str(worker))[0].name for worker in range(400)}
    sizes = [list(homes.values()).count(member.name) for member in members]
    assert min(sizes) > 60, sizes
    fewer = {worker: preferred(members[:3], str(worker))[0].name for worker in range(400)}
    assert all(fewer[worker] == home for worker, home in homes.items() if home != "shard-3")


def test_a_worker_moves_with_what_was_not_acknowledged() -> None:
    first, second = (Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(2))
    servers = {str(server.addresses[0]): server for server in (first, second)}
    with ClusterClient(list(servers), EXAMPLE, name="worker", rehome_after=0.3, timeout=30) as client:
        home = servers.pop(client.shard)
        (other,) = servers.values()
        for number in range(50):
            client.send(item(number))
        client.wait()
        assert ids(home) == list(range(50))
        home.close(restarting=True)
        for number in range(50, 80):
            client.send(item(number))
        client.wait()
        assert ids(other) == list(range(50, 80)), "what was acknowledged is not sent again, and nothing is lost"
        assert client.stats()["moves"] == 1 and client.shard == str(other.addresses[0])
    other.close()


@pytest.mark.parametrize("kind", ["steps", "records"])
def test_a_worker_whose_samples_cannot_be_handed_out_waits_for_its_home(kind: str) -> None:
    """Another shard is up all the time, and is not taken. The home comes back at another address, with what it had."""
    example: Any = {"x": np.zeros(2, np.float32)} if kind == "steps" else {"x": Ragged(np.float32, (2,), most=2000)}
    items = {"items": Slices(2)} if kind == "steps" else {}
    table = Table("replay", example, sampler="uniform", capacity=1000, **items)
    first, second = (Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(2))
    members = {f"shard-{number}": server for number, server in enumerate((first, second))}

    def find() -> list[Member]:
        return [Member(name, tuple(server.addresses)) for name, server in members.items()]

    def sample(number: int) -> dict[str, np.ndarray]:
        return {"x": np.full((2,) if kind == "steps" else (100 * number, 2), number, np.float32)}

    with ClusterClient(find, Steps(example) if kind == "steps" else example, name="worker", rehome_after=0.1, timeout=60) as client:
        name = client.shard
        home = members[name]
        client.send(sample(1))
        client.wait()
        home.close(restarting=True)
        client.send(sample(2))
        ends = time.monotonic() + 30
        while client.stats()["connected"]:
            assert time.monotonic() < ends
            time.sleep(0.02)
        time.sleep(0.5)  # far longer than `rehome_after`
        client.send(sample(3))
        assert client.shard == name
        members[name] = Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0").start()
        client.wait()
        assert client.stats()["moves"] == 0 and client.stats()["unacknowledged"] == 0
        inserts = {name: server.stats()["table/replay/inserts"] for name, server in members.items()}
    if kind == "records":
        drawn = members[name].table("replay").sample(64)
        assert {len(drawn.row(i)["x"]) for i in range(64)} == {200, 300}, "all that was not acknowledged, and whole"
    assert [count for other, count in inserts.items() if other != name] == [0]
    for server in members.values():
        server.close()


def test_one_closed_shard_does_not_end_the_job_and_all_do() -> None:
    first, second = (Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(2))
    servers = {str(server.addresses[0]): server for server in (first, second)}
    client = ClusterClient(list(servers), EXAMPLE, rehome_after=0.3, timeout=5)
    servers.pop(client.shard).close()
    (other,) = servers.values()
    ends = time.monotonic() + 30
    while client.shard not in servers:
        assert time.monotonic() < ends
        time.sleep(0.02)
    client.send(item(1))
    client.wait()
    other.close()
    with pytest.raises(JobEnded, match="no other shard answers"):
        while True:
            client.send(item(2), 20)
            client.wait(20)
    client.close(20)  # the error was raised before


def test_shared_memory_on_the_same_host_and_end_of_the_job(tmp_path: Path) -> None:
    with LocalCluster(1, [table()]) as cluster:
        with ClusterClient(cluster.members, EXAMPLE, token=cluster.token) as client:
            assert client.address.scheme == "shm"
            client.send(item(3))
            client.wait()
        with ClusterClient(cluster.members, EXAMPLE, token=cluster.token, near="never") as client:
            assert client.address.scheme == "tcp"
        with ClusterLearner(cluster.members, EXAMPLE, token=cluster.token) as learner:
            assert learner.sample(2).batch["id"].tolist() == [3, 3]
        cluster.processes[0].join(30)
        assert cluster.processes[0].exitcode == 0, "the end of the learner ends the job"


@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RuntimeError("a fault of the function")])
def test_members_that_cannot_be_found_for_a_while_stop_no_worker(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    first, second = (Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(2))
    servers = {str(server.addresses[0]): server for server in (first, second)}
    fails = threading.Event()
    asked = threading.Semaphore(0)

    def find() -> list[Member]:
        if fails.is_set():
            asked.release()
            raise error
        return [Member(name, tuple(server.addresses)) for name, server in servers.items()]

    with pytest.raises(type(error)):
        fails.set()
        ClusterClient(find, EXAMPLE, timeout=30)
    fails.clear()
    with ClusterClient(find, EXAMPLE, rehome_after=0.2, timeout=30) as client:
        both, caplog.handler.records[:] = dict(servers), []
        home = client.shard
        fails.set()
        both[home].close(restarting=True)
        ends = time.monotonic() + 30
        while client.shard == home:  # nobody calls it, so its own thread moves it, to a shard that it knew
            assert time.monotonic() < ends
            time.sleep(0.02)
        said = [record for record in caplog.records if "the members of the cluster could not be found" in record.getMessage()]
        assert len(said) == 1 and str(error) in said[0].getMessage()
        other = servers.pop(client.shard)
        servers[home] = Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start()  # at another port: nobody knows it
        other.close(restarting=True)
        for _ in range(3):
            assert asked.acquire(timeout=30), "it looks again"
        fails.clear()
        client.send(item(1))
        client.wait()
        assert ids(servers[home]) == [1]
    servers[home].close()


def test_calls_keep_their_timeouts_while_the_worker_moves() -> None:
    """Its thread is stuck in a move when they are made; only the members end that."""
    server = Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start()
    member = Member("shard-0", tuple(server.addresses))
    gone, stuck, go_on = threading.Event(), threading.Event(), threading.Event()

    def find() -> list[Member]:
        if gone.is_set():
            stuck.set()
            go_on.wait()
        return [member]

    client = ClusterClient(find, EXAMPLE, rehome_after=0.1, timeout=0.5)
    gone.set()
    server.close(restarting=True)
    assert stuck.wait(30)
    client.send(item(1), 0.1)  # it is kept for the next home
    calls = (lambda: client.request("ping", timeout=0.1), lambda: client.weights(0.1), lambda: client.wait(0.1), lambda: client.close(0.1))
    with ThreadPoolExecutor(1) as pool:
        try:
            for call in calls:
                with pytest.raises((EchoTimeoutError, ConnectionClosedError)):
                    pool.submit(call).result(30)
        finally:
            go_on.set()
    client.close(0)


def test_a_move_that_ends_after_close_leaves_no_connection() -> None:
    first, second = (Server(tables=[table()], batch_size=1, transport="tcp://127.0.0.1:0").start() for _ in range(2))
    servers = {str(server.addresses[0]): server for server in (first, second)}
    client = ClusterClient(list(servers), EXAMPLE, rehome_after=0.1, timeout=30)
    connect, dialled, go_on = client._connect, threading.Event(), threading.Event()
    made: list[Client] = []

    def connect_slowly(member: Member, address: Address, seconds: float) -> Client:
        made.append(connect(member, address, seconds))
        dialled.set()
        go_on.wait()
        return made[-1]

    client._connect = connect_slowly
    servers.pop(client.shard).close(restarting=True)
    (other,) = servers.values()
    assert dialled.wait(60)
    client.close(0.1)
    go_on.set()
    assert client._watch is not None
    client._watch.join(60)
    assert not client._watch.is_alive() and client.moves == 0
    assert [one.stats()["connected"] for one in made] == [False]
    other.close()


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="near must be"):
        ClusterClient(["tcp://127.0.0.1:1"], EXAMPLE, near="yes")
    for wrong in (0, float("nan"), "1", None):
        with pytest.raises(ConfigError, match="rehome_after"):
            ClusterClient(["tcp://127.0.0.1:1"], EXAMPLE, rehome_after=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="patience"):
        ClusterLearner(["tcp://127.0.0.1:1"], EXAMPLE, patience="1")  # type: ignore[arg-type]
