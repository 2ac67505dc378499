"""A learner in another process or machine, over every installed transport: what it draws, fetched ahead, and what it sends back."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, MinSize, Queue, Server, Table
from echo_core.plugins import discovery

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}
SELDOM = 2.0**-30  # a priority: drawn once in a million batches

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)]


def items(start: int, stop: int) -> dict[str, Any]:
    numbers = np.arange(start, stop)
    return {"number": numbers, "filler": np.repeat(numbers.astype(np.float32), 5).reshape(-1, 5)}


def whole(batch: Any) -> None:
    assert (batch["filler"] == batch["number"].astype(np.float32)[:, None]).all()


def soon(condition: Any) -> bool:
    deadline = time.monotonic() + 30
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.01)
    return bool(condition())


def test_batches_and_priorities_travel(transport_table: dict[str, Any]) -> None:
    replay = Table("replay", EXAMPLE, capacity=1000, sampler={"type": "prioritized", "alpha": 1.0, "eps": 0.0}, seed=1)
    with Server(tables=[replay], batch_size=16, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        keys = server.submit_batch(items(0, 1000))
        for seen, sample in enumerate(learner.dataset_iter(64, beta=1.0)):
            whole(sample.batch)
            assert sample.keys.shape == sample.probabilities.shape == sample.weights.shape == (64,)
            assert (keys[sample.batch["number"]] == sample.keys).all() and sample.weights.max() == 1
            assert learner.update_priorities(sample.keys, np.where(sample.batch["number"] % 2, 1.0, SELDOM)) == 0
            if seen == 99:
                break
        table = server.table()
        priorities = dict(zip(*(column.tolist() for column in table.top(1000))))
        drawn = table.counters()["updated"]
        assert drawn == 6400 and {priorities[key] for key in keys[::2].tolist()} <= {SELDOM, 1.0}  # as given, or never drawn
        # Nothing even is drawn any more, as far as it was updated; and updates of what is gone are counted.
        later = learner.sample(256, timeout=30, beta=0.5)
        assert all(priorities[key] > SELDOM for key in later.keys.tolist())
        np.testing.assert_allclose(later.weights, (later.probabilities.min() / later.probabilities) ** 0.5, rtol=1e-5)
        assert server.table().delete(keys[:10]) == 10
        assert learner.update_priorities(keys[:20], np.ones(20)) == 10
        assert server.stats()["table/replay/gone"] == 10


def test_one_thread_asks_for_batches_of_several_servers(transport_table: dict[str, Any]) -> None:
    """All of them draw at once, also a batch that is larger than a message. A request that is withdrawn draws nothing."""
    replay = Table("replay", EXAMPLE, capacity=60_000, sampler="uniform", rate_limiter=MinSize(100))
    with ExitStack() as open_:
        places = [transport_table, transport_table | ({"path": f"{transport_table['path']}-2"} if "path" in transport_table else {})]
        servers = [open_.enter_context(Server(tables=[replay], batch_size=1, transport=place)) for place in places]
        clients = [open_.enter_context(Client(server.address, EXAMPLE)) for server in servers]
        pending = [client.sample_begin(n, timeout=30) for client, n in zip(clients, (8, 50_000))]
        given_up = clients[0].sample_begin(8, timeout=30)
        assert soon(lambda: servers[0].stats()["table/replay/draws_waiting"] == 2)
        given_up.withdraw()
        assert soon(lambda: servers[0].stats()["table/replay/draws_waiting"] == 1)
        for number, server in enumerate(servers):
            server.submit_batch(items(1000 * number, 1000 * number + 100))
        for number, one in enumerate(pending):
            sample = one.collect()
            whole(sample.batch)
            assert len(sample.keys) == (8, 50_000)[number] and (sample.batch["number"] // 1000 == number).all()
        assert [server.table().counters()["samples"] for server in servers] == [8, 50_000]
        with pytest.raises(ValueError, match="at least 1"):
            clients[0].sample_begin(0)


def test_batches_are_fetched_ahead_and_no_more_than_asked(transport_table: dict[str, Any]) -> None:
    queue = Table("queue", EXAMPLE, capacity=400, sampler="fifo", rate_limiter=Queue(400))
    with Server(tables=[queue], batch_size=10, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        server.submit_batch(items(0, 400))
        sampled = server.table().counters
        batches = learner.dataset_iter(10, prefetch=3, timeout=30)
        first = next(batches)
        assert first.batch["number"].tolist() == [*range(10)]
        assert soon(lambda: sampled()["samples"] == 40), "the one in hand, and three on the way"
        threading.Event().wait(0.2)
        assert sampled()["samples"] == 40
        rest = [number for _ in range(39) for number in next(batches).batch["number"].tolist()]
        assert rest == [*range(10, 400)], "in order, each once"
        batches.close()


def test_batches_larger_than_a_message_are_whole_in_order_and_the_readers_own(transport_table: dict[str, Any]) -> None:
    example = {"number": np.int64(0), "frame": np.zeros(100_000, np.uint8)}
    queue = Table("queue", example, capacity=125, sampler="fifo", rate_limiter=Queue(125))
    numbers = np.arange(125)
    frames = np.repeat(numbers.astype(np.uint8), 100_000).reshape(125, -1)
    with Server(tables=[queue], batch_size=25, transport=transport_table) as server, Client(server.address, example) as learner:
        server.submit_batch({"number": numbers, "frame": frames})
        batches = learner.dataset_iter(25, prefetch=1, timeout=30)
        drawn = [next(batches).batch for _ in range(4)]
        batches.close()
        for at, batch in enumerate([*drawn]):
            assert batch["number"].tolist() == [*range(25 * at, 25 * at + 25)]
            assert (batch["frame"] == batch["number"].astype(np.uint8)[:, None]).all(), "memory of a batch that is still held was used again"
        drawn[0]["frame"][:] = 0  # writable, and nobody else's


def test_a_batch_of_several_messages_is_one_draw(transport_table: dict[str, Any]) -> None:
    example = {"number": np.int64(0), "frame": np.zeros(100_000, np.uint8)}
    numbers = np.arange(40)
    batch = {"number": numbers, "frame": np.repeat(numbers.astype(np.uint8), 100_000).reshape(40, -1)}
    tables = [
        Table("once", example, capacity=40, sampler={"type": "uniform", "replacement": False}, seed=1),
        Table("best", example, capacity=40, sampler="max_heap"),
        Table("queue", example, capacity=60, sampler="fifo", rate_limiter=Queue(60)),
    ]
    rest = {table.name: example for table in tables[1:]}
    with Server(tables=tables, batch_size=8, transport=transport_table) as server, Client(server.address, example, table="once", tables=rest) as learner:
        for table in tables:
            server.submit_batch(batch, table=table.name, priorities=None if table.name != "best" else numbers + 1.0)
        assert sorted(learner.sample(40, timeout=30).batch["number"].tolist()) == [*range(40)]
        assert sorted(learner.sample(30, timeout=30, table="best").batch["number"].tolist()) == [*range(10, 40)]
        with pytest.raises(EchoTimeoutError):
            learner.sample(41, timeout=0.2, table="queue")
        assert len(server.table("queue")) == 40, "a batch that was not there took some of what was"
        assert learner.sample(40, timeout=30, table="queue").batch["number"].tolist() == [*range(40)]
        threads = [threading.Thread(target=lambda: found.append(set(learner.sample(40, timeout=30).keys.tolist()))) for _ in range(5)]
        found: list[set[int]] = []
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert [len(keys) for keys in found] == [40] * 5, "batches of several threads were mixed up"


def test_a_queue_that_fills_slowly_is_read_in_order(transport_table: dict[str, Any]) -> None:
    queue = Table("queue", EXAMPLE, capacity=16, sampler="fifo", rate_limiter=Queue(16))
    with Server(tables=[queue], batch_size=4, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        batches = learner.dataset_iter(2, prefetch=3, timeout=30)

        def write() -> None:
            for i in range(400):
                server.submit_batch(items(i, i + 1), timeout=30)
                if i % 7 == 0:
                    time.sleep(0.002)

        writer = threading.Thread(target=write)
        writer.start()
        drawn = [number for _ in range(200) for number in next(batches).batch["number"].tolist()]
        writer.join(30)
        assert drawn == [*range(400)]


def test_an_iterator_that_was_closed_draws_nothing_more(transport_table: dict[str, Any]) -> None:
    queue = Table("queue", EXAMPLE, capacity=8, sampler="fifo", rate_limiter=Queue(8))
    with Server(tables=[queue], batch_size=4, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        server.submit_batch(items(0, 4))
        batches = learner.dataset_iter(4, prefetch=2, timeout=600)
        assert next(batches).batch["number"].tolist() == [0, 1, 2, 3]
        batches.close()
        learner.request("ping")  # what was asked before has been answered
        server.submit_batch(items(4, 8))
        assert learner.sample(4, timeout=20).batch["number"].tolist() == [4, 5, 6, 7], "the learner itself waits and draws as before"
