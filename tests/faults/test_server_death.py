"""Servers that die or restart: no call of a client hangs, and workers carry on with the next."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from rig.ledger import Consumer
from rig.processes import Child
from rig.workers import flood, learner, rows

from echo_core import Client, ClosedError, ConnectionClosedError, EchoTimeoutError, Server
from echo_core.base.plural import counted
from echo_testing.processes import returns, until
from echo_testing.samples import example, stacked

GIVE_UP = 2.0  # seconds for which clients of a dead learner try again
LARGE = 100_000  # bytes; few of them fill every buffer on the way


def fill(client: Client, filler: int) -> None:
    """Send until there is no room left anywhere."""
    (sample,) = rows(0, 0, 1, filler)
    with pytest.raises(EchoTimeoutError):
        while True:
            client.send(sample, timeout=0.3)


def send_for_ever(client: Client) -> None:
    (sample,) = rows(0, 0, 1, LARGE)
    while True:
        client.send(sample)


BLOCKED: dict[str, Callable[[Client], Any]] = {
    "send": send_for_ever,
    "send_batch": lambda client: client.send_batch(stacked(0, 0, 64, LARGE)),
    "flush": lambda client: (client.flush(), client.wait()),
    "wait": lambda client: client.wait(),
    "weights": lambda client: client.weights(),
    "request": lambda client: client.server_stats(),
    "close": lambda client: client.close(),
}


def test_kill_9_of_the_server_ends_every_call(start: Callable[..., Child]) -> None:
    server = start(learner, 0, 4, LARGE)
    address = f"tcp://127.0.0.1:{server.hear()}"
    clients = {
        name: Client(address, example(LARGE), name=name, timeout=GIVE_UP) for name in BLOCKED
    }
    server.freeze()  # so that every call is under way, and waits, when it dies
    for name in ("send_batch", "flush", "wait", "close"):
        fill(clients[name], LARGE)
    outcomes: dict[str, Any] = {}
    calls = BLOCKED | {"connect": lambda _: Client(address, example(LARGE), timeout=2 * GIVE_UP)}
    threads = [
        threading.Thread(
            target=lambda name=name, call=call: outcomes.update(
                {name: returns(lambda: call(clients.get(name)), within=30)}
            )
        )
        for name, call in calls.items()
    ]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    assert not outcomes
    server.kill()
    for thread in threads:
        thread.join()
    for name, outcome in outcomes.items():
        expected = (ConnectionClosedError, EchoTimeoutError)
        assert isinstance(outcome, expected), f"{name}: {outcome!r}"
        assert address in str(outcome) or "closed" in str(outcome), f"{name}: {outcome}"
    assert set(outcomes) == set(calls)
    for name, client in clients.items():
        left = client.stats()["unacknowledged"]
        closing = returns(client.close)
        if left and name != "close":
            assert isinstance(closing, ConnectionClosedError)
            assert f"{counted(left, 'sample')} not acknowledged" in str(closing)
        else:
            assert closing is None
        for call in (lambda c=client: c.send(rows(0, 0, 1, LARGE)[0]), client.flush, client.wait):
            assert isinstance(returns(call), ClosedError)


def test_kill_9_of_the_server_in_a_flood(start: Callable[..., Child]) -> None:
    server = start(learner, 0, 64, 48)
    address = f"tcp://127.0.0.1:{server.hear()}"
    workers = [start(flood, address, maker, 48, None, {"timeout": GIVE_UP}) for maker in range(3)]
    for worker in workers:
        assert worker.hear() == "ready"
    until(lambda: all(w.ask("?")["acknowledged"] > 1000 for w in workers), "the flood is on")
    server.kill()
    for worker in workers:
        with pytest.raises(AssertionError, match=r"ConnectionClosedError|EchoTimeoutError"):
            while True:
                worker.hear(within=30)


@pytest.mark.parametrize("end", ["kill -9", "close"])
@pytest.mark.parametrize("filler", [48, LARGE])
def test_workers_carry_on_with_a_restarted_server(
    end: str, filler: int, serve: Callable[..., Server], start: Callable[..., Child]
) -> None:
    before = start(learner, 0, 16, filler)
    port = before.hear()
    address = f"tcp://127.0.0.1:{port}"
    workers = [start(flood, address, maker, filler) for maker in range(2)]
    for worker in workers:
        assert worker.hear() == "ready"
    until(lambda: all(w.ask("?")["acknowledged"] > 50 for w in workers), "the flood is on")
    if end == "close":
        before.ask("stop")
        before.end()
    else:
        before.kill()
    until(lambda: not any(_connected(w) for w in workers), "they have noticed")
    acknowledged = [_counters(worker)["acknowledged"] for worker in workers]

    server = serve(batch_size=16, filler=filler, transport={"port": port})
    # All that the first learner had not confirmed, and nothing that it had.
    with Consumer(server, first=dict(enumerate(acknowledged))) as consumer:
        for maker in range(2):
            consumer.wait_for(maker, 200)
        sent = []
        for worker in workers:
            counters = worker.ask("stop")
            assert counters["learner_restarts"] == 1
            assert counters["reconnects"] == 1
            assert counters["unacknowledged"] == 0
            sent.append(counters["samples"])
            worker.end()
        consumer.finish().check({maker: sent[maker] - acknowledged[maker] for maker in range(2)})


def _counters(worker: Child) -> dict[str, Any]:
    return worker.ask("?", within=40)


def _connected(worker: Child) -> bool:
    return bool(_counters(worker)["connected"])


def test_sample_and_weights_go_on_without_workers_and_servers(serve: Callable[..., Server]) -> None:
    server = serve(batch_size=4)
    with Client(server.address, example()) as client:
        client.send_batch(stacked(0, 0, 3))
        client.wait()
        server.publish({"w": np.arange(3)})
        assert client.weights().version == 1
    with pytest.raises(EchoTimeoutError, match="samples there: 3 of 4"):
        server.sample(timeout=0.1)
    waiting: list[Any] = []
    thread = threading.Thread(target=lambda: waiting.append(server.sample()))
    thread.start()
    time.sleep(0.1)
    server.close()
    thread.join(20)
    assert waiting == [None]
