"""What the live views compute, from figures of a server."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from io import StringIO

import numpy as np
import pytest

pytest.importorskip("click")

from echo_core import Client, Queue, Sequences, Server, Steps, Table
from echo_core.base.errors import EchoTimeoutError
from echo_testing.processes import until
from echoctl.commands.top import render, short
from echoctl.view import Watcher

pytestmark = pytest.mark.needs("echo-samplers", "echo-tcp")

EXAMPLE = {"x": np.zeros(2, np.float32)}


@pytest.mark.parametrize(
    ("value", "shown"),
    [(0, "0"), (9_999.4, "9,999"), (9_999.6, "10.0k"), (12_345, "12.3k"), (999_499, "999k"), (999_600, "1.00M"), (1_000_000, "1.00M"), (2.5e9, "2.50G")],
)
def test_counts_stay_short(value: float, shown: str) -> None:
    assert short(value) == shown and len(shown) <= 6


def test_a_table_shows_its_rates_and_whom_its_limiter_holds_since_when() -> None:
    with Server(tables=[Table("queue", EXAMPLE, capacity=10, sampler="fifo", rate_limiter=Queue(10))], batch_size=2) as server:
        watcher = Watcher()
        empty = watcher.look(server.stats()).tables[0]
        assert (empty.size, empty.capacity, empty.holds, empty.since) == (0, 10, "the learner", 0.0)
        again = watcher.look(server.stats()).tables[0]
        assert again.holds == "the learner" and again.since > 0
        for _ in range(10):
            server.submit(EXAMPLE)
        with pytest.raises(EchoTimeoutError):
            server.submit(EXAMPLE, timeout=0)
        full = watcher.look(server.stats())
        (row,) = full.tables
        assert (row.size, row.holds, row.since) == (10, "the workers", 0.0) and row.inserts_per_s > 0 and row.draws_per_s == 0
        assert "Queue(10) allows no insert" in row.why and row.why in full.waits[0]
        server.sample(1)
        (row,) = watcher.look(server.stats()).tables
        assert row.holds == "nobody" and row.draws_per_s > 0 and row.samples_per_insert == pytest.approx(0.2)


def test_the_view_says_who_waits_for_weights_and_what_helps() -> None:
    with Server(EXAMPLE, 2, "tcp://127.0.0.1:0") as server, Client(server.address, EXAMPLE, name="w0") as client, ThreadPoolExecutor(1) as pool:
        watcher, call = Watcher(), pool.submit(client.weights, 60)
        until(lambda: watcher.look(server.stats()).workers[0].state == "waiting for weights", "it waits")
        time.sleep(1.1)  # the view calls a learner waiting that has taken no batch for a second
        (said,) = watcher.look(server.stats()).waits
        assert said == "the learner waits for workers: 1 connected, 1 waiting for weights; the learner has to call publish(); no batch was taken yet"
        server.publish(EXAMPLE)
        call.result()


def test_a_worker_that_waits_again_and_again_waits_since_the_first_time() -> None:
    with Server(EXAMPLE, 2, "tcp://127.0.0.1:0", num_buffers=2) as server:
        client, watcher = Client(server.address, EXAMPLE, name="w0"), Watcher()
        client.send_batch({"x": np.zeros((12, 2), np.float32)})
        since, inserted = 0.0, 0
        for turn in range(4):
            until(lambda turn=turn: (server.peers()[0].state, server.peers()[0].samples) == ("waiting for space", 4 + 2 * turn), "it waits again")
            (worker,) = watcher.look(server.stats()).workers
            assert worker.inserted > inserted and (turn == 0 or worker.since >= since + 0.05)
            since, inserted = worker.since, worker.inserted
            time.sleep(0.05)
            server.sample(10)
        until(lambda: server.peers()[0].samples == 12, "all are there")
        client.close()


def test_inserts_and_draws_have_names_of_their_own() -> None:
    from rich.console import Console

    with Server(EXAMPLE, 2) as server:
        watcher = Watcher()
        watcher.look(server.stats())
        server.submit_batch({"x": np.zeros((6, 2), np.float32)})
        server.sample(10)
        snapshot = watcher.look(server.stats())
        assert snapshot.inserts_per_s == pytest.approx(3 * snapshot.draws_per_s) and snapshot.draws_per_s > 0
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(render(snapshot, "here"))
    text = screen.export_text()
    assert "inserts/s" in text and "draws/s" in text and "samples/s" not in text


def test_a_table_of_steps_is_as_large_as_its_steps() -> None:
    step = {"x": np.zeros(2, np.float32), "reward": np.float32(0)}
    tables = [Table("steps", step, capacity=64, sampler="uniform", items=Sequences(length=2, period=2))]
    with Server(tables=tables, batch_size=2, transport="tcp://127.0.0.1:0") as server, Client(server.address, Steps(step)) as client:
        for _ in range(6):
            client.send(step)
        client.wait(10)
        (row,) = Watcher().look(server.stats()).tables
        assert (row.size, row.capacity) == (6, server.stats()["table/steps/steps_capacity"])


def test_figures_of_others_are_shown() -> None:
    from rich.console import Console

    with Server(EXAMPLE, 2) as server:
        server.add_stats("es", lambda: {"epoch": 1234, "phase": "\x1b[31mred"})
        snapshot = Watcher().look(server.stats())
    assert snapshot.others == {"es/epoch": 1234, "es/phase": "\x1b[31mred"} == snapshot.to_json()["others"]
    screen = Console(width=100, record=True, file=StringIO())
    screen.print(render(snapshot, "here"))
    text = screen.export_text()
    assert "es/epoch 1,234" in text and "es/phase" in text and "\x1b" not in text
