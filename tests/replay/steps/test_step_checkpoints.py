"""Checkpoints of tables of items over steps."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from step_tables import STEP, episode, serve, step

from echo_core import CheckpointError, Client, Sequences, Server, Steps, Table
from echo_core.server import returning
from echo_testing.ports import free_port
from echo_testing.processes import until

pytestmark = pytest.mark.needs("echo-samplers")


def test_a_checkpoint_of_a_large_table_beside_writers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps that are overwritten before their turn are left out, with the items that have them."""
    server = serve(Sequences(4, period=2), capacity=400)
    table = server.table()
    writer = table.writer()
    for i in range(400):
        writer.send(step(i))
    real = type(table).step_rows
    late: list[int] = []

    def read(leaf: int, number: int, n: int) -> Any:
        if not late:
            late.append(number)
            for i in range(100):
                writer.send(step(400 + i))
        return real(table, leaf, number, n)

    from echo_replay.checkpoint import step_checkpoint

    class Slow:
        """The table, whose writers go on while its steps are read."""

        step = table.step
        step_rows = staticmethod(read)

    save = step_checkpoint.save_steps
    monkeypatch.setattr("echo_replay.checkpoint.checkpoint.save_steps", lambda folder, index, _, *rest: save(folder, index, Slow, *rest))
    keys = table.keys()
    server.checkpoint(tmp_path)
    again = serve(Sequences(4, period=2), capacity=400).restore(tmp_path)
    restored = again.table()
    left = restored.keys()
    assert 0 < len(left) < len(keys) and set(left.tolist()) < set(keys.tolist())
    sample, here = restored.peek(left)
    assert here.all() and (np.diff(sample.batch["obs"][..., 0], axis=1) == 1).all() and sample.batch["obs"].min() == 100
    again.sample(timeout=5)
    server.close()


def test_a_checkpoint_of_other_items_is_refused(tmp_path: Path) -> None:
    server = serve(Sequences(4, period=2))
    episode(server.table().writer(), 1, 9)
    server.checkpoint(tmp_path)
    for other, what in ((serve(Sequences(4, period=1)), "another items"), (serve(Sequences(4, period=2), capacity=999), "another")):
        with pytest.raises(CheckpointError, match=what):
            other.restore(tmp_path)
    (folder,) = (path for path in tmp_path.iterdir() if path.is_dir())
    path = folder / "0.step.0"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    with pytest.raises(CheckpointError, match=r"0\.step\.0 is corrupted"):
        serve(Sequences(4, period=2)).restore(tmp_path)


@pytest.mark.needs("echo-tcp")
def test_restored_episodes_of_workers_that_do_not_return_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returning, "SECONDS", 3.0)
    table = Table("steps", STEP, capacity=100, items=Sequences(4, pad=True), sampler="uniform")

    address = f"tcp://127.0.0.1:{free_port()}"

    def server() -> Server:
        return Server(tables=[table], batch_size=2, transport=address)

    first = server().start()
    with Client(first.address, Steps(STEP)) as returns:
        gone = first.table().writer()
        for writer in (returns, gone):
            for i in range(3):
                writer.send(step(i))
        returns.wait()
        first.checkpoint(tmp_path)
        first.close(restarting=True)
        with server().restore(tmp_path) as again:
            assert again.stats()["table/steps/streams"] == 2
            returns.send(step(3))
            returns.wait()
            assert until(lambda: again.stats()["table/steps/streams"] == 1, "the episode of the worker that is gone ends")
            assert again.stats()["table/steps/truncated"] == 1 and len(again.table()) == 2  # its padded window, and a whole one
            returns.send(step(4), end="terminated")
            returns.wait()
            assert again.stats()["table/steps/streams"] == 0
    assert not any(thread.name == "echo-returns" for thread in threading.enumerate())
