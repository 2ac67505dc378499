"""Which ends of a server end the job, and after which its workers come back to the next server: the rule is that of `echo_core.Server`."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client
from echo_es import ESServer, Eval, Experiment, SepCMAES, Worker, run_worker
from echo_es.log import EpochLog, read_log
from echo_es.server import EXAMPLE
from echo_testing.ports import free_port
from echo_testing.processes import LONG, until

pytestmark = pytest.mark.needs("echo-tcp")
POPULATION = 4
ENDS: list[Any] = [None, KeyboardInterrupt(), SystemExit(), SystemExit(0)]
BREAKS: list[Any] = ["restarting", ValueError("a fault of the program"), SystemExit(1), SystemExit("a reason")]


class Counting(Worker[dict[str, int]]):
    def initialize(self) -> dict[str, int]:
        return {"epochs": 0}

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        return Eval.from_flat(slices, [1.0 for part in slices for _ in range(part.start, part.stop)])

    def optimize(self, epoch: int, rewards: list[float]) -> dict[str, int]:
        return {"epochs": self.state["epochs"] + 1}


class Working:
    """A worker on a thread. It tries for much longer than this test lasts to reach a server again."""

    def __init__(self, kind: str, address: str) -> None:
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(kind, address), daemon=True)
        self._thread.start()

    def _run(self, kind: str, address: str) -> None:
        try:
            if kind == "run_worker":
                run_worker(address, lambda thetas, epoch: -np.sum(thetas**2, axis=1), reconnect=100 * LONG)
            else:
                asyncio.run(Counting(address, 1, reconnect=100 * LONG).start())
        except BaseException as error:
            self.error = error

    def must_begin(self, server: ESServer) -> None:
        until(lambda: server.rewards is not None or self.error is not None, "an epoch is complete")
        assert self.error is None, self.error

    def must_end(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive() and self.error is None, self.error


def serving(kind: str, address: str, log: Path, max_epochs: int = 0) -> ESServer:
    if kind == "run_worker":
        return ESServer(transport=address, strategy=SepCMAES(2, POPULATION), log=log, max_epochs=max_epochs)
    return ESServer(POPULATION, address, log=log, max_epochs=max_epochs)


def leave(server: ESServer, how: Any) -> None:
    """End a server as a program does that ends in this way."""
    if how == "restarting":
        server.close(restarting=True)
    else:
        server.__exit__(None if how is None else type(how), how, None)


def epochs(log: Path) -> int:
    return len(read_log(log).epochs)


@pytest.mark.parametrize("how", ENDS, ids=repr)
@pytest.mark.parametrize("kind", ["run_worker", "Worker"])
def test_the_end_of_the_job_ends_workers(kind: str, how: Any, tmp_path: Path) -> None:
    server = serving(kind, "tcp://127.0.0.1:0", tmp_path / "log").start()
    worker = Working(kind, str(server.address))
    worker.must_begin(server)
    leave(server, how)
    worker.must_end()


@pytest.mark.parametrize("how", BREAKS, ids=repr)
@pytest.mark.parametrize("kind", ["run_worker", "Worker"])
def test_workers_come_back_to_the_next_server_which_finishes_the_search(kind: str, how: Any, tmp_path: Path) -> None:
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    first = serving(kind, address, log).start()
    worker = Working(kind, address)
    worker.must_begin(first)
    leave(first, how)
    done = epochs(log)
    with serving(kind, address, log, max_epochs=done + 3) as second:
        assert second.wait(LONG), second.stats()
        worker.must_end()
    assert [epoch for epoch, _ in read_log(log).epochs] == list(range(1, done + 4))


@pytest.mark.parametrize("kind", ["run_worker", "Worker"])
def test_a_worker_that_waits_for_a_task_comes_back(kind: str, tmp_path: Path) -> None:
    address, log = f"tcp://127.0.0.1:{free_port()}", tmp_path / "log"
    first = serving(kind, address, log).start()
    other = first.coordinator.join("somebody", POPULATION)
    first.coordinator.take(other, lambda task: True)  # it has the first task, and never does it
    worker = Working(kind, address)
    until(lambda: any(one.since and one.task is None for one in first.coordinator.members()), "the worker waits")
    first.close(restarting=True)
    with serving(kind, address, log, max_epochs=2) as second:
        assert second.wait(LONG), second.stats()
        worker.must_end()


def left_by_an_error(server: ESServer, client: Client) -> bool:
    """Leave a server by an exception. Returns whether that has ended the job for a client that has asked for nothing."""
    leave(server, ValueError("a fault of the program"))
    until(lambda: client.ended or not client.stats()["connected"], "the client has noticed the end")
    return client.ended


def test_a_search_that_has_finished_ends_the_job_whatever_is_raised_afterwards() -> None:
    server = ESServer(transport="tcp://127.0.0.1:0", strategy=SepCMAES(2, POPULATION), max_epochs=1).start()
    with Client(server.address, EXAMPLE) as client:
        Working("run_worker", str(server.address)).must_end()
        assert left_by_an_error(server, client)


def test_a_search_that_has_not_finished_goes_on_although_another_one_has() -> None:
    searches = {"short": Experiment(POPULATION, max_epochs=1), "long": Experiment(POPULATION)}
    server = ESServer(searches, "tcp://127.0.0.1:0").start()
    client = Client(server.address, EXAMPLE)
    asyncio.run(Counting(str(server.address), 1, experiment="short").start())
    assert searches["short"].finished and not searches["long"].finished
    assert not left_by_an_error(server, client)
    client.close(0)


@pytest.mark.parametrize("restarting", [False, True])
def test_a_log_that_cannot_be_written_leaves_nothing_open(restarting: bool, tmp_path: Path) -> None:
    class Broken(SepCMAES):
        def init(self, theta: Any, seed: int) -> Any:
            (tmp_path / "a.state.new").mkdir()  # so the state cannot be written
            return super().init(theta, seed)

    searches = {name: Experiment(strategy=kind(2, POPULATION), log=tmp_path / name) for name, kind in (("a", Broken), ("b", SepCMAES))}
    server = ESServer(searches, "tcp://127.0.0.1:0").start()
    with pytest.raises(IsADirectoryError):
        server.close(restarting=restarting)
    assert server.server.closed
    for name in searches:  # another server could open them
        EpochLog(tmp_path / name, read_log(tmp_path / name).search).close()
