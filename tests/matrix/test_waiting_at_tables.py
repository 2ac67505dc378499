"""Over every installed transport clients wait at the tables of a server: many of them, in several threads and processes, for all kinds of tables."""

from __future__ import annotations

import multiprocessing
import threading
from typing import Any

import numpy as np
import pytest

from echo_core import Client, Queue, Sequences, Server, Steps, Table
from echo_core.base import waiting
from echo_core.plugins import discovery
from echo_core.wire.transport import Connection
from echo_testing.processes import until

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0)}

spawning = multiprocessing.get_context("spawn")
pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)]


def numbers(start: int, stop: int) -> dict[str, Any]:
    return {"number": np.arange(start, stop)}


def queue(name: str = "queue", example: Any = EXAMPLE, size: int = 1000, **options: Any) -> Table:
    return Table(name, example, capacity=size, sampler="fifo", rate_limiter=Queue(size), **options)


def draws_wait(server: Server, count: int, table: str = "queue") -> None:
    until(lambda: server.stats()[f"table/{table}/draws_waiting"] == count, f"{count} draws wait at {table!r}")


def drawing(call: Any) -> tuple[threading.Thread, list[Any]]:
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    return thread, found


def work(address: str, threads: int, pipe: Any) -> None:
    """Learners that draw, report and acknowledge item by item, until they are killed."""
    client, lock = Client(address, EXAMPLE, timeout=600), threading.Lock()

    def learn() -> None:
        while True:
            sample = client.sample(1)
            if client.ack(sample.keys) == 0:
                continue  # over rdma a killed neighbour can cost the connection, and then another learner may get the item
            with lock:  # a killed process does not leave half a report: these are atomic
                pipe.send(int(sample.batch["number"][0]))

    for _ in range(threads):
        threading.Thread(target=learn).start()


def test_learners_that_are_killed_while_they_wait_or_draw_lose_nothing(transport_table: dict[str, Any]) -> None:
    with Server(tables=[queue(lease_timeout=3600)], batch_size=1, transport=transport_table) as server:
        reports, learners = [], []
        seen: set[int] = set()
        lock = threading.Lock()

        def listen(pipe: Any) -> None:
            try:
                while True:
                    number = pipe.recv()
                    with lock:
                        assert number not in seen
                        seen.add(number)
            except EOFError:
                pass

        for _ in range(3):
            here, there = spawning.Pipe(duplex=False)
            learners.append(spawning.Process(target=work, args=(str(server.address), 4, there), daemon=True))
            learners[-1].start()
            there.close()
            reports.append(threading.Thread(target=listen, args=(here,)))
            reports[-1].start()
        try:
            draws_wait(server, 12)
            learners[0].kill()
            draws_wait(server, 8)
            server.submit_batch(numbers(0, 300))
            until(lambda: len(seen) > 20, "they learn")
            learners[1].kill()
            table = server.table()
            until(lambda: table.counters()["acknowledged"] == 300 and server.stats()["table/queue/draws_waiting"] == 4, "the others do the rest")
        finally:
            for learner in learners:
                learner.kill()
                learner.join()
            for report in reports:
                report.join(60)
        assert len(seen) >= 300 - 4, "only what the killed one had acknowledged and not reported is missing"


def test_threads_of_one_client_wait_beside_each_other(transport_table: dict[str, Any]) -> None:
    with Server(tables=[queue()], batch_size=1, transport=transport_table) as server, Client(server.address, EXAMPLE, timeout=60) as client:
        calls = [drawing(lambda: [client.sample(2).batch["number"].tolist() for _ in range(5)]) for _ in range(20)]
        draws_wait(server, 20)
        client.send(EXAMPLE)  # samples, requests and weights pass those that wait
        client.wait(60)
        assert client.request("ping", blob=b"here")[1] == b"here"
        server.publish({"w": np.zeros(3)})
        assert client.weights(60).version == 1
        for start in range(1, 200, 7):
            server.submit_batch(numbers(start, min(start + 7, 200)))
        for thread, _ in calls:
            thread.join(60)
        drawn = [pair for _, found in calls for pair in found[0]]
        assert sorted(number for pair in drawn for number in pair) == [0, *range(1, 200)]
        assert all(second - first == 1 for first, second in drawn)


