"""Checkpoints that fail, and restores that fail: the table goes on, what was on disk stays, and nothing is changed by half."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import CheckpointError, Sequences, Server, Table
from echo_replay.checkpoint import checkpoint, table_snapshot

pytestmark = [pytest.mark.needs("echo-samplers")]

EXAMPLE = {"number": np.int64(0), "half": np.zeros(65536, np.int64)}  # half a MiB: two of them are a block of what writers put aside
CAPACITY = 150  # more than 64 of these blocks


def make(**changes: Any) -> Server:
    return Server(EXAMPLE, 4, **{"sampler": "uniform", "capacity": CAPACITY, "seed": 3} | changes)


def write(server: Server, start: int, stop: int) -> None:
    for number in range(start, stop):
        server.submit({"number": np.int64(number), "half": np.full(65536, number)}, timeout=5)


def numbers(server: Server) -> list[int]:
    batch, here = server.table().peek(server.table().keys())
    assert here.all() and (batch["half"] == batch["number"][:, None]).all()
    return batch["number"].tolist()


def steps(count: int) -> Server:
    table = Table("steps", {"obs": np.float32(0)}, capacity=200, sampler="uniform", seed=3, items=Sequences(4, period=2))
    server = Server(tables=[table], batch_size=4)
    writer: Any = server.table().writer()
    for number in range(count):
        writer.send({"obs": np.float32(number)})
    return server


# ---- checkpoints that fail ------------------------------------------------------------------------------------------------------


def raising(error: BaseException) -> Callable[..., Any]:
    def function(*arguments: Any, **more: Any) -> Any:
        raise error

    return function


def no_more_files(patch: pytest.MonkeyPatch) -> None:
    def second(path: Any, *arguments: Any) -> Any:
        if str(path).endswith("leaf.1"):
            raise OSError(errno.EMFILE, "Too many open files")
        return open(path, *arguments)

    patch.setattr(checkpoint, "open", second, raising=False)


def full_disk_at_once(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(checkpoint, "_save_items", raising(OSError(errno.EDQUOT, "Disk quota exceeded")))


def no_state(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("echo_samplers.native.NativeSampler.state", raising(MemoryError("no memory for the sampler's state")))


def full_disk_later(patch: pytest.MonkeyPatch) -> None:
    copies = table_snapshot.copies

    def two(*arguments: Any) -> Iterator[Any]:
        whole = copies(*arguments)
        yield next(whole)
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(table_snapshot, "copies", two)


@pytest.mark.parametrize("fault", [no_state, no_more_files, full_disk_at_once, full_disk_later])
def test_after_one_that_failed_writers_go_on_and_the_next_is_whole(
    fault: Callable[[pytest.MonkeyPatch], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = make()
    write(server, 0, CAPACITY)
    server.checkpoint(tmp_path)
    with monkeypatch.context() as patch:
        fault(patch)
        with pytest.raises((OSError, MemoryError)):
            server.checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000001", "LATEST"]
    write(server, CAPACITY, CAPACITY + 10)
    server.checkpoint(tmp_path)
    assert numbers(make().restore(tmp_path)) == list(range(10, CAPACITY + 10))
    write(server, 1000, 1000 + CAPACITY)
    assert numbers(server) == list(range(1000, 1000 + CAPACITY))


def test_a_table_of_steps_goes_on_after_one_that_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = steps(60)
    table: Any = server.table()
    with monkeypatch.context() as patch:
        patch.setattr(table_snapshot, "copies", raising(OSError(errno.EIO, "Input/output error")))
        with pytest.raises(OSError, match="Input/output"):
            server.checkpoint(tmp_path)
    writer = table.writer()
    for number in range(500):
        writer.send({"obs": np.float32(number)})
    server.checkpoint(tmp_path)
    assert steps(0).restore(tmp_path).table().keys().tolist() == table.keys().tolist()


@pytest.mark.parametrize("wrong", ["missing", "twice", "another"])
def test_rows_that_are_not_the_snapshots_are_not_published(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = make()
    write(server, 0, 20)
    server.checkpoint(tmp_path)
    copies = table_snapshot.copies

    def others(*arguments: Any) -> Iterator[Any]:
        for rows, leaves in copies(*arguments):
            if wrong == "twice":
                yield rows[:1], [leaf[:1] for leaf in leaves]
            if wrong == "another":
                rows = np.where(rows == 3, np.uint32(CAPACITY - 1), rows)
            yield (rows[1:], [leaf[1:] for leaf in leaves]) if wrong == "missing" else (rows, leaves)

    with monkeypatch.context() as patch:
        patch.setattr(table_snapshot, "copies", others)
        with pytest.raises(CheckpointError, match="'default'.* rows"):
            server.checkpoint(tmp_path)
    assert numbers(make().restore(tmp_path)) == list(range(20))


# ---- what killed ones leave -----------------------------------------------------------------------------------------------------

CHILD = """
import os, signal, sys
import numpy as np
from echo_core import Server
from echo_replay.checkpoint import checkpoint

