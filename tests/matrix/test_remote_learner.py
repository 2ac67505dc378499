"""A learner in another process or machine, over every installed transport: what it draws, fetched ahead, and what it sends back."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Queue, Server, Table, plugins

TRANSPORTS = [record.name for record in plugins.installed(plugins.TRANSPORTS) if not record.disabled]
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


def test_batches_are_fetched_ahead_and_no_more_than_asked(transport_table: dict[str, Any]) -> None:
    queue = Table("queue", EXAMPLE, capacity=400, sampler="fifo", rate_limiter=Queue(400))
    with Server(tables=[queue], batch_size=10, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        server.submit_batch(items(0, 400))
        sampled = server.table().counters
        batches = learner.dataset_iter(10, prefetch=3, timeout=30)
        first = next(batches)
        assert first.batch["number"].tolist() == [*range(10)]
        # The one in hand, three that wait, and one for which there is no room yet.
        assert soon(lambda: sampled()["samples"] >= 40), sampled()
        threading.Event().wait(0.2)
        assert sampled()["samples"] <= 50
        rest = [number for _ in range(39) for number in next(batches).batch["number"].tolist()]
        assert rest == [*range(10, 400)], "in order, each once"
        batches.close()


def test_closing_an_iterator_ends_the_wait_for_its_next_batch(transport_table: dict[str, Any]) -> None:
    queue = Table("queue", EXAMPLE, capacity=8, sampler="fifo", rate_limiter=Queue(8))
    with Server(tables=[queue], batch_size=4, transport=transport_table) as server, Client(server.address, EXAMPLE) as learner:
        server.submit_batch(items(0, 4))
        batches = learner.dataset_iter(4, prefetch=2, timeout=600)
        assert next(batches).batch["number"].tolist() == [0, 1, 2, 3]
        (fetching,) = [thread for thread in threading.enumerate() if thread.name == "echo-prefetch"]
        batches.close()
        fetching.join(20)
        assert not fetching.is_alive(), "it waits for a batch that nobody will read"
        server.submit_batch(items(4, 8))
        assert learner.sample(4, timeout=20).batch["number"].tolist() == [4, 5, 6, 7], "the learner itself waits and draws as before"
