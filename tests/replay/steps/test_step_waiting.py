"""Who waits for whom at a table of items over steps, and that no batch is ever torn."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from step_tables import episode, serve, step

from echo_core import FrameStack, MinSize, NStep, Queue, SampleToInsertRatio, Sequences, Server, Table
from echo_core.base.errors import EchoTimeoutError

pytestmark = pytest.mark.needs("echo-samplers")


def test_a_learner_waits_for_items_not_for_steps() -> None:
    server = serve(Sequences(5), rate_limiter=MinSize(2), batch_size=2)
    writer = server.table().writer()
    for i in range(6):
        writer.send(step(i))
    with pytest.raises(EchoTimeoutError, match="from 1 item after 1 insert and 0 samples"):
        server.sample(timeout=0.05)
    got: list[Any] = []
    learner = threading.Thread(target=lambda: got.append(server.sample(timeout=30)))
    learner.start()
    time.sleep(0.05)
    writer.end_episode()  # the second window is cut short, and complete by that
    learner.join(30)
    assert got[0].mask.shape == (2, 5)


def test_workers_wait_for_the_limiter_of_the_items() -> None:
    server = serve(NStep(1), sampler="fifo", rate_limiter=SampleToInsertRatio(1.0, 4, 4.0), batch_size=4, capacity=64)
    writer = server.table().writer()
    with pytest.raises(EchoTimeoutError, match="samples slower") as caught:
        for i in range(64):
            writer.send(step(i), timeout=0.05)
    assert len(server.table()) <= 9 and "steps" in str(caught.value)
    before = server.stats()["table/steps/steps"]
    waiting = threading.Thread(target=writer.send, args=(step(before),))
    waiting.start()
    assert server.sample(timeout=5) is not None
    waiting.join(30)
    assert not waiting.is_alive() and server.stats()["table/steps/steps"] == before + 1
    for i in range(3):  # what timed out was not taken, and did not tear the episode
        writer.send(step(before + 1 + i), timeout=5)
    assert server.stats()["table/steps/episodes"] == 0


def test_every_item_of_a_queue_exactly_once() -> None:
    total, seen = 200, []
    # Room for all steps: those of an open episode are no item yet, and go when others overwrite them while its worker sleeps.
    server = serve(Sequences(3), sampler="fifo", rate_limiter=Queue(16), batch_size=4, capacity=2 * total * 3)

    def work(stream: int) -> None:
        writer = server.table().writer()
        for i in range(total):
            episode(writer, (stream * total + i) * 3 + 1, 3)

    workers = [threading.Thread(target=work, args=(stream,)) for stream in range(2)]
    for worker in workers:
        worker.start()
    while len(seen) < 2 * total:
        sample = server.sample(timeout=30)
        assert (np.diff(sample.batch["obs"][..., 0], axis=1) == 1).all()
        seen += sample.batch["obs"][:, 0, 0].tolist()
    for worker in workers:
        worker.join(30)
    assert sorted(seen) == [1 + 3 * i for i in range(2 * total)]


@pytest.mark.soak
def test_no_batch_is_torn_while_writers_overwrite(soak_seconds: float) -> None:
    """Steps that check themselves, in a table that is overwritten again and again."""
    size = 3000
    example = {"number": np.int64(0), "frame": np.zeros(size, np.int64)}
    items = Sequences(6, period=2, burn_in=1)
    made = Table("steps", example, capacity=150, items=items, stack=FrameStack(2, leaf="number"), sampler="uniform")
    server = Server(tables=[made], batch_size=16)
    stop = threading.Event()

    def work(stream: int) -> None:
        writer, number = server.table().writer(), stream << 32
        frames = np.zeros((7, size), np.int64)
        while not stop.is_set():
            numbers = np.arange(number, number + 7)
            frames[:] = numbers[:, None]
            writer.send_batch({"number": numbers, "frame": frames}, stream=0, ends=[None] * 6 + ["terminated" if number % 5 == 0 else None])
            number += 7

    workers = [threading.Thread(target=work, args=(stream,)) for stream in (1, 2)]
    for worker in workers:
        worker.start()
    try:
        until = time.monotonic() + soak_seconds
        while time.monotonic() < until:
            sample = server.sample(timeout=30)
            frame, number, mask = sample.batch["frame"], sample.batch["number"], sample.mask
            assert (frame == frame[..., :1]).all()
            np.testing.assert_array_equal(frame[..., 0], number[..., -1])
            follows = mask[:, 1:] & mask[:, :-1]
            assert (np.diff(number[..., -1], axis=1)[follows] == 1).all()
            assert ((number[..., 1] - number[..., 0])[mask] <= 1).all()
            assert mask.any(axis=1).all()
    finally:
        stop.set()
        for worker in workers:
            worker.join(30)
        server.close()
