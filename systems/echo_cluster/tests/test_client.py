"""A worker sends to the shard of its host, and moves to another with what was not acknowledged."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from echo_cluster import ClusterClient, ClusterLearner, LocalCluster, Member
from echo_cluster.client import preferred
from echo_core import Address, ConfigError, JobEnded, Server, Table

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


def test_arguments() -> None:
    with pytest.raises(ConfigError, match="near must be"):
        ClusterClient(["tcp://127.0.0.1:1"], EXAMPLE, near="yes")
    with pytest.raises(ConfigError, match="rehome_after"):
        ClusterClient(["tcp://127.0.0.1:1"], EXAMPLE, rehome_after=0)
