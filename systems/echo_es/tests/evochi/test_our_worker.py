"""Our `Worker` at our front, as `echo_es.evochi.v1`, on any Python; and the minimal example of Evochi's README with only its import changed."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path

import grpc.aio
import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fleet import Fleet
from searches import search

import echo_es.evochi.v1 as evochi
from echo_core import ConfigError, EchoError
from echo_es import ESServer
from echo_es.evochi import frames, needed
from echo_es.evochi.skippable import ours


def reward(epoch: int, individual: int) -> float:
    return 1000.0 * epoch + individual + 1


def test_our_workers_work_to_the_end() -> None:
    with search(10, max_epochs=4) as (front, _, heard), Fleet(front.port) as fleet:
        workers = [fleet.add(seconds=0.01) for _ in range(2)]
        for worker in workers:
            worker.wait_for("end")
            assert [line for line in worker.lines if line.startswith("stop")] == ["stop False", "stop True"]
        assert heard.epochs == {epoch: [reward(epoch, i) for i in range(10)] for epoch in (1, 2, 3, 4)}
        assert not fleet.complaints()


def test_each_individual_may_be_reported_alone() -> None:
    with search(10, max_epochs=3) as (front, coordinator, heard), Fleet(front.port) as fleet:
        fleet.add("split").wait_for("end")
        assert heard.epochs == {epoch: [reward(epoch, i) for i in range(10)] for epoch in (1, 2, 3)}
        assert coordinator.counts["refused"] == 0
        assert not fleet.complaints()


def test_heartbeats_go_on_while_evaluate_computes() -> None:
    from echo_es.evochi.options import FrontOptions

    with search(4, options=FrontOptions(port=0, worker_timeout=2.0), max_epochs=1) as (front, coordinator, _), Fleet(front.port) as fleet:
        fleet.add(seconds=5.0).wait_for("end")
        assert coordinator.counts["reassigned"] == 0
        assert not fleet.complaints()


@dataclass
class State:
    seed: float


class Minimal(evochi.Worker[State]):
    def initialize(self) -> State:
        return State(seed=42)

    def evaluate(self, epoch: int, slices: list[slice]) -> list[evochi.Eval]:
        return [evochi.Eval(slice=part, rewards=[float(i) for i in range(part.start, part.stop)]) for part in slices]

    def optimize(self, epoch: int, rewards: list[float]) -> State:
        return State(seed=self.state.seed + 1)


def test_the_state_is_the_dataclass_and_a_second_close_is_refused() -> None:
    async def run() -> None:
        worker = Minimal(channel=grpc.aio.insecure_channel(f"127.0.0.1:{server.evochi_port}"), cores=5)
        await worker.start()
        assert worker.state == State(seed=45)
        assert (worker.population_size, worker.max_epochs) == (7, 3)
        await worker.close()
        with pytest.raises(RuntimeError, match="already closed"):
            await worker.close()

    with ESServer(7, evochi="127.0.0.1:0", max_epochs=3) as server:
        asyncio.run(run())
        assert server.state(State) == State(seed=45)


def test_a_state_without_our_frame_is_for_pickle_only() -> None:
    assert ours(frames.sealed([1, 2], None)) is None
    assert ours(b"") is None
    assert frames.opened(frames.sealed([1, 2], b"own")) == [1, 2]
    assert bytes(ours(frames.sealed([1, 2], b"own")) or b"") == b"own"
    with pytest.raises(EchoError, match="as Evochi's clients send it"):
        frames.opened(b"nonsense")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needed, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"grpcio, protobuf, zstandard; .*echo-es\[evochi\]"):
        needed.require()


def test_beyond_loopback_needs_tls_and_a_token() -> None:
    from echo_core import SecurityError
    from echo_es.evochi.options import FrontOptions

    with pytest.raises(SecurityError, match="allow_insecure=True"):
        FrontOptions(host="0.0.0.0")
    FrontOptions(host="0.0.0.0", allow_insecure=True)


def test_a_join_token_is_asked_for() -> None:
    from echo_es.evochi.options import FrontOptions

    async def run(token: str | None) -> None:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{front.port}")
        worker = Minimal(channel, 5, token=token)
        try:
            await worker.start()
        finally:
            await worker.close()

    with search(7, options=FrontOptions(port=0, token="let me in"), max_epochs=1) as (front, _, _):
        with pytest.raises(grpc.aio.AioRpcError, match="join token"):
            asyncio.run(run(None))
        asyncio.run(run("let me in"))
