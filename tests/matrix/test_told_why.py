"""Over every installed transport, the error of a worker that waits in vain has the learner's own reason, whatever call waited, and how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, Queue, SampleToInsertRatio, Sequences, Server, Steps, Table
from echo_core.base import waiting
from echo_core.client import explained
from echo_core.plugins import discovery
from echo_core.server.statistics import metrics, waiting_workers

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0)}
STEP = {"number": np.int64(0), "reward": np.float32(0)}
FEW = {"number": np.arange(3)}

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")
over_all = pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)

SHORT = 0.3  # seconds


@contextmanager
def blocked(server: Server, example: Any, **options: Any) -> Iterator[Client]:
    """A client whose window is full, because the server takes no more samples."""
    client = Client(server.address, example, max_inflight_msgs=4, **options)
    try:
        fill(client.send, STEP if isinstance(example, Steps) else example)
        yield client
    finally:
        with suppress(EchoTimeoutError):
            client.close(0)


def fill(send: Callable[..., None], *arguments: Any, **named: Any) -> None:
    with pytest.raises(EchoTimeoutError):
        for _ in range(1000):
            send(*arguments, timeout=SHORT, **named)


def told(call: Callable[[], Any]) -> str:
    """The error of a call that waits in vain. It is called again if the machine was too busy for the learner to answer in time."""
    deadline = time.monotonic() + 60
    while True:
        with pytest.raises(EchoTimeoutError) as caught:
            call()
        text = str(caught.value)
        if "the learner sa" in text:
            assert "learner is slow" not in text, "no guess beside the reason"
            return text
        assert time.monotonic() < deadline, f"no reason: {text}"


def queue(name: str, **more: Any) -> Table:
    return Table(name, EXAMPLE, capacity=1000, sampler="fifo", rate_limiter=Queue(4), **more)


@over_all
def test_every_call_that_waits_for_space_is_told_of_the_limiter(transport_table: dict[str, Any]) -> None:
    reason = "table 'replay': Queue(4) allows no insert after 4 inserts and 0 samples"
    with Server(tables=[queue("replay")], batch_size=2, transport=transport_table) as server, blocked(server, EXAMPLE) as client:
        for call in (
            lambda: client.send(EXAMPLE, SHORT),
            lambda: client.send_batch(FEW, SHORT),
            lambda: client.send(EXAMPLE, SHORT, priority=1.0),  # waits for the samples without labels, which come first
            lambda: client.wait(SHORT),
            lambda: client.reserve(SHORT).commit(),
        ):
            assert reason in told(call)
        with pytest.raises(EchoTimeoutError) as caught:
            client.close(SHORT)
        assert reason in str(caught.value)


@over_all
def test_a_send_to_another_table_is_told_of_that_table(transport_table: dict[str, Any]) -> None:
    tables = [Table("first", EXAMPLE, capacity=1000, sampler="uniform"), queue("second")]
    with (
        Server(tables=tables, batch_size=2, transport=transport_table) as server,
        Client(server.address, EXAMPLE, tables={"second": EXAMPLE}, max_inflight_msgs=4) as client,
    ):
        client.send(EXAMPLE)
        fill(client.send, EXAMPLE, table="second")
        for call in (
            lambda: client.send(EXAMPLE, SHORT, table="second"),
            lambda: client.send_batch(FEW, SHORT, table="second"),
            lambda: client.wait(SHORT),
        ):
            assert "table 'second': Queue(4) allows no insert" in told(call)
        with pytest.raises(EchoTimeoutError, match=r"table 'second': Queue\(4\)"):
            client.close(SHORT)


@over_all
def test_labelled_samples_are_told(transport_table: dict[str, Any]) -> None:
    table = Table("replay", EXAMPLE, capacity=1000, sampler="prioritized", rate_limiter=Queue(4))
    with (
        Server(tables=[table], batch_size=2, transport=transport_table) as server,
        Client(server.address, EXAMPLE, max_inflight_msgs=4) as client,
    ):
        fill(client.send, EXAMPLE, priority=1.0)
        for call in (
            lambda: client.send(EXAMPLE, SHORT, priority=2.0),
            lambda: client.send(EXAMPLE, SHORT),
            lambda: client.send_batch(FEW, SHORT, priorities=[1, 2, 3]),
        ):
            assert "table 'replay': Queue(4) allows no insert" in told(call)
        with suppress(EchoTimeoutError):
            client.close(0)


@over_all
def test_steps_are_told(transport_table: dict[str, Any]) -> None:
    table = Table(
        "steps", STEP, capacity=64, sampler="uniform", items=Sequences(length=2, period=1), rate_limiter=SampleToInsertRatio(1.0, 2, 2.0)
    )
    with Server(tables=[table], batch_size=2, transport=transport_table) as server, blocked(server, Steps(STEP)) as client:
        for call in (
            lambda: client.send(STEP, SHORT),
            lambda: client.send(STEP, SHORT, end="terminated"),
            lambda: client.send_batch({name: np.repeat(leaf, 3) for name, leaf in STEP.items()}, SHORT),
            lambda: client.end_episode(timeout=SHORT),
        ):
            assert "table 'steps': SampleToInsertRatio(" in told(call)


@over_all
def test_items_that_nobody_acknowledged_are_named(transport_table: dict[str, Any]) -> None:
    table = Table("jobs", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4), lease_timeout=600)
    with Server(tables=[table], batch_size=4, transport=transport_table) as server:
        server.submit_batch({"number": np.arange(4)})
        kept = server.sample(10)
        with blocked(server, EXAMPLE) as client:
            reason = "items that a learner was given and has not acknowledged (ack(keys)) take up the room: 4"
            assert reason in told(lambda: client.wait(SHORT))
            server.ack(kept.keys)
            client.wait(30)


@over_all
def test_batches_that_the_learner_keeps_are_named(
    transport_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (waiting_workers, waiting):
        monkeypatch.setattr(module, "LOG_AFTER", 0.3)
    monkeypatch.setattr(metrics.StatsTicker, "INTERVAL", 0.05)
    leased = "all 2 batch buffers are leased to batches the learner still holds"
    with Server(EXAMPLE, 2, num_buffers=2, transport=transport_table) as server:
        server.submit_batch({"number": np.arange(4)})
        kept = [server.sample(10), server.sample(10)]
        with blocked(server, EXAMPLE, name="digger") as client:
            assert leased in told(lambda: client.wait(SHORT))
            deadline = time.monotonic() + 30
            while not (lines := [line for line in caplog.messages if "worker digger" in line and "for space" in line]):
                assert time.monotonic() < deadline, "the learner's log says it too"
                threading.Event().wait(0.02)
            assert all(leased in line for line in lines), lines
            stats = server.stats()
            if stats["worker/digger/state"] == "waiting for space":
                assert leased in str(stats["worker/digger/waits_for"])
            del kept
            server.sample(10)
            client.wait(30)


def test_the_log_names_the_table_that_the_worker_waits_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(waiting_workers, "LOG_AFTER", 0.1)
    monkeypatch.setattr(metrics.StatsTicker, "INTERVAL", 0.05)
    tables = [queue("full"), Table("jobs", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4), lease_timeout=600)]
    with Server(tables=tables, batch_size=4, transport="tcp://127.0.0.1:0") as server:
        for table in ("full", "jobs"):
            server.submit_batch({"number": np.arange(4)}, table=table)
        kept = server.sample(10, table="jobs")  # nobody waits for the other table, whose limiter is closed too
        with blocked(server, EXAMPLE, table="jobs", name="digger"):
            deadline = time.monotonic() + 30
            while not (lines := [line for line in caplog.messages if "worker digger has waited" in line]):
                assert time.monotonic() < deadline
                threading.Event().wait(0.02)
            assert "table 'jobs': items that a learner was given and has not acknowledged" in lines[0] and "'full'" not in lines[0]
            assert str(server.stats()["worker/digger/waits_for"]).startswith("table 'jobs': items that a learner was given and has not acknowledged")
        assert len(kept.keys) == 4


def test_short_waits_connect_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explained, "KEPT_SECONDS", 3600.0)
    with Server(tables=[queue("replay")], batch_size=2, transport="tcp://127.0.0.1:0") as server, blocked(server, EXAMPLE) as client:
        told(lambda: client.send(EXAMPLE, SHORT))
        before = server.stats()["transport/tcp/connections_total"]
        for _ in range(5):
            assert "Queue(4)" in told(lambda: client.send(EXAMPLE, 0.01))
        assert "Queue(4)" in told(lambda: client.send(EXAMPLE, 0))  # the answer is here already
        assert server.stats()["transport/tcp/connections_total"] == before


def test_a_call_that_may_not_wait_asks_nobody() -> None:
    with Server(tables=[queue("replay")], batch_size=2, transport="tcp://127.0.0.1:0") as server:
        client = Client(server.address, EXAMPLE, max_inflight_msgs=4)
        with pytest.raises(EchoTimeoutError) as caught:
            for _ in range(100_000):
                client.send(EXAMPLE, timeout=0)
                threading.Event().wait(0.001)
        assert "the learner sa" not in str(caught.value) and "learner is slow" not in str(caught.value)
        assert server.stats()["transport/tcp/connections_total"] == 1
        with pytest.raises(EchoTimeoutError):
            client.close(0)


def test_a_request_that_waits_behind_samples_is_told() -> None:
    with Server(tables=[queue("replay")], batch_size=2, transport="tcp://127.0.0.1:0") as server, blocked(server, EXAMPLE) as client:
        assert "table 'replay': Queue(4) allows no insert" in told(lambda: client.server_stats(SHORT))


def test_flush_is_told() -> None:
    large = {"bytes": np.zeros(1 << 20, np.uint8)}
    table = Table("replay", large, capacity=1000, sampler="uniform", rate_limiter=Queue(4))
    with Server(tables=[table], batch_size=2, transport="tcp://127.0.0.1:0") as server:
        client = Client(server.address, large, window_bytes=128 << 20)
        client.send_batch({"bytes": np.zeros((100, 1 << 20), np.uint8)})
        assert "table 'replay': Queue(4) allows no insert" in told(lambda: client.flush(SHORT))
        with pytest.raises(EchoTimeoutError):
            client.close(0)


def test_a_token_for_writing_is_enough() -> None:
    tokens = f"write:{'w' * 32}\nread:{'r' * 32}"
    with (
        Server(tables=[queue("replay")], batch_size=2, transport="tcp://127.0.0.1:0", token=tokens) as server,
        blocked(server, EXAMPLE, token="w" * 32) as client,
    ):
        assert "table 'replay': Queue(4) allows no insert" in told(lambda: client.wait(SHORT))
