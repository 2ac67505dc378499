"""Workers that start within milliseconds, so that a test can kill one every 0.3 s: a process that has imported everything forks them.

Individual i of epoch e has the reward 1000 * e + i. A worker that is told another one, or whose state is of another epoch, ends with an error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import traceback

import echo_es.workers.link  # noqa: F401  # before the forks, because that is most of a worker's start
from echo_core.plugins.discovery import transport_class
from echo_es.workers.evaluation import Eval
from echo_es.workers.worker import Worker

CORES = 3


def rewards_of(epoch: int, population: int) -> list[float]:
    return [1000.0 * epoch + number for number in range(population)]


class Counting(Worker[dict[str, float]]):
    """Its state is the number of epochs, and the sum of all rewards."""

    seconds = 0.0  # that an evaluation takes

    def initialize(self) -> dict[str, float]:
        return {"epochs": 0.0, "total": 0.0}

    async def evaluate(self, epoch: int, slices: list[slice]) -> list[Eval]:
        assert self.state["epochs"] == epoch - 1, f"the state is of epoch {self.state['epochs']} when {epoch} is evaluated"
        await asyncio.sleep(self.seconds)
        return [Eval(part, [1000.0 * epoch + number for number in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> dict[str, float]:
        assert self.state["epochs"] == epoch - 1, f"the state is of epoch {self.state['epochs']} when {epoch} is optimised"
        assert rewards == rewards_of(epoch, self.population_size), f"wrong rewards of epoch {epoch}: {rewards}"
        return {"epochs": float(epoch), "total": self.state["total"] + sum(rewards)}


class Nursery:
    """Starts workers at an address. Leaving the block kills those that are alive, and fails if one has ended with an error of its own."""

    def __init__(self, address: str, seconds: float) -> None:
        self.alive: list[int] = []
        command = [sys.executable, __file__, address, str(seconds)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def add(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        print("another", file=self._process.stdin, flush=True)
        self.alive.append(int(self._process.stdout.readline()))

    def kill(self, index: int) -> None:
        os.kill(self.alive.pop(index), signal.SIGKILL)

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._process.communicate()
        assert kind is not None or self._process.returncode == 0, "a worker has ended with an error, which it has printed"


def main(address: str, seconds: float) -> int:
    Counting.seconds = seconds
    transport_class(address.partition(":")[0])  # it imports the transport, as above
    alive: set[int] = set()
    failed = 0

    def bury(options: int) -> None:
        nonlocal failed
        while alive:
            pid, status = os.waitpid(-1, options)
            if not pid:
                return
            alive.discard(pid)
            failed += status not in (0, signal.SIGKILL)

    for _ in sys.stdin:
        if (pid := os.fork()) == 0:
            try:
                asyncio.run(Counting(address, CORES).start())
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        alive.add(pid)
        print(pid, flush=True)
        bury(os.WNOHANG)
    for pid in alive:
        os.kill(pid, signal.SIGKILL)
    bury(0)
    return min(failed, 1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
