"""Tests tables that grow: rows get their memory as they are used, and nothing else about them differs."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from echo_core import Sequences, Server, Table
from echo_core.base.errors import ConfigError
from echo_core.base.memory.cgroup import available_memory

pytestmark = pytest.mark.needs("echo-samplers")

SMALL, LARGE = np.zeros(3, np.int64), np.zeros(2000, np.int64)  # of 24 bytes, and of 16 000: 4 MiB are 262 of them
PACKED = {"number": np.zeros((), np.int64), "flag": np.zeros((), np.uint8)}


def resident() -> int:
    """Bytes of memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def make(example: Any = LARGE, **options: Any) -> Any:
    return Table("t", example, **{"capacity": 20_000, "sampler": "uniform", "initial": 100, **options}).open(8)


def test_a_table_takes_the_memory_of_what_it_holds() -> None:
    before = resident()
    table = make()  # 320 MB when it is full
    assert resident() - before < 60e6
    assert table.stats()["rows_ready"] == 100
    for i in range(1000):
        table.submit(np.full(2000, i))
    assert 1000 <= table.stats()["rows_ready"] < 1600
    assert resident() - before < 100e6
    assert (table.peek(table.keys())[0] == np.arange(1000)[:, None]).all(), "the items of earlier parts are where they were"


def test_without_initial_all_memory_is_there_at_once() -> None:
    assert make(SMALL, initial=None).stats()["rows_ready"] == 20_000


@pytest.mark.parametrize("example", [SMALL, PACKED], ids=["arrays", "records"])
def test_a_growing_table_draws_what_a_whole_one_draws(example: Any) -> None:
    growing, whole = (make(example, seed=5, sampler="prioritized", capacity=500_000, initial=initial) for initial in (1, None))
    batch = {"number": np.arange(1000), "flag": np.ones(1000, np.uint8)} if example is PACKED else np.arange(3000).reshape(1000, 3)
    for turn in range(600):  # 100 000 more than fit
        for table in (growing, whole):
            table.submit_batch(batch, priorities=np.arange(1000.0) + turn)
        mine, theirs = growing.sample(), whole.sample()
        np.testing.assert_equal(mine.batch, theirs.batch)
        np.testing.assert_array_equal(mine.probabilities, theirs.probabilities)
    assert growing.stats()["rows_ready"] == 500_000


def test_writers_learners_updates_and_checkpoints_while_a_table_grows(tmp_path: Path) -> None:
    """Every item repeats one number, so a torn or foreign row would show. 6000 items of 16 kB make the table grow 23 times."""
    tables = [Table("t", LARGE, capacity=8000, sampler="prioritized", initial=1)]
    with Server(tables=tables, batch_size=8) as server:
        table, errors = server.tables["t"], []

        def write(writer: int) -> None:
            for i in range(2000):
                table.submit(np.full(2000, writer * 2000 + i), priority=1.0 + i % 3)

        def learn() -> None:
            while any(thread.is_alive() for thread in writers):
                if len(table):
                    drawn = table.sample()
                    errors.extend(row for row in drawn.batch if (row != row[0]).any())
                    table.update_priorities(drawn.keys, np.ones(8))

        writers = [threading.Thread(target=write, args=(w,)) for w in range(3)]
        learners = [threading.Thread(target=learn) for _ in range(2)]
        for thread in [*writers, *learners]:
            thread.start()
        server.checkpoint(tmp_path / "middle")
        for thread in [*writers, *learners]:
            thread.join()
        assert not errors
        rows, here = table.peek(table.keys())
        assert here.all() and sorted(rows[:, 0].tolist()) == list(range(6000)) and (rows == rows[:, :1]).all()
        server.checkpoint(tmp_path / "end")
    for name, most in (("middle", 6000), ("end", 6000)):
        with Server(tables=tables, batch_size=8).restore(tmp_path / name) as again:
            restored = again.tables["t"]
            assert len(restored) <= most and (name == "middle" or len(restored) == most)
            if len(restored):
                rows, here = restored.peek(restored.keys())
                assert here.all() and (rows == rows[:, :1]).all()
            restored.submit(np.full(2000, 7))


