"""Queues that lend, over every installed transport: what a learner had and did not acknowledge comes back when its connection ends."""

from __future__ import annotations

import multiprocessing
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, Queue, Server, Table
from echo_core.plugins import discovery

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0)}

spawning = multiprocessing.get_context("spawn")
pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)]


def queue() -> Table:
    """One whose loans last longer than any test: nothing comes back for want of time."""
    return Table("queue", EXAMPLE, capacity=100, sampler="fifo", rate_limiter=Queue(100), lease_timeout=3600)


def numbers(start: int, stop: int) -> dict[str, Any]:
    return {"number": np.arange(start, stop)}


def take(source: Any, n: int) -> tuple[list[int], np.ndarray]:
    sample = source.sample(n=n, timeout=30)
    return sample.batch["number"].tolist(), sample.keys


def borrow(address: str, pipe: Any) -> None:
    client = Client(address, EXAMPLE, table="queue", timeout=60)
    seen, keys = take(client, 10)
    client.ack(keys[:3])
    pipe.send(seen)
    threading.Event().wait()  # until it is killed


def test_a_killed_learner_s_loans_come_back_at_once(transport_table: dict[str, Any]) -> None:
    with Server(tables=[queue()], batch_size=10, transport=transport_table) as server, Client(server.address, EXAMPLE) as other:
        server.submit_batch(numbers(0, 20))
        here, there = spawning.Pipe()
        learner = spawning.Process(target=borrow, args=(str(server.address), there), daemon=True)
        learner.start()
        try:
            assert here.poll(60) and here.recv() == [*range(10)]
            mine, keys = take(other, 5)
            assert mine == [*range(10, 15)] and server.stats()["table/queue/on_loan"] == 12
            assert take(server, 5)[0] == [*range(15, 20)]
            with pytest.raises(EchoTimeoutError):
                server.sample(0.01, n=1)
        finally:
            learner.kill()
            learner.join()
        assert take(server, 7)[0] == [*range(3, 10)]  # it waits for what comes back
        stats = server.stats()
        assert stats["table/queue/redelivered"] == 7 and stats["table/queue/on_loan"] == 17  # the others' loans last
        assert other.ack(keys) == 5


def test_a_learner_that_leaves_gives_back_what_it_has(transport_table: dict[str, Any]) -> None:
    with Server(tables=[queue()], batch_size=10, transport=transport_table) as server:
        server.submit_batch(numbers(0, 30))
        with Client(server.address, EXAMPLE) as learner:
            first, keys = take(learner, 4)
            _, late = take(learner, 4)
            assert learner.ack(keys) == 4
        deadline = time.monotonic() + 30
        while server.stats()["table/queue/on_loan"] and time.monotonic() < deadline:  # the server hears of its leaving a little later
            time.sleep(0.01)
        assert take(server, 4)[0] == [4, 5, 6, 7]
        assert server.ack(late) == 4  # they are the same items, whoever has them
        assert take(server, 22)[0] == [*range(8, 30)]
        assert server.stats()["table/queue/redelivered"] == 4 and first == [0, 1, 2, 3]
