"""The server of a search is killed again and again. It goes on from its log, and the result is that of a search that nobody has disturbed."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from nursery import Nursery, rewards_of
from resumed import CORES, DIMS, POPULATION, SECONDS, SEED, sphere, strategy

from echo_es.log import Contents, read_log
from echo_testing.ports import free_port

KILLS = 20 if "ECHO_SOAK_SECONDS" in os.environ else 4
EPOCHS = 10 * KILLS + 10
LIMIT = 60.0  # seconds in which something has to happen
PROGRAM = str(Path(__file__).parent / "resumed.py")

pytestmark = [pytest.mark.needs("echo-tcp"), pytest.mark.timeout(KILLS * 30 + 60)]


class Killed:
    """Runs a server, and kills it at `KILLS` moments."""

    def __init__(self, mode: str, folder: Path) -> None:
        self.address = f"tcp://127.0.0.1:{free_port()}"
        self.log, self.result = folder / "log", folder / "result.npy"
        self._command = [sys.executable, PROGRAM, "serve", mode, self.address, str(self.log), str(self.result), str(EPOCHS)]
        self._steady = mode == "steady"

    def run(self) -> np.ndarray[Any, Any]:
        chance = random.Random(5)
        for _ in range(KILLS):
            process = subprocess.Popen(self._command)
            try:
                self._wait(process, self._done() + chance.randint(1, 8))
                time.sleep(chance.uniform(0.0, 5 * SECONDS))  # no particular moment of an epoch
                assert process.poll() is None, "the search was over before the server could be killed"
            finally:
                process.kill()
                process.wait()
        assert not self.result.exists()
        assert subprocess.run(self._command, timeout=2 * LIMIT).returncode == 0
        found: np.ndarray[Any, Any] = np.load(self.result)
        return found

    def _wait(self, process: subprocess.Popen[bytes], epochs: int) -> None:
        deadline = time.monotonic() + LIMIT
        while self._done() < epochs:
            assert process.poll() is None and time.monotonic() < deadline, f"the log has {self._done()} epochs, and {epochs} were expected"
            time.sleep(0.002)

    def _done(self) -> int:
        """The epochs in the log."""
        found = read_log(self.log) if self.log.exists() else Contents()
        return len(found.steady()[1]) // POPULATION if self._steady else len(found.epochs)


@contextmanager
def workers(address: str) -> Iterator[None]:
    with ExitStack() as stack:
        for _ in range(3):
            process = subprocess.Popen([sys.executable, PROGRAM, "work", address])
            stack.callback(process.wait)
            stack.callback(process.kill)
        yield


def test_the_parameters_are_those_of_an_undisturbed_search(tmp_path: Path) -> None:
    killed = Killed("epochs", tmp_path)
    with workers(killed.address):
        found = killed.run()
    one = strategy()
    state = one.init(np.zeros(DIMS), SEED)
    for epoch, rewards in read_log(killed.log).epochs:
        expected = sphere(one.ask(state, range(POPULATION)), epoch)
        np.testing.assert_array_equal(rewards, expected)
        state = one.tell(state, expected)
    assert len(read_log(killed.log).epochs) == EPOCHS
    assert found.tobytes() == one.theta(state).tobytes()


def test_the_state_of_workers_that_optimise_is_that_of_an_undisturbed_search(tmp_path: Path) -> None:
    killed = Killed("workers", tmp_path)
    with Nursery(killed.address, SECONDS) as nursery:
        for _ in range(3):
            nursery.add()
        found = killed.run()
    logged = [(epoch, rewards.tolist()) for epoch, rewards in read_log(killed.log).epochs]
    assert logged == [(epoch, rewards_of(epoch, POPULATION)) for epoch in range(1, EPOCHS + 1)]
    assert found.tolist() == [EPOCHS, sum(sum(rewards) for _, rewards in logged)]


def test_a_steady_search_is_told_each_individual_once_in_the_order_of_its_log(tmp_path: Path) -> None:
    killed = Killed("steady", tmp_path)
    with workers(killed.address):
        found = killed.run()
    individuals, rewards = read_log(killed.log).steady()
    assert len(set(individuals.tolist())) == len(individuals)
    assert EPOCHS * POPULATION <= len(individuals) < EPOCHS * POPULATION + CORES  # whose were the last tasks does not matter, but how many there were
    one = strategy()
    state = one.init(np.zeros(DIMS), SEED)
    for individual, reward in zip(individuals.tolist(), rewards.tolist(), strict=True):
        state = one.tell_one(state, individual, reward)
    assert found.tobytes() == one.theta(state).tobytes()
