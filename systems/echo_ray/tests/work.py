"""What the workers of these tests run. They are processes of Ray's nodes, which find this module on the path of the driver."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from echo_core.base.writing import write_whole

EXAMPLE = {"worker": np.zeros((), np.int64), "number": np.zeros((), np.int64), "near": np.zeros((), np.int64)}
ITEMS = 40
CONFIG: dict[str, Any] = {
    "cluster": {"via": "ray", "shards": 2, "workers": {"min": 2, "max": 4, "cpus": 0.5, "restarts": 3}, "checkpoint_every": 0.2},
    "example": {name: {"dtype": "int64", "shape": []} for name in EXAMPLE},
    "server": {"tables": [{"name": "replay", "capacity": 100_000, "sampler": "uniform"}]},
}


def item(worker: int, number: int, near: bool) -> dict[str, Any]:
    return {"worker": np.array(worker), "number": np.array(number), "near": np.array(int(near))}


def send_some(context: Any) -> None:
    """Send some items, and stay until told to leave; then send one more."""
    with context.client(EXAMPLE) as client:
        for number in range(ITEMS):
            client.send(item(context.index, number, client.address.scheme == "shm"))
        client.wait()
        while not context.wait(60):
            pass
        client.send(item(context.index, ITEMS, client.address.scheme == "shm"))


def send_always(context: Any, folder: str) -> None:
    """Send items until told to leave, with a pause while there is a file of that name. A file named like this process has the number that is committed."""
    with context.client(EXAMPLE, rehome_after=1.0, timeout=60) as client:
        number = 0
        while not context.leaving:
            if Path(folder, "pause").exists():
                context.wait(0.1)
                continue
            for _ in range(20):
                client.send(item(os.getpid(), number, True), priority=1.0)
                number += 1
            client.wait()
            write_whole(Path(folder, str(os.getpid())), str(number).encode())
            context.wait(0.02)


def until(true: Callable[[], Any], seconds: float = 90) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends, "it does not happen"
        time.sleep(0.05)


def items(cluster: Any) -> int:
    """All items of the shards that are up."""
    return sum(row["tables"]["replay"]["size"] for row in cluster.status()["shards"] if row["tables"])


def nearness(thetas: Any, epoch: int) -> Any:
    """For a search: how near each candidate is to the point (1, 1, 1)."""
    return -np.square(thetas - 1.0).sum(axis=1)