real, when = os.getpid(), sys.argv[2]
os.getpid = lambda: 7  # as in a container, whose processes have the same numbers after each start
server = Server({"number": np.int64(0)}, 4, sampler="uniform", capacity=100, seed=1)
server.submit_batch({"number": np.arange(50)})
write = checkpoint._write

def stopping(path, data):
    if path.name != "manifest.json":
        return write(path, data)
    if when == "killed":
        os.kill(real, signal.SIGKILL)
    print("writing", flush=True)
    sys.stdin.readline()
    write(path, data)

checkpoint._write = stopping
print(server.checkpoint(sys.argv[1]), flush=True)
"""


def child(path: Path, when: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", CHILD, str(path), when], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def small(items: int = 50) -> Server:
    server = Server({"number": np.int64(0)}, 4, sampler="uniform", capacity=100, seed=1)
    server.submit_batch({"number": np.arange(items)})
    return server


def test_what_a_killed_one_left_is_no_obstacle_and_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small().checkpoint(tmp_path)
    for _ in range(2):
        with child(tmp_path, "killed") as process:
            process.communicate()
        assert process.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) > 2  # what the last one left; it removed what was left before
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: 7)
        small().checkpoint(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "LATEST"]


def test_one_that_another_process_is_writing_stays(tmp_path: Path) -> None:
    with child(tmp_path, "slow") as process:
        assert process.stdin is not None and process.stdout is not None
        assert process.stdout.readline() == "writing\n"
        (folder,) = tmp_path.iterdir()
        small(70).checkpoint(tmp_path)
        assert folder.is_dir() and (folder / "0.leaf.0").is_file()
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{tmp_path / '00000002'}\n"
    fresh = Server({"number": np.int64(0)}, 4, sampler="uniform", capacity=100, seed=1).restore(tmp_path)
    assert len(fresh.table()) == 50
    assert sorted(path.name for path in tmp_path.iterdir()) == ["00000002", "LATEST"]


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    others = ["42", "00000042", "00000001", "00000007/deep", ".hidden", "12345678901234567890"]
    for name in others:
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "precious").write_text("mine")
    (tmp_path / "00000042" / "manifest.json").write_text('{"files": []}')
    (tmp_path / "00000003").write_text("a file")
    before = sorted(path for path in tmp_path.rglob("*"))
    server = small()
    assert Path(server.checkpoint(tmp_path)).name == "00000002"  # the first that is free
    for _ in range(2):
        folder = server.checkpoint(tmp_path)
    now = {path for path in tmp_path.rglob("*") if Path(folder) not in (path, *path.parents)}
    assert sorted(now - {tmp_path / "LATEST"}) == before
    assert len(Server({"number": np.int64(0)}, 4, sampler="uniform", capacity=100).restore(tmp_path).table()) == 50


def test_others_may_read_a_checkpoint_as_they_may_read_what_is_made_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside").mkdir()
    assert Path(small().checkpoint(tmp_path)).stat().st_mode == (tmp_path / "beside").stat().st_mode
