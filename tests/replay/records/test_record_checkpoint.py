"""Checkpoints of tables of records."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from record_chunks import Worker, record

from echo_core import CheckpointError, MinSize, Queue, Ragged, Table
from echo_core.spec.ragged import RaggedSpec
from echo_core.store.sampler import Keys, Priorities, Sampler

pytestmark = pytest.mark.needs("echo-samplers")

EXAMPLE = {"tokens": Ragged(np.int32, most=500), "boxes": Ragged(np.float32, (2,), "box", 9), "task": np.int64(0)}
SPEC = RaggedSpec.from_example(EXAMPLE)


def sample(task: int) -> dict:
    n = task * 37 % 501
    return {"tokens": np.arange(n, dtype=np.int32) + task, "boxes": np.full((task % 10, 2), task, np.float32), "task": np.int64(task)}


def opened(max_bytes: int = 1 << 20, capacity: int = 300, **options):
    options = {"sampler": "fifo", "rate_limiter": Queue(300), **options}
    return Table("r", EXAMPLE, capacity=capacity, max_bytes=max_bytes, **options).open(1)


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


def test_a_larger_capacity_keeps_the_keys(tmp_path: Path) -> None:
    before = opened(lease_timeout=60.0)
    keys = [before.submit(sample(task)) for task in range(250)]
    assert before.ack(before.sample(100, timeout=0).keys) == 100
    lent = before.sample(7, timeout=0)
    before.checkpoint(tmp_path)
    after = opened(4 << 20, 5000, lease_timeout=60.0)
    after.restore(tmp_path)
    assert after.capacity == 5000 and sorted([*after.keys().tolist(), *lent.keys.tolist()]) == sorted(keys[100:])
    for task in range(250, 400):
        after.submit(sample(task))
    assert check(after.sample(300, timeout=0)) == list(range(100, 400)) and after.ack(lent.keys) == 7
    with pytest.raises(CheckpointError, match="rate limiter"):
        opened(capacity=5000, rate_limiter=Queue(4000), lease_timeout=60.0).restore(tmp_path)


@pytest.mark.parametrize("sampler", ["prioritized", "uniform", "fifo", "lifo", "max_heap", {"type": "hot_cold", "hot_capacity": 20}], ids=str)
@pytest.mark.parametrize("capacity", [60, 70_000])
def test_items_move_to_other_rows_with_their_priorities(sampler: str | dict, capacity: int, tmp_path: Path) -> None:
    """Into fewer rows, of which some are not there any more; and into a table whose keys have another form."""
    options = {"rate_limiter": MinSize(1), "policy_versions": True, "remover": "min_heap"}
    before = opened(sampler=sampler, **options)
    keys = [before.submit(sample(task), priority=task + 1.0, policy_version=task) for task in range(300)]
    assert before.delete(keys[:200] + keys[250:]) == 250
    again = [before.submit(sample(task), priority=task + 1.0, policy_version=task) for task in range(5)]
    before.checkpoint(tmp_path)
    after = opened(1 << 20, capacity, sampler=sampler, **options)
    after.restore(tmp_path)
    assert len(after) == 55
    found, here = after.peek(after.keys())
    assert here.all() and check(found) == [*range(200, 250), *range(5)]
    there = before.peek(again)[1].all() and not after.peek(keys[250:])[1].any()
    assert there, "an old key names no other item"
    assert after.policy_versions()[0].tolist() == [*range(5), *range(200, 250)]
    expected, top = before.peek(before.top(55)[0])[0], after.peek(after.top(55)[0])[0]
    assert sorted(after.top(55)[1]) == pytest.approx(sorted(before.top(55)[1]))
    if sampler not in ("uniform", "fifo", "lifo"):
        assert check(top) == check(expected)
    assert set(check(after.sample(1 if sampler == "max_heap" else 40, timeout=0))) <= {*range(200, 250), *range(5)}
    for task in range(60):  # the removers go on, too
        after.submit(sample(task), priority=1000.0, policy_version=task)
    assert len(after) == min(capacity, 115) and check(after.peek(after.newest(60))[0]) == list(range(60))


def test_what_another_capacity_cannot_hold_is_refused(tmp_path: Path) -> None:
    options = {"rate_limiter": MinSize(1), "sampler": "uniform"}
    before = opened(**options)
    for task in range(200):
        before.submit(sample(task))
    before.checkpoint(tmp_path)
    after = opened(capacity=199, **options)
    with pytest.raises(CheckpointError, match="has 200 items, and the capacity is 199; raise it"):
        after.restore(tmp_path)
    assert len(after) == 0 and after.submit(sample(1))


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


def test_records_that_wait_for_room_are_kept(tmp_path: Path) -> None:
    """Their workers were told that they are stored."""
    before = opened(rate_limiter=Queue(2))
    worker = Worker(before, 7)
    for task in (1, 2, 3):
        worker.put(*worker.cut(record(SPEC, [np.asarray(value) for value in SPEC.treedef.flatten_up_to(sample(task))], priority=1.0, version=task)))
    assert before.stats()["size"] == 2 and before.stats()["records_waiting"] == 1
    before.checkpoint(tmp_path)
    after = opened(rate_limiter=Queue(2))
    after.restore(tmp_path)
    assert after.stats()["size"] == 2 and after.stats()["records_waiting"] == 1
    assert [check(after.sample(1, timeout=0)) for _ in range(3)] == [[1], [2], [3]]


@pytest.mark.parametrize(("at", "value"), [(0, 501), (0, 100), (-1, None)])
def test_a_damaged_waiting_record_is_refused(at: int, value: int | None) -> None:
    """A checksum detects accidents, but not what somebody changed on purpose: a length that is impossible or wrong, or a missing end."""
    table = opened(rate_limiter=Queue(1))
    worker = Worker(table, 7)
    for task in (1, 2):
        worker.put(*worker.cut(record(SPEC, [np.asarray(value) for value in SPEC.treedef.flatten_up_to(sample(task))])))
    saved = table.below(np.empty(0, np.uint32))
    table.check_records(**named(saved))
    waiting = saved["waiting"][:at].copy() if value is None else saved["waiting"].copy()
    if value is not None:
        waiting[:4].view(np.uint32)[at] = value
    with pytest.raises(ValueError, match="waiting record|longer than"):
        table.check_records(**named({**saved, "waiting": waiting}))


def named(saved: dict) -> dict:
    return {"lengths": saved["lengths"], "data": saved["bytes"], "waiting": saved["waiting"]}


class Interrupted(Sampler):
    """Gives the oldest key. While its state is saved, `happens` is called."""

    storage = "replay"
    replacement = True

    @dataclass(frozen=True)
    class Options:
        capacity: int

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.held: dict[int, None] = {}
        self.happens: Callable[[], None] = lambda: None

    def insert(self, keys: Keys, priorities: Priorities | None = None) -> None:
        self.held.update(dict.fromkeys(keys.tolist()))

    def delete(self, keys: Keys) -> None:
        for key in keys.tolist():
            del self.held[key]

    def update(self, keys: Keys, priorities: Priorities) -> None:
        pass

    def sample(self, n: int, rng: np.random.Generator) -> tuple[Keys, Priorities]:
        return np.full(n, next(iter(self.held)), np.uint64), np.ones(n)

    def __len__(self) -> int:
        return len(self.held)

    def state(self) -> dict[str, np.ndarray]:
        self.happens()
        return {"keys": np.array(list(self.held), np.uint64)}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        self.held = dict.fromkeys(state["keys"].tolist())


def test_a_record_that_came_during_the_pause_enters_after_it(tmp_path: Path) -> None:
    """Nothing else need come: a learner may wait for this record."""
    table = Table("r", EXAMPLE, capacity=300, max_bytes=1 << 20, sampler=Interrupted(capacity=300), rate_limiter=MinSize(2)).open(1)
    table.submit(sample(1))
    worker = Worker(table, 7)
    data = record(SPEC, [np.asarray(value) for value in SPEC.treedef.flatten_up_to(sample(2))])
    table.sampler.happens = lambda: worker.put(*worker.cut(data))
    table.checkpoint(tmp_path)
    assert table.stats()["size"] == 2 and table.stats()["records_waiting"] == 0
