"""An `ESServer` whose workers speak Evochi's protocol."""

from __future__ import annotations

import asyncio
import dataclasses

import grpc.aio
import pytest

import echo_es.evochi.v1 as evochi
from echo_core import ConfigError
from echo_es import ESServer

WAIT = 60


@dataclasses.dataclass
class State:
    total: float


class Summing(evochi.Worker[State]):
    def initialize(self) -> State:
        return State(0.0)

    def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
        return evochi.Eval.from_flat(slices, [float(100 * epoch + i) for part in slices for i in range(part.start, part.stop)])

    def optimize(self, epoch: int, rewards: list[float]) -> State:
        return State(self.state.total + sum(rewards))


def test_workers_on_a_channel_of_grpc_search_with_a_server() -> None:
    async def work(port: int | None) -> list[float]:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as first, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as second:
            workers = [Summing(first, 3), Summing(second, 4)]
            await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), WAIT)
            return [worker.state.total for worker in workers]

    with ESServer(10, evochi="127.0.0.1:0", max_epochs=6) as server:
        totals = asyncio.run(work(server.evochi_port))
        assert server.wait(WAIT)
        assert server.rewards is not None and server.rewards[0] == 6
        assert server.rewards[1].tolist() == [600.0 + i for i in range(10)]
        assert server.state(State) == State(max(totals))
    assert max(totals) == sum(100.0 * epoch + i for epoch in range(1, 7) for i in range(10))


def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(ConfigError, match="host:port"):
        ESServer(10, evochi="127.0.0.1")
