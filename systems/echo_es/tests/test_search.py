"""A server and workers over tcp: states, rewards, joining late, and workers that are killed."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from typing import Any

import numpy as np
import pytest

from echo_es.server import ESServer
from echo_es.workers.evaluation import Eval
from echo_es.workers.worker import Worker

pytestmark = pytest.mark.needs("echo-tcp")
WAIT = 60


@dataclasses.dataclass
class State:
    total: float
    theta: np.ndarray[Any, Any]


class Summing(Worker[State]):
    stopped = 0
    initialized = False
    changes = 0

    def initialize(self) -> State:
        self.initialized = True
        return State(0.0, np.zeros(3, np.float32))

    async def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        await asyncio.sleep(0.005)
        return [Eval(part, [float(epoch * 100 + number) for number in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> State:
        assert rewards == [float(epoch * 100 + number) for number in range(self.population_size)]
        return State(self.state.total + sum(rewards), self.state.theta + 1)

    def on_state_change(self, state: State) -> None:
        self.changes += 1

    def on_stop(self, cancel: bool) -> None:
        self.stopped += 1


def started(worker: Worker[Any]) -> threading.Thread:
    thread = threading.Thread(target=lambda: asyncio.run(worker.start()), daemon=True)
    thread.start()
    return thread


def test_every_epoch_has_its_rewards_and_a_late_joiner_gets_the_state_as_its_dataclass() -> None:
    with ESServer(10, "tcp://127.0.0.1:0", max_epochs=20) as server:
        workers = [Summing(str(server.address), 3)]
        threads = [started(workers[0])]
        while server.rewards is None:
            time.sleep(0.01)
        workers += [Summing(str(server.address), 4) for _ in range(2)]
        threads += [started(worker) for worker in workers[1:]]
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
        total = float(sum(epoch * 100 + number for epoch in range(1, 21) for number in range(10)))
        assert server.state()["total"] == total
        assert server.state(State).theta.tolist() == [20, 20, 20]
        assert [worker.initialized for worker in workers] == [True, False, False]
        assert [type(worker.state) for worker in workers] == [State] * 3
        assert [worker.stopped for worker in workers] == [1, 1, 1]


def test_closing_twice_does_nothing_over_echo() -> None:
    with ESServer(10, "tcp://127.0.0.1:0") as server:
        worker = Summing(str(server.address), 3)
        thread = started(worker)
        while server.rewards is None:
            time.sleep(0.01)
        asyncio.run(worker.close())
        asyncio.run(worker.close())
        thread.join(WAIT)
        assert not thread.is_alive()
        assert worker.stopped == 1
        assert server.stats()["es/workers"] == 0


def test_what_is_unknown_before_start_raises() -> None:
    worker = Summing("tcp://127.0.0.1:1", 3)
    for name in ("id", "population_size", "max_epochs", "state"):
        with pytest.raises(RuntimeError, match=f"{name} is not known yet"):
            getattr(worker, name)
    with pytest.raises(ValueError, match="cores"):
        Summing("tcp://127.0.0.1:1", 0)


def test_slices_that_are_not_covered_are_refused() -> None:
    with pytest.raises(ValueError, match="3 individuals, but there are 2 rewards"):
        Eval.from_flat([slice(0, 2), slice(5, 6)], [1.0, 2.0])
    assert Eval.from_flat([slice(0, 2), slice(5, 6)], [1.0, 2.0, 3.0]) == [(slice(0, 2), [1.0, 2.0]), (slice(5, 6), [3.0])]
