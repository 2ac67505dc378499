"""Queues and stacks: every item comes out once, and what went unsampled takes up no room."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from echo_core import EchoTimeoutError, Queue, Stack, Table

pytestmark = [pytest.mark.needs("echo-samplers")]


@pytest.mark.parametrize(("sampler", "limiter"), [("lifo", Stack), ("fifo", Queue), ("uniform", Queue)])
def test_a_queue_loses_no_item_while_others_are_gathered(sampler: str, limiter: type[Queue]) -> None:
    """The rows of a batch are taken until it is gathered, and the limiter counts them no more: there must be room for what it lets in."""
    many, learners, writers, seen = 1200, 2, 3, []
    table = Table("t", {"number": np.int64(0), "filler": np.zeros(1 << 18, np.uint8)}, capacity=6, sampler=sampler, rate_limiter=limiter(6)).open(2)

    def learn() -> None:
        for _ in range(many // 2 // learners):
            seen.extend(table.sample(timeout=20).batch["number"].tolist())

    def write(writer: int) -> None:
        for number in range(writer, many, writers):
            table.submit({"number": np.int64(number), "filler": filler}, timeout=20)

    filler = np.zeros(1 << 18, np.uint8)
    threads = [threading.Thread(target=learn, daemon=True) for _ in range(learners)]
    threads += [threading.Thread(target=write, args=(writer,), daemon=True) for writer in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == [*range(many)] and table.counters()["evicted"] == 0


@pytest.mark.parametrize("how", ["stale", "deleted"])
def test_items_that_go_unsampled_take_no_room_in_a_queue(how: str) -> None:
    lags = {"max_policy_lag": 1} if how == "stale" else {}
    table = Table("t", {"number": np.int64(0)}, capacity=8, sampler="fifo", rate_limiter=Queue(8), **lags).open(4)
    for turn in range(1, 4):  # each time the whole queue goes
        keys = table.submit_batch({"number": np.arange(0, 8)}, timeout=5)
        assert len(table) == 8
        if how == "stale":
            table.policy_version = 5 * turn
        else:
            assert table.delete(keys) == 8
        assert len(table) == 0
    table.submit_batch({"number": np.arange(8, 16)}, timeout=5)
    with pytest.raises(EchoTimeoutError):
        table.submit_batch({"number": np.arange(16, 17)}, timeout=0.01)
    assert table.sample(8, timeout=5).batch["number"].tolist() == [*range(8, 16)]
    assert table.counters()["inserts"] == 32 and table.counters()["samples"] == 8