def test_iterators_mixtures_and_items_over_steps_wait(transport_table: dict[str, Any]) -> None:
    steps = Table("steps", EXAMPLE, capacity=100, items=Sequences(4), sampler="uniform", seed=0)
    tables = [queue("a"), queue("b"), steps]
    examples = {"b": EXAMPLE, "steps": Steps(EXAMPLE)}
    with (
        Server(tables=tables, batch_size=1, transport=transport_table) as server,
        Client(server.address, EXAMPLE, table="a", tables=examples, timeout=60) as client,
    ):
        thread, found = drawing(lambda: client.sample_mixture({"a": 0.5, "b": 0.5}, 4).batch["number"].tolist())
        draws_wait(server, 1, "a")
        server.submit_batch(numbers(0, 2), table="a")
        draws_wait(server, 1, "b")
        server.submit_batch(numbers(10, 12), table="b")
        thread.join(60)
        assert found == [[0, 1, 10, 11]]
        thread, found = drawing(lambda: client.sample(1, table="steps").batch["number"].tolist())
        draws_wait(server, 1, "steps")
        for step in range(4):
            client.send({"number": np.int64(step)}, table="steps", end="terminated" if step == 3 else None)
        client.flush()
        thread.join(60)
        assert found == [[[0, 1, 2, 3]]] or found == [[[0], [1], [2], [3]]]
        batches = client.dataset_iter(2, prefetch=2)
        thread, found = drawing(lambda: [next(batches).batch["number"].tolist() for _ in range(3)])
        draws_wait(server, 1, "a")
        for number in range(6):
            server.submit_batch(numbers(number, number + 1), table="a")
        thread.join(60)
        assert found == [[[0, 1], [2, 3], [4, 5]]]


def test_a_batch_of_several_messages_waits_and_is_whole(transport_table: dict[str, Any]) -> None:
    example = {"number": np.int64(0), "frame": np.zeros(100_000, np.uint8)}
    tables = [queue("queue", example, 60)]
    with Server(tables=tables, batch_size=1, transport=transport_table) as server, Client(server.address, example, timeout=60) as client:
        thread, found = drawing(lambda: client.sample(30).batch)
        draws_wait(server, 1)
        for start in range(0, 30, 5):
            at = np.arange(start, start + 5)
            server.submit_batch({"number": at, "frame": np.repeat(at.astype(np.uint8), 100_000).reshape(5, -1)})
        thread.join(60)
        assert found[0]["number"].tolist() == [*range(30)] and (found[0]["frame"] == np.arange(30, dtype=np.uint8)[:, None]).all()


def test_a_long_wait_is_logged_once_and_keeps_its_place(
    transport_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(waiting, "LOG_AFTER", 2.0)
    with (
        Server(tables=[queue()], batch_size=1, transport=transport_table) as server,
        Client(server.address, EXAMPLE, timeout=60) as first,
        Client(server.address, EXAMPLE, timeout=60) as second,
    ):
        calls = [drawing(lambda: first.sample(1).batch["number"].tolist())]
        draws_wait(server, 1)
        calls.append(drawing(lambda: second.sample(1).batch["number"].tolist()))
        draws_wait(server, 2)
        until(lambda: sum("sample() has waited" in record.getMessage() for record in caplog.records) == 2, "both log why they wait")
        until(lambda: server.stats()["clients/parked"] == 2, "both have come back")
        server.submit_batch(numbers(0, 1))
        calls[0][0].join(60)
        assert calls[0][1] == [[0]] and not calls[1][1]
        server.submit_batch(numbers(1, 2))
        calls[1][0].join(60)
        assert calls[1][1] == [[1]]
        assert sum("waited" in record.getMessage() for record in caplog.records) == 2, "once for each wait"


def test_a_connection_that_can_only_request_waits_as_well(transport_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a transport's `Connection` only `request` is needed."""
    with Server(tables=[queue()], batch_size=1, transport=transport_table) as server, Client(server.address, EXAMPLE, timeout=60) as client:
        monkeypatch.setattr(client._requests, "_ask", lambda op, body, blob=b"": Connection.ask(client._connection, op, body, blob))
        thread, found = drawing(lambda: client.sample(1).batch["number"].tolist())
        draws_wait(server, 1)
        server.submit_batch(numbers(0, 1))
        thread.join(60)
        assert found == [[0]]
