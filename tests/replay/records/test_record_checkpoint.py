"""Checkpoints of tables of records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from echo_core import CheckpointError, MinSize, Queue, Ragged, Table

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"tokens": Ragged(np.int32, most=500), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}


def sample(task: int) -> dict:
    n = task * 37 % 501
    return {"tokens": np.arange(n, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": np.int64(task)}


def opened(max_bytes: int = 1 << 20, **options):
    options = {"sampler": "fifo", "rate_limiter": Queue(300), **options}
    return Table("r", EXAMPLE, capacity=300, max_bytes=max_bytes, **options).open(1)


def check(batch) -> list[int]:
    tasks = []
    for i in range(len(batch.packed)):
        item = batch.row(i)
        tasks.append(int(item["task"]))
        for name, value in sample(tasks[-1]).items():
            np.testing.assert_array_equal(item[name], value)
    return tasks


def test_a_queue_goes_on_where_it_was(tmp_path: Path) -> None:
    before = opened()
    keys = [before.submit(sample(task)) for task in range(100)]
    assert check(before.sample(30, timeout=0)) == list(range(30))
    before.checkpoint(tmp_path)
    after = opened(2 << 20)  # another max_bytes
    after.restore(tmp_path)
    stats, expected = after.stats(), before.stats()
    assert {name: stats[name] for name in ("size", "units_t", "units_box", "bytes_used")} == {
        name: expected[name] for name in ("size", "units_t", "units_box", "bytes_used")
    }
    assert after.keys().tolist() == keys[30:]
    assert check(after.sample(70, timeout=0)) == list(range(30, 100))
    assert after.stats()["bytes_used"] == 0
    after.submit(sample(5))
    assert check(after.sample(1, timeout=0)) == [5]


def test_items_on_loan_are_given_out_again(tmp_path: Path) -> None:
    before = opened(lease_timeout=60.0)
    for task in range(10):
        before.submit(sample(task))
    lent = before.sample(4, timeout=0)
    before.checkpoint(tmp_path)
    after = opened(lease_timeout=60.0)
    after.restore(tmp_path)
    again = after.sample(10, timeout=0)
    assert sorted(check(again)) == list(range(10)) and check(again)[:4] == check(lent)
    after.ack(again.keys)
    assert after.stats()["bytes_used"] == 0 and after.stats()["units_t"] == 0


def test_items_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    before = opened(rate_limiter=MinSize(1), sampler="uniform")
    for task in range(200):
        before.submit(sample(task))
    before.checkpoint(tmp_path)
    after = opened(20_000, rate_limiter=MinSize(1), sampler="uniform")
    with pytest.raises(CheckpointError, match="max_bytes is 23,040; raise it"):
        after.restore(tmp_path)
    assert len(after) == 0


def test_another_example_is_refused_by_the_name_of_the_leaf(tmp_path: Path) -> None:
    before = opened()
    before.submit(sample(3))
    before.checkpoint(tmp_path)
    other = Table("r", {**EXAMPLE, "tokens": Ragged(np.int64, most=500)}, capacity=300, max_bytes=1 << 20, sampler="fifo", rate_limiter=Queue(300)).open(1)
    with pytest.raises(CheckpointError, match="tokens"):
        other.restore(tmp_path)


def test_items_in_a_file(tmp_path: Path) -> None:
    table = opened(storage=tmp_path / "items")
    for task in range(100):
        table.submit(sample(task))
    assert check(table.sample(100, timeout=0)) == list(range(100))
