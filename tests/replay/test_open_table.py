"""A table works without a server: `Table(...).open()`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from echo_core import ClosedError, ReplayTable, Sequences, Server, Steps, StepTable, Table

pytestmark = [pytest.mark.needs("echo-samplers"), pytest.mark.every_python]

EXAMPLE = {"number": np.int64(0)}


def described() -> Table:
    return Table("t", EXAMPLE, capacity=100, sampler="prioritized", seed=1)


def test_it_is_the_table_that_a_server_has() -> None:
    with described().open() as table, Server(tables=[described()], batch_size=4) as server:
        assert type(table) is type(server.table()) is ReplayTable
        for one in (table, server.table()):
            keys = one.submit_batch({"number": np.arange(50)})
            one.update_priorities(keys, np.arange(50, dtype=np.float64))
        mine, theirs = table.sample(20), server.sample(n=20, timeout=10)
        assert mine is not None and theirs is not None
        assert mine.batch["number"].tolist() == theirs.batch["number"].tolist(), "the same seed draws the same items"


def test_it_is_closed_at_the_end_of_the_block() -> None:
    with described().open() as table:
        table.submit(EXAMPLE)
        assert table.sample().batch["number"].shape == (1,), "a batch has one item unless a number is given"
    assert table.closed
    with pytest.raises(ClosedError):
        table.submit(EXAMPLE)
    assert table.sample() is None
    with pytest.raises(ClosedError, match="restore into a new one"):
        table.restore("anywhere")


def test_its_checkpoint_fills_another_table_and_that_of_a_server(tmp_path: Path) -> None:
    with described().open() as table:
        keys = table.submit_batch({"number": np.arange(10)})
        written = table.checkpoint(tmp_path)
    assert Path(written).parent == tmp_path
    with described().open() as again:
        again.restore(tmp_path)
        assert again.keys().tolist() == keys.tolist()
        assert again.peek(keys)[0]["number"].tolist() == list(range(10))
    with Server(tables=[described()], batch_size=4).restore(tmp_path) as server:
        assert server.table().keys().tolist() == keys.tolist()


def test_a_table_of_steps_has_its_writer() -> None:
    with Table("s", EXAMPLE, capacity=100, sampler="uniform", items=Sequences(2)).open() as table:
        assert isinstance(table, StepTable) and isinstance(Steps(EXAMPLE), Steps)
        writer = table.writer()
        for number in range(6):
            writer.send({"number": np.int64(number)})
        first, second = table.sample(1).batch["number"][0].tolist()
        assert second == first + 1
