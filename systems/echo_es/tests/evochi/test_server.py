"""An `ESServer` whose workers speak Evochi's protocol."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

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


@pytest.mark.parametrize("value", ["127.0.0.1", 8080, b"127.0.0.1:0"])
def test_an_address_without_a_port_is_refused(value: Any) -> None:
    with pytest.raises(ConfigError, match="^evochi: .* is no address; write host:port"):
        ESServer(10, evochi=value)


class Diverging(Summing):
    def optimize(self, epoch: int, rewards: list[float]) -> State:
        return State(self.state.total + sum(rewards) + self.cores)  # of another number than that of the other worker


@pytest.mark.parametrize(("kind", "diverges"), [(Summing, False), (Diverging, True)])
def test_workers_whose_states_diverge_are_named_and_get_the_shared_state(kind: type[Summing], diverges: bool, caplog: pytest.LogCaptureFixture) -> None:
    named: set[str] = set()

    class Looking(kind):  # type: ignore[misc, valid-type]
        def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
            named.add(str(server.stats().get("es/diverged_workers", "")))
            return super().evaluate(epoch, slices)  # type: ignore[no-any-return]

    async def work(port: int) -> None:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as first, grpc.aio.insecure_channel(f"127.0.0.1:{port}") as second:
            workers = [Looking(first, 3), Looking(second, 4)]
            await asyncio.wait_for(asyncio.gather(*(worker.start() for worker in workers)), WAIT)

    with ESServer(10, evochi="127.0.0.1:0", max_epochs=20) as server:
        asyncio.run(work(server.evochi_port))
        assert server.wait(WAIT)
        assert server.rewards is not None and server.rewards[1].tolist() == [2000.0 + i for i in range(10)]
        warnings = [record for record in caplog.records if "to another state than the one that was shared" in record.getMessage()]
        assert server.stats()["es/diverged_total"] == len(warnings)
    assert bool(warnings) == diverges == any("evochi ipv4:127.0.0.1" in names for names in named)
