"""Samples of varying length over the transports: complete or nothing, also if workers are killed."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Queue, Ragged, Server, Table
from echo_core.plugins import discovery

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
over_every_transport = pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)
EXAMPLE = {"tokens": Ragged(np.int32, most=1 << 20), "task": np.int64(0)}


def sample(task: int, n: int) -> dict[str, Any]:
    return {"tokens": np.arange(n, dtype=np.int32) ^ np.int32(task), "task": np.int64(task)}


def served(transport: dict[str, Any], capacity: int = 1000, max_bytes: int = 64 << 20, **options: Any) -> Server:
    table = Table("rollouts", EXAMPLE, capacity=capacity, max_bytes=max_bytes, sampler="fifo", rate_limiter=Queue(capacity), **options)
    return Server(tables=[table], batch_size=1, transport=transport)


def check(batch: Any) -> list[int]:
    tasks = []
    for i in range(len(batch.packed)):
        item = batch.row(i)
        np.testing.assert_array_equal(item["tokens"], sample(int(item["task"]), len(item["tokens"]))["tokens"])
        tasks.append(int(item["task"]))
    return tasks


def lengths(rng: np.random.Generator) -> int:
    return int(rng.choice([0, 1, 250, 251, 252, 5000, 60_000, 300_000], p=[0.1, 0.1, 0.2, 0.2, 0.1, 0.2, 0.08, 0.02]))


def send_many(address: str, first: int, count: int) -> None:
    rng = np.random.default_rng(first)
    with Client(address, EXAMPLE) as client:
        task = first
        while task < first + count:
            some = [sample(task + i, lengths(rng)) for i in range(min(int(rng.integers(1, 5)), first + count - task))]
            if len(some) == 1:
                client.send(some[0], timeout=60)
            else:
                client.send_batch(some, timeout=60)
            task += len(some)
        client.flush(timeout=60)


@over_every_transport
def test_workers_of_several_processes(transport_table: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    with served(transport_table) as server:
        workers = [context.Process(target=send_many, args=(str(server.address), 1000 * i, 60)) for i in range(3)]
        for worker in workers:
            worker.start()
        seen: list[int] = []
        while len(seen) < 180:
            seen += check(server.sample(timeout=60))
        for worker in workers:
            worker.join()
        for i in range(3):  # each worker's samples come in order
            assert [task for task in seen if task // 1000 == i] == list(range(1000 * i, 1000 * i + 60))
        assert server.tables["rollouts"].stats()["records_incomplete"] == 0


def send_for_ever(address: str, first: int) -> None:
    with Client(address, EXAMPLE) as client:
        for task in range(first, first + 10**6):
            client.send(sample(task, 400_000), timeout=60)


@over_every_transport
def test_killed_workers_leave_no_item(transport_table: dict[str, Any]) -> None:
    context = multiprocessing.get_context("spawn")
    with served(transport_table, max_bytes=16 << 20) as server:
        table = server.tables["rollouts"]
        for turn in range(3):
            worker = context.Process(target=send_for_ever, args=(str(server.address), 10**6 * turn))
            worker.start()
            for _ in range(3):
                check(server.sample(timeout=60))
            time.sleep(0.01 * turn)
            assert worker.pid is not None
            os.kill(worker.pid, signal.SIGKILL)
            worker.join()
            while len(table):
                check(server.sample(timeout=60))
        deadline = time.monotonic() + 30
        while table.stats()["connections"] and time.monotonic() < deadline:
            time.sleep(0.05)
        while len(table):
            check(server.sample(timeout=60))
        table.forget_lost_workers(0)
        stats = table.stats()
        assert stats["records_half_sent"] == stats["records_half_sent_bytes"] == stats["bytes_used"] == stats["records_refused"] == 0
        assert stats["records_incomplete"] <= 3
        # The next worker is not disturbed.
        with Client(server.address, EXAMPLE) as client:
            client.send(sample(7, 10), timeout=30)
            assert check(server.sample(timeout=30)) == [7]


@over_every_transport
def test_a_full_queue_makes_remote_writers_wait_for_bytes(transport_table: dict[str, Any]) -> None:
    with served(transport_table, max_bytes=5 << 20) as server:  # room for one sample of the longest
        done = threading.Event()

        def write() -> None:
            with Client(server.address, EXAMPLE) as client:
                for task in range(12):
                    client.send(sample(task, 1_000_000), timeout=60)
                client.flush(timeout=60)
            done.set()

        thread = threading.Thread(target=write)
        thread.start()
        seen: list[int] = []
        while len(seen) < 12:
            time.sleep(0.02)
            seen += check(server.sample(timeout=60))
        thread.join()
        assert seen == list(range(12)) and done.is_set()
        assert server.tables["rollouts"].stats()["evicted"] == 0


@over_every_transport
def test_a_server_with_a_ragged_example(transport_table: dict[str, Any]) -> None:
    with Server({"tokens": Ragged(np.int32, most=4096), "task": np.int64(0)}, batch_size=2, transport=transport_table) as server:
        with Client(server.address, {"tokens": Ragged(np.int32, most=4096), "task": np.int64(0)}) as client:
            client.send_batch([sample(0, 10), sample(1, 4096)], timeout=30, policy_version=3)
        assert check(server.sample(timeout=30)) == [0, 1]