def test_what_growing_tables_may_still_take_is_not_promised_twice() -> None:
    item = 8 * 1024**2
    rows = int(available_memory() * 0.7) // item
    huge = np.zeros(item, np.uint8)
    first = make(huge, capacity=rows, initial=1)
    assert first.bytes_to_come() == (rows - 1) * item
    with pytest.raises(MemoryError, match=r"table 't': .* are available: lower capacity"):
        make(huge, capacity=rows, initial=1)
    first.submit(huge)
    first.submit(huge)
    assert first.bytes_to_come() == (rows - 2) * item
    del first
    assert make(huge, capacity=rows, initial=1).stats()["rows_ready"] == 1, "the memory of a table that is gone is free again"


def test_tables_of_steps_grow_too() -> None:
    table = Table("t", LARGE, capacity=5000, sampler="uniform", items=Sequences(4), initial=50).open(4)
    assert table.stats()["rows_ready"] == 50
    writer = table.writer()
    for i in range(1000):
        writer.send(np.full(2000, i))
    assert 1000 <= table.stats()["rows_ready"] < 1600
    drawn = table.sample(64)
    assert (drawn.batch == drawn.batch[..., :1]).all(), "no step is torn"
    assert (np.diff(drawn.batch[..., 0], axis=1) == 1).all(), "the steps of an item follow each other"


@pytest.mark.parametrize(("options", "why"), [({"initial": 0}, "initial must be"), ({"initial": 30_000}, "initial must be"), ({"initial": 1.5}, "initial")])
def test_a_wrong_initial_is_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        make(**options)


def test_initial_and_storage_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="initial is for tables in memory"):
        make(storage=tmp_path / "items")


def test_a_file_of_configuration_sets_initial(tmp_path: Path) -> None:
    file = tmp_path / "echo.toml"
    file.write_text('[server]\nbatch_size = 4\n[[server.tables]]\nname = "t"\ncapacity = 5000\nsampler = "uniform"\ninitial = 64\n')
    with Server.from_config(file, SMALL) as server:
        assert server.tables["t"].stats()["rows_ready"] == 64


class GrowingMachine(RuleBasedStateMachine):
    """A growing table against a dict, over any sequence of inserts, deletions, draws and changes."""

    @initialize(capacity=st.integers(1, 900), initial=st.integers(1, 900), example=st.sampled_from([SMALL, LARGE]))
    def open(self, capacity: int, initial: int, example: np.ndarray) -> None:
        self.capacity, self.width, self.next = capacity, example.size, 0
        self.table = make(example, capacity=capacity, initial=min(initial, capacity), seed=1)
        self.held: dict[int, int] = {}  # key to number, oldest first

    @rule(count=st.integers(1, 400))
    def insert(self, count: int) -> None:
        numbers = np.arange(self.next, self.next + count)
        self.next += count
        self.held.update(zip(self.table.submit_batch(np.repeat(numbers, self.width).reshape(count, -1)).tolist(), numbers.tolist(), strict=True))
        while len(self.held) > self.capacity:
            del self.held[next(iter(self.held))]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(list(self.held)))
        del self.held[key]
        assert self.table.delete([key]) == 1

    @precondition(lambda self: self.held)
    @rule(n=st.integers(1, 64))
    def sample(self, n: int) -> None:
        drawn = self.table.sample(n)
        for key, row in zip(drawn.keys.tolist(), drawn.batch, strict=True):
            assert (row == self.held[key]).all()

    @invariant()
    def every_item_is_there(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.table.keys().tolist() == list(self.held)
        if self.held:
            assert self.table.peek(self.table.keys())[0][:, 0].tolist() == list(self.held.values())
        assert len(self.held) <= self.table.stats()["rows_ready"] <= self.capacity


TestGrowing = GrowingMachine.TestCase
TestGrowing.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
