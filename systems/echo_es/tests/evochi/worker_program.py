"""A worker for the tests, run as a program: `worker_program.py MODULE PORT CORES SECONDS [split] [busy]`, with evochi.v1 or echo_es.evochi.v1 as
MODULE. With "split" it reports each individual alone, the last one first. With "busy" its evaluations compute, and otherwise they sleep.

Individual i of epoch e has the reward 1000 * e + i + 1, so a reward that is missing, doubled or of another epoch is noticed. It prints a line for
whatever happens.
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from dataclasses import dataclass
from typing import Any

import grpc.aio

evochi: Any = importlib.import_module(sys.argv[1])


@dataclass
class State:
    epoch: int
    total: float
    name: str


def reward(epoch: int, individual: int) -> float:
    return 1000.0 * epoch + individual + 1


class Worker(evochi.Worker[State]):  # type: ignore[misc]
    def initialize(self) -> State:
        print("initialize", flush=True)
        return State(epoch=0, total=0.0, name="first")

    def evaluate(self, epoch: int, slices: list[slice]) -> list[Any]:
        if self.state.epoch != epoch - 1:
            print(f"BAD the state is of epoch {self.state.epoch} when {epoch} is evaluated", flush=True)
        ends = time.monotonic() + float(sys.argv[4])
        print(f"begin {epoch}", flush=True)
        while "busy" in sys.argv[5:] and time.monotonic() < ends:
            sum(range(1_000_000))
        time.sleep(max(0.0, ends - time.monotonic()))
        print(f"evaluate {epoch} {[(part.start, part.stop) for part in slices]}", flush=True)
        if "split" in sys.argv[5:]:
            return [evochi.Eval(slice(i, i + 1), [reward(epoch, i)]) for part in slices for i in range(part.start, part.stop)][::-1]
        return [evochi.Eval(part, [reward(epoch, i) for i in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> State:
        if rewards != [reward(epoch, i) for i in range(self.population_size)]:
            print(f"BAD rewards of epoch {epoch}: {rewards}", flush=True)
        if self.state.epoch != epoch - 1:
            print(f"BAD the state is of epoch {self.state.epoch} when {epoch} is optimised", flush=True)
        print(f"optimize {epoch}", flush=True)
        return State(epoch=epoch, total=self.state.total + sum(rewards), name=self.state.name)

    def on_stop(self, cancel: bool) -> None:
        print(f"stop {cancel}", flush=True)

    def on_state_change(self, state: State) -> None:
        print(f"state {state.epoch} {state.total} {state.name}", flush=True)


async def main() -> None:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{sys.argv[2]}") as channel:
        await Worker(channel, int(sys.argv[3])).start()
    print("end", flush=True)


if __name__ == "__main__":
    asyncio.run(main())
