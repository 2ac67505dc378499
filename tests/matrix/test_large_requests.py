"""Items that are larger than a message: a remote client reads, inserts and changes them over every transport."""

from __future__ import annotations

import os

import numpy as np
import pytest

from echo_core import Client, EchoError, EchoTimeoutError, SampleToInsertRatio, Sequences, Server, Slices, Steps, Table
from echo_core.client.observer import Observer
from echo_core.wire.blobs import MAX_BYTES
from echo_core.wire.peer import Peer
from echo_testing.processes import until

SIZES = [MAX_BYTES - 24, MAX_BYTES - 23, 1 << 20, 2_500_001]


@pytest.fixture(params=["tcp", "grpc", "shm", "rdma"])
def address(request: pytest.FixtureRequest) -> str:
    if request.param in ("grpc", "rdma"):
        pytest.importorskip(f"echo_{request.param}")
    return f"shm://large-{os.getpid()}" if request.param == "shm" else f"{request.param}://127.0.0.1:0"


def items(n: int, size: int, seed: int = 0) -> dict[str, np.ndarray]:
    return {"n": np.arange(n), "x": np.random.default_rng(seed).integers(0, 256, (n, size), np.uint8)}


@pytest.mark.parametrize("size", SIZES)
def test_large_items_are_read_and_written(address: str, size: int) -> None:
    example = {"n": np.int64(0), "x": np.zeros(size, np.uint8)}
    given = items(4, size)
    tables = [Table(name, example, capacity=8, sampler="uniform", seed=0) for name in ("t", "u")]
    server = Server(tables=tables, batch_size=2, transport=address).start()
    with server, Client(server.address, example, table="t", tables={"u": example}, timeout=20) as client:
        keys = client.table().insert(given)
        batch, here = client.table().peek(keys)
        assert here.all() and np.array_equal(batch["x"], given["x"]) and batch["n"].tolist() == [0, 1, 2, 3]
        for drawn in (client.sample(3).batch, next(iter(client.dataset_iter(3, prefetch=0))).batch):
            assert np.array_equal(drawn["x"], given["x"][drawn["n"]])
        other = items(4, size, seed=1)
        assert client.table().update_items(keys, {"x": other["x"]}).all()
        assert np.array_equal(server.table("t").peek(keys)[0]["x"], other["x"])
        client.table("u").insert(given)
        mixed = client.sample_mixture({"t": 0.5, "u": 0.5}, 4).batch
        assert np.array_equal(mixed["x"][:2], other["x"][mixed["n"][:2]]) and np.array_equal(mixed["x"][2:], given["x"][mixed["n"][2:]])
        # The thread that wrote the last answer counts it as read a moment later.
        until(lambda: server.stats()["clients/held_bytes"] == 0, "nothing is kept once it was fetched")


@pytest.mark.parametrize("kind", [Sequences(4), Slices(4)], ids=["sequences", "slices"])
def test_large_items_of_steps_are_read(kind: object) -> None:
    step = {"x": np.zeros(600_000, np.uint8)}
    table = Table("s", step, capacity=40, items=kind, sampler="uniform", seed=0)
    with Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0") as server, Client(server.address, Steps(step), table="s", timeout=20) as client:
        for t in range(12):
            client.send({"x": np.full(600_000, t, np.uint8)}, end="terminated" if t == 11 else None)
        client.wait(20)
        x = client.sample(2).batch["x"]
        assert x.shape[0] == 2 and x.shape[-1] == 600_000
        assert (x == x[..., :1]).all() and (np.diff(x.reshape(2, 4, -1)[..., 0].astype(int), axis=1) == 1).all()


def test_a_large_insert_that_waits_is_uploaded_once() -> None:
    example = {"x": np.zeros(2 << 20, np.uint8)}
    table = Table("t", example, capacity=8, sampler="uniform", rate_limiter=SampleToInsertRatio(1, 1, 1))
    with Server(tables=[table], batch_size=1, transport="tcp://127.0.0.1:0") as server, Client(server.address, example, table="t") as client:
        with pytest.raises(EchoTimeoutError, match="insert"):
            for _ in range(5):
                client.table().insert({"x": np.ones((1, 2 << 20), np.uint8)}, timeout=0.3)
        before = client.stats()["bytes_sent"]
        with pytest.raises(EchoTimeoutError, match="insert"):
            client.table().insert({"x": np.ones((1, 2 << 20), np.uint8)}, timeout=0.5)
        assert client.stats()["bytes_sent"] - before < 3 << 20


def test_requests_of_a_client_are_as_large_as_its_share() -> None:
    example = {"x": np.zeros(4, np.uint8)}
    with Server(example, batch_size=1, transport="tcp://127.0.0.1:0", client_memory=32 << 20) as server, Client(server.address, example) as client:
        blob = os.urandom(3 << 20)
        assert client.request("ping", {}, blob)[1] == blob
        with pytest.raises(EchoError, match="one connection may make it hold"):
            client.request("ping", {}, bytes(9 << 20))
        assert client.request("ping", {}, blob)[1] == blob


def test_statistics_of_several_thousand_workers_arrive_whole(address: str) -> None:
    example = {"x": np.zeros(4, np.uint8)}
    with Server(example, batch_size=1, transport=address) as server:
        for i in range(5000):
            server._peer_connected(Peer(id=f"{i:032x}", name=f"rollout-worker-of-a-long-name-{i}", address="somewhere"))
        with Client(server.address, example, timeout=60) as client, Observer(server.address) as observer:
            for stats in (client.server_stats(), observer.stats()):
                assert stats["store/samples_inserted_total"] == 0
                assert all(stats[f"worker/rollout-worker-of-a-long-name-{i}/state"] == "idle" for i in range(5000))
