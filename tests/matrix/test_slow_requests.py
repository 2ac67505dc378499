"""A request that takes long delays neither the requests of other clients nor new connections, over every transport."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Server, Table
from echo_core.store.sampler import Sampler, check_held, check_new
from echo_testing.processes import returns, until

EXAMPLE = {"x": np.zeros(2, np.float32)}


class Stuck(Sampler):
    """Draws the oldest key, and not before `go` is set."""

    storage = "replay"
    go = threading.Event()
    drawing = threading.Event()

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: dict[int, None] = {}

    def insert(self, keys: Any, priorities: Any = None) -> None:
        self.held.update(dict.fromkeys(check_new(keys, self.held)))

    def delete(self, keys: Any) -> None:
        for key in check_held(keys, self.held, once=True):
            del self.held[key]

    def update(self, keys: Any, priorities: Any) -> None:
        check_held(keys, self.held)

    def sample(self, n: int, rng: Any) -> Any:
        self.drawing.set()
        assert self.go.wait(60)
        return np.full(n, next(iter(self.held)), np.uint64), np.ones(n)

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> Any:
        return {"keys": np.fromiter(self.held, np.uint64)}

    def restore(self, state: Any) -> None:
        self.held = dict.fromkeys(check_new(state["keys"], ()))


@pytest.mark.parametrize("scheme", ["tcp", "tcp-many", "grpc", "shm", "rdma"])
def test_a_slow_request_delays_no_other_client(scheme: str) -> None:
    if scheme in ("grpc", "rdma"):
        pytest.importorskip(f"echo_{scheme}")
    Stuck.go.clear()
    Stuck.drawing.clear()
    address = f"shm://slow-{os.getpid()}" if scheme == "shm" else f"{scheme.removesuffix('-many')}://127.0.0.1:0"
    tables = [Table("stuck", EXAMPLE, capacity=8, sampler=Stuck(capacity=8)), Table("free", EXAMPLE, capacity=8, sampler="uniform")]
    with Server(tables=tables, batch_size=2, transport=address) as server:
        server.submit(EXAMPLE, table="stuck")
        server.submit(EXAMPLE, table="free")
        clients = [Client(server.address, EXAMPLE, table="stuck", timeout=60) for _ in range(2 if scheme == "tcp-many" else 1)]
        drawn: list[Any] = []
        threads = [threading.Thread(target=lambda client=client: drawn.append(client.sample(1).batch)) for client in clients]
        try:
            for thread in threads:
                thread.start()
            until(Stuck.drawing.is_set, "the sampler draws")
            with Client(server.address, EXAMPLE, table="free", timeout=60, name="other") as other:  # a new connection
                other.send(EXAMPLE)
                other.wait()
                batch = returns(lambda: other.sample(1).batch, 20)
                assert isinstance(batch, dict) and batch["x"].shape == (1, 2), batch
                assert not drawn
            until(lambda: "other" not in [peer.name for peer in server.peers()], "its end is noticed")
        finally:
            Stuck.go.set()
            for thread in threads:
                thread.join(60)
            for client in clients:
                client.close()
    assert len(drawn) == len(clients)
