"""Several searches of one server, tests, searches that are steady, merged statistics of observations, states that diverge, and tasks in vain."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import Client, ConfigError, EchoError, EchoTimeoutError
from echo_es import ESServer, Eval, Experiment, SharedObservations, Worker, cancelled, run_worker
from echo_es.log import read_log
from echo_es.search.tasks import RefusedError
from echo_es.server import EXAMPLE
from echo_es.strategies import OpenAIES, SepCMAES

pytestmark = pytest.mark.needs("echo-tcp")
WAIT = 60
DIMS = 6
ADDRESS = "tcp://127.0.0.1:0"


def sphere(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
    return -np.sum((thetas - 1.0) ** 2, axis=1)


def in_thread(call: Callable[..., Any], *arguments: Any, **options: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=arguments, kwargs=options, daemon=True)
    thread.start()
    return thread


def until(condition: Callable[[], Any]) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


class Summing(Worker[dict[str, float]]):
    """Its state is the number of epochs."""

    drift = 0.0

    def initialize(self) -> dict[str, float]:
        return {"epochs": 0.0}

    async def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        await asyncio.sleep(0.005)
        return Eval.from_flat(slices, [float(i) for part in slices for i in range(part.start, part.stop)])

    def optimize(self, epoch: int, rewards: list[float]) -> dict[str, float]:
        return {"epochs": self.state["epochs"] + 1 + self.drift}

    def on_test(self, state: dict[str, float], episodes: int) -> list[float]:
        return [state["epochs"]] * episodes


# ---- several experiments ------------------------------------------------------------------------------------------------


def test_several_experiments_of_one_server_do_not_mix(tmp_path: Path) -> None:
    searches = {
        "walk": Experiment(strategy=OpenAIES(DIMS, 10, sigma=0.1, lr=0.1), seed=3, max_epochs=12, log=tmp_path / "walk"),
        "run": Experiment(strategy=SepCMAES(DIMS, 8), seed=4, max_epochs=15),
        "own": Experiment(7, max_epochs=5),
    }
    with ESServer(searches, ADDRESS) as server:
        assert server["run"] is searches["run"]
        threads = [in_thread(run_worker, server.address, sphere, cores=3, experiment=name) for name in ("walk", "run", "walk", "run")]
        threads.append(in_thread(lambda: asyncio.run(Summing(str(server.address), 4, experiment="own").start())))
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        for name, epochs, seed in (("walk", 12, 3), ("run", 15, 4)):
            optimizing = searches[name].optimizing
            assert optimizing is not None
            strategy = optimizing.strategy
            state = strategy.init(np.zeros(DIMS), seed)
            for epoch in range(1, epochs + 1):
                state = strategy.tell(state, sphere(strategy.ask(state, range(strategy.population)), epoch))
            np.testing.assert_array_equal(server[name].theta, strategy.theta(state))
        stats = server.stats()
        assert (stats["es_walk/evaluations_total"], stats["es_run/evaluations_total"], stats["es_own/evaluations_total"]) == (120, 120, 35)
        assert {name: status["phase"] for name, status in server.status().items()} == dict.fromkeys(searches, "over")
        with pytest.raises(ConfigError, match="several experiments .walk, run, own.; choose one: server"):
            _ = server.theta
    assert [epoch for epoch, _ in read_log(tmp_path / "walk").epochs] == list(range(1, 13))


def test_a_server_takes_its_search_as_an_experiment_or_by_its_arguments() -> None:
    one = Experiment(strategy=SepCMAES(DIMS, 8), seed=4, max_epochs=5)
    with ESServer(one, ADDRESS) as first, ESServer(transport=ADDRESS, strategy=SepCMAES(DIMS, 8), seed=4, max_epochs=5) as second:
        assert first["default"] is one
        for server in (first, second):
            run_worker(server.address, sphere, cores=8)
        np.testing.assert_array_equal(first.theta, second.theta)
        assert (first.best, first.rewards is None) == (second.best, False)


def test_a_worker_has_to_name_an_experiment_that_there_is() -> None:
    with ESServer({"a": Experiment(4), "b": Experiment(4)}, ADDRESS) as server:
        with pytest.raises(EchoError, match="several experiments, so a worker has to name one; it has a, b"):
            run_worker(server.address, sphere)
        with pytest.raises(EchoError, match="no experiment 'c'; it has a, b"):
            run_worker(server.address, sphere, experiment="c")
        with pytest.raises(KeyError, match="no experiment 'c'"):
            _ = server["c"]


def test_experiments_and_the_arguments_of_one_exclude_each_other() -> None:
    one_search = {"population": 4, "max_epochs": 3, "theta": np.zeros(2), "mode": "steady", "grace": 1.0, "seed": 0}
    for name, value in one_search.items():
        argument: dict[str, Any] = {name: value}
        for given in (Experiment(4), {"a": Experiment(4)}):
            with pytest.raises(ConfigError, match=f"^{name}: each Experiment has its own"):
                ESServer(given, **argument)
    with pytest.raises(ConfigError, match="evochi: its clients cannot name an experiment"):
        ESServer({"a": Experiment(4), "b": Experiment(4)}, evochi="127.0.0.1:0")
    with pytest.raises(ConfigError, match="there must be at least one"):
        ESServer({}, ADDRESS)
    with pytest.raises(ConfigError, match="'A b' is no name"):
        ESServer({"A b": Experiment(4)}, ADDRESS)
    one = Experiment(4)
    with pytest.raises(ConfigError, match="an Experiment of its own"):
        ESServer({"a": one, "b": one}, ADDRESS)


def test_the_status_says_who_does_what() -> None:
    go = threading.Event()

    def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        go.wait(WAIT)
        return sphere(thetas, epoch)

    with ESServer(transport=ADDRESS, strategy=SepCMAES(DIMS, 8), max_epochs=1) as server:
        threads = [in_thread(run_worker, server.address, evaluate, cores=cores, name=f"of {cores}") for cores in (3, 5)]
        until(lambda: sum(worker["does"] == "evaluate" for worker in server.status()["default"]["workers"]) == 2)
        with Client(server.address, EXAMPLE) as client:
            (status,) = client.request("es/status", {})[0]["experiments"]
        assert (status["strategy"], status["epoch"], status["evaluated"], status["population"]) == ("SepCMAES", 1, 0, 8)
        held = sorted(individual for worker in status["workers"] for part in worker["slices"] for individual in range(*part))
        assert held == list(range(8)) and {worker["name"] for worker in status["workers"]} == {"of 3", "of 5"}
        go.set()
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
        assert server.status()["default"]["best_so_far"]["epoch"] == 1


# ---- tests --------------------------------------------------------------------------------------------------------------


def test_the_parameters_are_tested_while_the_search_goes_on(tmp_path: Path) -> None:
    seen: list[np.ndarray[Any, Any]] = []

    def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        seen.append(thetas)
        time.sleep(0.005)
        return sphere(thetas, epoch)

    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 10), log=tmp_path / "log") as server:
        in_thread(run_worker, server.address, evaluate, cores=3)
        until(lambda: server.rewards is not None)
        asked = np.arange(DIMS, dtype=np.float64)
        rewards = server.test(asked, episodes=7, timeout=WAIT)
        assert rewards.tolist() == [float(sphere(asked[None], 0)[0])] * 7
        assert sum(len(thetas) for thetas in seen if (thetas == asked).all()) == 7
        assert server.test(episodes=2, timeout=WAIT).shape == (2,)  # the present parameters
        assert [len(values) for _, values in server.tests] == [7, 2]
        epoch = server.coordinator.epoch
        until(lambda: server.coordinator.epoch > epoch + 2)
        with pytest.raises(ValueError, match="its shape must be"):
            server.test(np.zeros(DIMS + 1), timeout=WAIT)
    assert [len(values) for _, values in read_log(tmp_path / "log").tests] == [7, 2]
    with pytest.raises(RefusedError, match="over"):
        server.test(asked, timeout=WAIT)


def test_workers_that_optimise_test_a_state_if_they_have_the_method() -> None:
    class Unable(Summing):
        on_test = Worker.on_test

    with ESServer(6, ADDRESS) as server:
        in_thread(lambda: asyncio.run(Unable(str(server.address), 2).start()))
        until(lambda: server.rewards is not None)
        with pytest.raises(EchoTimeoutError, match="1 workers, of which 0 can test"):
            server.test({"epochs": 41.0}, episodes=3, timeout=0.3)
        in_thread(lambda: asyncio.run(Summing(str(server.address), 2).start()))
        assert server.test({"epochs": 42.0}, episodes=3, timeout=WAIT).tolist() == [42.0] * 3


# ---- steady -------------------------------------------------------------------------------------------------------------


def test_a_steady_search_waits_for_nobody() -> None:
    stuck, go = threading.Event(), threading.Event()

    def slow(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        stuck.set()
        go.wait(WAIT)
        return sphere(thetas, epoch)

    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 10, sigma=0.1, lr=0.1), mode="steady", max_epochs=60) as server:
        threads = [in_thread(run_worker, server.address, slow)]
        assert stuck.wait(WAIT)
        threads.append(in_thread(run_worker, server.address, sphere, cores=2))
        assert server.wait(WAIT)  # although the first worker has never answered
        go.set()
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert server.rewards is not None and server.rewards[0] == 60
        assert sphere(server.theta[None], 0)[0] > sphere(np.zeros((1, DIMS)), 0)[0] / 2


def test_a_strategy_that_compares_whole_generations_cannot_be_steady() -> None:
    with pytest.raises(ConfigError, match="SepCMAES cannot take one reward at a time"):
        ESServer(transport=ADDRESS, strategy=SepCMAES(DIMS, 8), mode="steady")
    with pytest.raises(ConfigError, match="'steady' needs a strategy"):
        ESServer(8, ADDRESS, mode="steady")


# ---- observations -------------------------------------------------------------------------------------------------------


def test_statistics_of_observations_are_merged_over_all_workers(tmp_path: Path) -> None:
    drawn: list[np.ndarray[Any, Any]] = []

    def worker(server: ESServer, seed: int) -> threading.Thread:
        shared, chance = SharedObservations((3,)), np.random.default_rng(seed)

        def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
            new = chance.normal([0.0, 5.0, -2.0], [1.0, 2.0, 3.0], (20, 3))
            drawn.append(new)
            shared.add(new)
            time.sleep(0.002)
            return sphere(thetas, epoch)

        thread = in_thread(run_worker, server.address, evaluate, cores=2, observations=shared)
        thread.shared = shared  # type: ignore[attr-defined]
        return thread

    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 8), observations=(3,), max_epochs=10, log=tmp_path / "log") as server:
        threads = [worker(server, seed) for seed in range(3)]
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
        merged = server["default"].observations
        assert merged is not None and merged.sent is not None
        everything = np.concatenate(drawn)
        assert server.stats()["es/observations_total"] == merged.count == len(everything)
        last = SharedObservations((3,))
        last.replace(merged.sent[1])
        np.testing.assert_allclose(last.merged.mean, everything.mean(axis=0), rtol=1e-6)
        assert any(thread.shared.merged.count > 0 for thread in threads)  # type: ignore[attr-defined]
    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 8), observations=(3,), max_epochs=10, log=tmp_path / "log") as again:
        resumed = again["default"].observations
        assert resumed is not None and resumed.sent == merged.sent


def test_statistics_that_the_server_does_not_merge_are_refused() -> None:
    shared = SharedObservations((3,))

    def evaluate(thetas: np.ndarray[Any, Any], epoch: int) -> np.ndarray[Any, Any]:
        shared.add(np.ones((4, 3)))
        return sphere(thetas, epoch)

    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 8)) as server, pytest.raises(EchoError, match="this server merges none"):
        run_worker(server.address, evaluate, observations=shared)
    with ESServer(transport=ADDRESS, strategy=OpenAIES(DIMS, 8), observations=(5,)) as server, pytest.raises(EchoError, match="observations: "):
        run_worker(server.address, evaluate, observations=shared)


# ---- states that diverge ------------------------------------------------------------------------------------------------


def test_a_worker_whose_state_diverges_is_named_and_put_right(caplog: pytest.LogCaptureFixture) -> None:
    class Drifting(Summing):
        drift = 0.25

    with ESServer(6, ADDRESS, max_epochs=30) as server:
        right = [Summing(str(server.address), 2, name=f"right {n}") for n in range(2)]
        threads = [in_thread(lambda worker: asyncio.run(worker.start()), worker) for worker in right]
        until(lambda: server.rewards is not None)
        threads.append(in_thread(lambda: asyncio.run(Drifting(str(server.address), 2, name="wrong").start())))
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
        assert server.stats()["es/diverged_total"] > 0
    named = [record.getMessage() for record in caplog.records if "to another state than the one that was shared" in record.getMessage()]
    assert named and any("worker wrong" in text for text in named)


# ---- tasks in vain ------------------------------------------------------------------------------------------------------


def test_a_worker_hears_that_its_task_is_in_vain() -> None:
    heard, stuck = threading.Event(), threading.Event()

    def slow(thetas: np.ndarray[Any, Any], epoch: int) -> Any:
        stuck.set()
        until(cancelled)
        heard.set()
        return None

    with ESServer(transport=ADDRESS, strategy=SepCMAES(DIMS, 8), max_epochs=3, straggle_floor=0.05) as server:
        threads = [in_thread(run_worker, server.address, slow, cores=1)]
        assert stuck.wait(WAIT)
        threads.append(in_thread(run_worker, server.address, sphere, cores=3))
        assert heard.wait(WAIT)
        assert server.wait(WAIT)
        for thread in threads:
            thread.join(WAIT)
            assert not thread.is_alive()
        assert server.stats()["es/cancelled_total"] > 0 and server.stats()["es/speculated_total"] > 0


def test_an_async_evaluation_is_cancelled_when_the_search_ends() -> None:
    class Stuck(Summing):
        ended: bool | None = None

        async def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
            begun.set()
            await asyncio.sleep(10 * WAIT)
            return []

        def on_stop(self, cancel: bool) -> None:
            self.ended = cancel

    begun = threading.Event()
    with ESServer(6, ADDRESS) as server:
        worker = Stuck(str(server.address), 2)
        thread = in_thread(lambda: asyncio.run(worker.start()))
        assert begun.wait(WAIT)
    thread.join(WAIT)
    assert not thread.is_alive() and worker.ended is True
