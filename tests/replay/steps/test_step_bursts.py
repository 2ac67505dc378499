"""No burst of a worker cuts the worker's own open episode; and what follows a cut episode is not taken for the beginning of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echo_core import Client, FrameStack, NStep, Sequences, Server, Slices, Steps, Table
from echo_replay.steps.steps import StepStreams

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"t": np.int64(0), "reward": np.float32(0)}


def serve(capacity: int, items: Any = None, transport: str | None = None, stack: Any = FrameStack(4, "t")) -> Server:  # noqa: B008
    table = Table("t", EXAMPLE, capacity=capacity, items=items or NStep(1, 0.9), stack=stack, sampler="uniform", seed=0)
    return Server(tables=[table], batch_size=256, transport=transport)


def burst(writer: Any, start: int, length: int, end: str | None = "terminated", stream: int = 0) -> None:
    data = {"t": np.arange(start, start + length), "reward": np.ones(length, np.float32)}
    writer.send_batch(data, stream=stream, ends=[None] * (length - 1) + [end])


def check_stacks(server: Server, draws: int = 20) -> None:
    """The steps of an episode have the numbers 0, 1, 2, ..., and stacks of 4 of them repeat the first one."""
    for _ in range(draws):
        for stack in server.sample(timeout=5).batch["t"].tolist():
            assert stack == [max(0, stack[-1] - 3 + i) for i in range(4)]


@pytest.mark.parametrize("transport", [None, pytest.param("tcp://127.0.0.1:0", marks=pytest.mark.needs("echo-tcp"))])
@pytest.mark.parametrize(("capacity", "length", "episodes"), [(1000, 3000, 1), (1000, 900, 20), (1000, 900, 3), (5000, 900, 50), (50, 49, 40), (6, 30, 5)])
def test_a_burst_cuts_no_episode_of_its_own(transport: str | None, capacity: int, length: int, episodes: int) -> None:
    with serve(capacity, transport=transport) as server:
        worker: Any = server.table().writer() if transport is None else Client(server.address, Steps(EXAMPLE), table="t")
        for _ in range(episodes):
            burst(worker, 0, length)
        if transport is not None:
            worker.wait(30)
        stats = server.stats()
        assert (stats["table/t/episodes"], stats["table/t/truncated"]) == (episodes, 0)
        check_stacks(server)
        if transport is not None:
            worker.close()


def test_interleaved_streams_of_one_worker_are_not_cut() -> None:
    with serve(400) as server:
        worker = server.table().writer()
        for t in range(60):  # 32 streams of 4 steps that are needed: 128 of 400
            data = {"t": np.full(32, t), "reward": np.ones(32, np.float32)}
            worker.send_batch(data, streams=np.arange(32), ends=[None] * 32)
        assert server.stats()["table/t/truncated"] == 0
        check_stacks(server)


def cut(server: Server) -> StepStreams:
    """A writer whose episode lost its last step to the steps 0 to 199 of another one, because it paused for too long."""
    table: Any = server.table()
    slow, others = table.writer(), table.writer()
    burst(slow, 0, 30, None)
    burst(others, 0, 200)
    assert server.stats()["table/t/truncated"] == 1
    return slow


def test_what_follows_a_cut_is_no_beginning_for_stacks() -> None:
    with serve(100) as server:
        slow = cut(server)
        for t in range(30, 90):
            burst(slow, t, 1, None)
        burst(slow, 90, 10)
        check_stacks(server)
        burst(slow, 0, 40)  # the next episode begins as usual
        check_stacks(server)
        assert any(stack == [0, 0, 0, 0] for stack in server.sample(timeout=5).batch["t"].tolist())


def test_what_follows_a_cut_is_no_beginning_for_sequences() -> None:
    with serve(100, Sequences(4, burn_in=3, period=2, pad=True), stack=None) as server:
        slow = cut(server)
        burst(slow, 30, 70)
        seen = set()
        for _ in range(20):
            sample = server.sample(timeout=5)
            for times, mask in zip(sample.batch["t"].tolist(), sample.mask.tolist()):
                assert all(mask[:3]), "no window has less burn-in than its episode has steps before it"
                seen.add(times[3])
        assert {time for time in seen if time < 100} == {*range(33, 98, 2)}


@pytest.mark.parametrize("by", ["steps", "episodes"])
def test_what_follows_a_cut_is_no_beginning_for_slices(by: Any) -> None:
    with serve(100, Slices(3, by=by)) as server:
        slow = cut(server)
        burst(slow, 30, 70)
        starts = set()
        for _ in range(20):
            for window in server.sample(timeout=5).batch["t"].tolist():
                assert window == [[start + i + j for j in range(4)] for i, start in enumerate([window[0][0]] * 3)]
                starts.add(window[0][0])
        assert {start for start in starts if start < 100} == {*range(30, 95)}


def test_a_worker_s_steps_at_a_learner_that_is_new_are_no_beginning() -> None:
    """The worker was in the middle of an episode when this learner took over."""
    with serve(100) as first, serve(100) as second:
        worker: Any = first.table().writer()
        burst(worker, 0, 10, None)
        table: Any = second.table()
        worker._send, worker._send_batch = table.submit, table.submit_batch
        burst(worker, 10, 20)
        check_stacks(second)
        assert min(stack[0] for stack in second.sample(timeout=5).batch["t"].tolist()) == 10
