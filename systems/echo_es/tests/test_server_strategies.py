"""Searches in which the server optimises: only rewards travel up, and the result is that of one process."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoError
from echo_es import ESServer, run_worker
from echo_es.experiments import parameters
from echo_es.server import EXAMPLE
from echo_es.strategies import OpenAIES, SepCMAES, Strategy

pytestmark = pytest.mark.needs("echo-tcp")
WAIT = 60
DIMS, EPOCHS = 12, 25


@pytest.fixture(params=["within tasks", "as weights"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How parameters travel."""
    if request.param == "as weights":
        monkeypatch.setattr(parameters, "SMALL", 0)
    return str(request.param)


def sphere(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    return -np.sum((thetas - 1.0) ** 2, axis=1)


def strategies() -> list[Strategy]:
    return [OpenAIES(DIMS, 20, sigma=0.1, lr=0.1), SepCMAES(DIMS, 20)]


@pytest.mark.parametrize("strategy", strategies(), ids=["openai_es", "sep_cma_es"])
def test_the_result_is_that_of_one_process(strategy: Strategy, way: str) -> None:
    state = strategy.init(np.zeros(DIMS), 7)
    for epoch in range(1, EPOCHS + 1):
        state = strategy.tell(state, sphere(strategy.ask(state, range(strategy.population)), epoch))
    with ESServer(transport="tcp://127.0.0.1:0", strategy=strategy, seed=7, max_epochs=EPOCHS) as server:
        threads = [threading.Thread(target=run_worker, args=(server.address, sphere), kwargs={"cores": cores}, daemon=True) for cores in (3, 4, 5)]
        for thread in threads:
            thread.start()
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        np.testing.assert_array_equal(server.theta, strategy.theta(state))
        assert server.best is not None and server.rewards is not None and server.best[0] >= server.rewards[1].max()
        assert server.stats()["es/epoch"] == EPOCHS + 1
        assert (server.stats()["transport/tcp/weights_sent"] > 0) is (way == "as weights")


@pytest.mark.parametrize(
    "scheme",
    [pytest.param(scheme, marks=pytest.mark.needs(f"echo-{scheme}")) for scheme in ("shm", "grpc", "rdma")],
)
def test_every_transport_carries_a_search(scheme: str, way: str, tmp_path: Path) -> None:
    strategy = strategies()[1]
    state = strategy.init(np.zeros(DIMS), 7)
    for epoch in range(1, 6):
        state = strategy.tell(state, sphere(strategy.ask(state, range(strategy.population)), epoch))
    address = f"shm://{tmp_path}/search" if scheme == "shm" else f"{scheme}://127.0.0.1:0"
    with ESServer(transport=address, strategy=strategy, seed=7, max_epochs=5) as server:
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(server.address)]) for _ in range(2)]
        try:
            assert server.wait(WAIT)
            for worker in workers:
                assert worker.wait(WAIT) == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        np.testing.assert_array_equal(server.theta, strategy.theta(state))


WORKER = """
import sys, time
import numpy as np
from echo_es import run_worker

def evaluate(thetas, epoch):
    time.sleep(0.02)
    return -np.sum((thetas - 1.0) ** 2, axis=1)

run_worker(sys.argv[1], evaluate, cores=3)
"""


def test_a_killed_worker_changes_nothing(way: str) -> None:
    strategy = strategies()[0]
    state = strategy.init(np.zeros(DIMS), 7)
    for epoch in range(1, EPOCHS + 1):
        state = strategy.tell(state, sphere(strategy.ask(state, range(strategy.population)), epoch))
    with ESServer(transport="tcp://127.0.0.1:0", strategy=strategy, seed=7, max_epochs=EPOCHS, grace=0.5) as server:
        workers = [subprocess.Popen([sys.executable, "-c", WORKER, str(server.address)]) for _ in range(3)]
        try:
            deadline = time.monotonic() + WAIT
            while server.coordinator.epoch < 5:
                assert time.monotonic() < deadline
                time.sleep(0.01)
            workers[0].kill()
            workers.append(subprocess.Popen([sys.executable, "-c", WORKER, str(server.address)]))
            assert server.wait(WAIT)
            for worker in workers[1:]:
                assert worker.wait(WAIT) == 0
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()
        np.testing.assert_array_equal(server.theta, strategy.theta(state))


def test_arguments_that_exclude_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="30 is not that of the strategy, 20"):
        ESServer(30, strategy=strategies()[0])
    with pytest.raises(ConfigError, match="give one of the two"):
        ESServer(30, "tcp://127.0.0.1:0", evochi="127.0.0.1:0")
    with pytest.raises(ConfigError, match="population must be a whole number from 1"):
        ESServer()
    with ESServer(4, "tcp://127.0.0.1:0") as server:
        with pytest.raises(EchoError, match="this server has no strategy"):
            run_worker(server.address, sphere)
        with pytest.raises(ConfigError, match="only they know"):
            _ = server.theta


def test_what_the_strategy_raises_ends_the_search() -> None:
    class Broken(OpenAIES):
        def tell(self, state: Any, rewards: Any) -> Any:
            raise ArithmeticError("these rewards cannot be told")

        def describe(self) -> dict[str, Any]:
            return {**super().describe(), "strategy": "OpenAIES"}

    with ESServer(transport="tcp://127.0.0.1:0", strategy=Broken(DIMS, 20)) as server:
        run_worker(server.address, sphere, cores=20)
        with pytest.raises(ArithmeticError, match="cannot be told"):
            server.wait(WAIT)


def test_rewards_of_another_number_end_the_worker() -> None:
    with ESServer(transport="tcp://127.0.0.1:0", strategy=strategies()[0]) as server, pytest.raises(ValueError, match="called with 5 candidates"):
        run_worker(server.address, lambda thetas, epoch: [1.0], cores=5)


def test_the_state_of_another_search_is_not_taken_for_one_of_this_search() -> None:
    """A worker that comes back to a new server at the same address gets that server's state, whatever version it had."""
    kinds = []
    with ESServer(4, "tcp://127.0.0.1:0") as server:
        server.coordinator.resume([], 3, b"state", [])
        for run in ("of another search", None):
            with Client(server.address, EXAMPLE) as client:
                own = client.request("es/join", {"api": 1, "cores": 2, "run": run, "version": 3})[0]["run"]
                if run is None:
                    client.request("es/leave", {})
                    client.request("es/join", {"api": 1, "cores": 2, "run": own, "version": 3})
                kinds.append(client.request("es/next", {}, timeout=WAIT)[0]["kind"])
    assert kinds == ["welcome", "evaluate"]


def test_a_program_that_is_started_again_under_its_client_id_gets_the_state_first() -> None:
    kinds = []
    with ESServer(4, "tcp://127.0.0.1:0") as server:
        server.coordinator.resume([], 3, b"state", [])
        for _ in range(2):
            with Client(server.address, EXAMPLE, client_id="5e" * 16) as client:
                client.request("es/join", {"api": 1, "cores": 2, "run": None, "version": None})
                answer = client.request("es/next", {}, timeout=WAIT)[0]
                kinds += [answer["kind"], client.request("es/next", {"done": answer["task"]}, timeout=WAIT)[0]["kind"]]
        assert server.stats()["es/workers"] == 1
    assert kinds == ["welcome", "evaluate"] * 2
