"""Over every installed transport the learner's figures and its log say which workers wait, for which table, and why."""

from __future__ import annotations

import re
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_core import Client, EchoTimeoutError, Queue, Server, Stack, Table
from echo_core.base import waiting
from echo_core.plugins import discovery
from echo_core.server.statistics import metrics, waiting_workers

TRANSPORTS = [record.name for record in discovery.installed(discovery.TRANSPORTS) if not record.disabled]
EXAMPLE = {"number": np.int64(0)}

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.parametrize("transport_table", TRANSPORTS, indirect=True)]

FULL = "table 'queue': Queue(4) allows no insert after 4 inserts and 0 samples"
EMPTY = r"table 'stack': Stack(4) allows no batch of 2 from 0 items after 0 inserts and 0 samples"


def soon(condition: Any, what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def test_who_waits_for_whom(
    transport_table: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for module in (waiting_workers, waiting):
        monkeypatch.setattr(module, "LOG_AFTER", 0.3)
    monkeypatch.setattr(metrics.StatsTicker, "INTERVAL", 0.05)
    tables = [
        Table("queue", EXAMPLE, capacity=4, sampler="fifo", rate_limiter=Queue(4)),
        Table("stack", EXAMPLE, capacity=4, sampler="lifo", rate_limiter=Stack(4)),
    ]

    def lines(words: str) -> list[str]:
        return [record.getMessage() for record in caplog.records if words in record.getMessage()]

    with Server(tables=tables, batch_size=2, transport=transport_table) as server:
        assert server.stats()["table/queue/blocked_by"].startswith("table 'queue': Queue(4) allows no batch of 2 from 0 items")
        worker = Client(server.address, EXAMPLE, table="queue", name="digger")
        learner = Client(server.address, EXAMPLE, table="stack", name="thinker")
        sending = threading.Thread(target=worker.send_batch, args=({"number": np.arange(40)},))
        sending.start()
        try:
            soon(lambda: lines("worker digger has waited"), "the log says who waits")
            (line,) = lines("worker digger has waited")
            assert FULL in line and "stack" not in line
            stats = server.stats()
            assert stats["table/queue/blocked"] == "inserts" and FULL in stats["table/queue/blocked_by"]
            assert stats["table/stack/blocked"] == "samples" and EMPTY in stats["table/stack/blocked_by"]
            assert stats["worker/digger/state"] == "waiting for space" and stats["worker/digger/state_s"] >= 0.3
            assert FULL in stats["worker/digger/waits_for"]
            with pytest.raises(EchoTimeoutError) as late:
                learner.sample(2, timeout=1)
            assert str(late.value).startswith("sample() waited 1 s: " + EMPTY)
            assert [EMPTY in line for line in lines("sample() has waited")] == [True]
            threading.Event().wait(0.5)
            assert len(lines("worker digger has waited")) == 1, "once for each wait"
            assert waiting_workers.BlockedWorkers().look(server) == 0.0, "it must be looked at again soon"
            seen: list[int] = []
            while len(seen) < 40:
                seen += server.sample(timeout=30).batch["number"].tolist()
            assert seen == [*range(40)]
            worker.wait(30)
            soon(lambda: server.stats()["table/queue/blocked"] == "samples", "nobody fills it any more")
            soon(lambda: waiting_workers.BlockedWorkers().look(server) == 0.3, "nobody waits, and a wait that begins now is not logged before")
        finally:
            server.close()
            sending.join(30)
            learner.close()
            worker.close()


def test_a_worker_that_a_rate_limiter_holds_is_told_so(transport_table: dict[str, Any]) -> None:
    table = Table("replay", EXAMPLE, capacity=1000, sampler="uniform", rate_limiter=Queue(4))
    with Server(tables=[table], batch_size=2, transport=transport_table) as server, Client(server.address, EXAMPLE, window_bytes=4096) as client:
        with pytest.raises(EchoTimeoutError) as first:
            for _ in range(100_000):
                client.send(EXAMPLE, timeout=1)
        errors = [first]
        deadline = time.monotonic() + 60
        while "the learner sa" not in str(errors[-1].value):  # on a busy machine, the learner may be asked more than once
            assert time.monotonic() < deadline, errors
            with pytest.raises(EchoTimeoutError) as again:
                client.wait(1)
            errors.append(again)
        assert re.search(r"the learner says: table 'replay': Queue\(4\).* allows no insert after 4 inserts and 0 samples", str(errors[-1].value))
        assert not any("the learner's store is full" in str(error.value) for error in errors)
        with pytest.raises(EchoTimeoutError, match="the learner (says|said . s ago): table 'replay'"):
            client.wait(1)
        with pytest.raises(EchoTimeoutError):
            client.close(0)
