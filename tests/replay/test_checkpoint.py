"""Checkpoints of replay tables: the same table again, or a refusal that says why."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from echo_core import CheckpointError, MinSize, SampleToInsertRatio, Server, Table

pytestmark = [pytest.mark.needs("echo-samplers")]

EXAMPLE = {"number": np.int64(0), "filler": np.zeros(5, np.float32)}


def items(start: int, stop: int) -> dict:
    numbers = np.arange(start, stop)
    return {"number": numbers, "filler": np.repeat(numbers.astype(np.float32), 5).reshape(-1, 5)}


def make(**changes: object) -> Server:
    arguments: dict = {"sampler": "prioritized", "capacity": 200, "seed": 3, "rate_limiter": MinSize(10)}
    return Server(EXAMPLE, 16, **arguments | changes)


@pytest.mark.parametrize("sampler", ["prioritized", "uniform", "fifo", "lifo", "min_heap", "max_heap", "hot_cold"])
def test_what_was_written_goes_on_as_if_nothing_had_happened(sampler: str, tmp_path: Path) -> None:
    first = make(sampler=sampler)
    keys = first.submit_batch(items(0, 330))
    first.update_priorities(keys[200:], np.linspace(0.1, 5, 130))
    first.table().delete(keys[250:260])
    first.submit_batch(items(1000, 1004))
    first.sample()
    folder = first.checkpoint(tmp_path / "point")
    second = make(sampler=sampler, seed=99).restore(tmp_path / "point")
    assert Path(folder).is_dir()
    assert second.table().keys().tolist() == first.table().keys().tolist()
    for name in ("size", "inserts", "samples"):
        assert second.table().counters()[name] == first.table().counters()[name]
    for _ in range(5):
        one, other = first.sample(), second.sample()
        assert one.keys.tolist() == other.keys.tolist()
        assert one.batch["number"].tolist() == other.batch["number"].tolist()
        assert (other.batch["filler"] == other.batch["number"][:, None]).all()
        assert one.probabilities.tolist() == other.probabilities.tolist()
    fresh = second.submit_batch(items(5000, 5300))
    assert not np.isin(fresh, first.submit_batch(items(5000, 5300))).any(), "a key named two items"
    assert len(second.table()) == 200


def test_a_newer_one_replaces_an_older_one(tmp_path: Path) -> None:
    server = make()
    server.submit_batch(items(0, 50))
    server.checkpoint(tmp_path)
    server.submit_batch(items(50, 70))
    server.checkpoint(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["00000002", "LATEST"]
    assert len(make().restore(tmp_path).table()) == 70


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rate_limiter": SampleToInsertRatio(4, 10, 100)}, "rate limiter: samples_per_insert is 1.0 in the checkpoint, and 4.0 here; min_diff is"),
        ({"capacity": 300}, "capacity"),
        ({"sampler": "uniform"}, "sampler"),
        ({"max_times_sampled": 2}, "max_times_sampled"),
    ],
)
def test_another_table_is_refused_by_name(changes: dict, words: str, tmp_path: Path) -> None:
    server = make()
    server.submit_batch(items(0, 50))
    server.checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=words):
        make(**changes).restore(tmp_path)


def test_another_spec_is_refused_by_its_leaf(tmp_path: Path) -> None:
    server = make()
    server.checkpoint(tmp_path)
    wider = {"number": np.int64(0), "filler": np.zeros(6, np.float32)}
    other = Server(wider, 16, sampler="prioritized", capacity=200, rate_limiter=MinSize(10))
    with pytest.raises(CheckpointError, match="filler"):
        other.restore(tmp_path)
    with pytest.raises(CheckpointError, match="other"):
        Server(tables=[Table("other", EXAMPLE, capacity=200, sampler="uniform")], batch_size=4).restore(tmp_path)
    with pytest.raises(CheckpointError, match="no whole checkpoint"):
        make().restore(tmp_path / "nothing")


def test_damage_is_found_and_named(tmp_path: Path) -> None:
    server = make()
    server.submit_batch(items(0, 50))
    folder = Path(server.checkpoint(tmp_path))
    for file in sorted(folder.iterdir()):
        whole = file.read_bytes()
        if not whole:
            continue
        for damaged in (whole[:-1], whole[: len(whole) // 2] + bytes([whole[len(whole) // 2] ^ 1]) + whole[len(whole) // 2 + 1 :]):
            file.write_bytes(damaged)
            fresh = make()
            with pytest.raises(CheckpointError, match=file.name):
                fresh.restore(tmp_path)
            assert len(fresh.table()) == 0
        file.write_bytes(whole)
    assert len(make().restore(tmp_path).table()) == 50


def test_written_while_everybody_works(tmp_path: Path) -> None:
    server = make(capacity=5000)
    server.submit_batch(items(0, 5000))
    stop = threading.Event()
    failures: list[BaseException] = []

    def work(job: int) -> None:
        number = 10_000 * (job + 1)
        try:
            while not stop.is_set():
                server.submit_batch(items(number, number + 50))
                number += 50
                sample = server.sample(timeout=10)
                assert (sample.batch["filler"] == sample.batch["number"].astype(np.float32)[:, None]).all()
                server.update_priorities(sample.keys, np.ones(16))
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(job,)) for job in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(4):
            server.checkpoint(tmp_path)
            again = make(capacity=5000).restore(tmp_path)
            assert 4000 < len(again.table()) <= 5000
            batch = again.table().peek(again.table().keys())[0]
            assert (batch["filler"] == batch["number"].astype(np.float32)[:, None]).all()
            again.sample()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert not failures


KILLED = """
import sys, numpy as np
from echo_core import Server
example = {"number": np.int64(0)}
server = Server(example, 16, sampler="prioritized", capacity=1000, seed=1)
number = 0
while True:
    server.submit_batch({"number": np.arange(number, number + 100)})
    number += 100
    server.checkpoint(sys.argv[1])
    print(number, flush=True)
"""


def test_a_killed_server_restarts_from_its_last_checkpoint(tmp_path: Path) -> None:
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [int(process.stdout.readline()) for _ in range(5)]
    os.kill(process.pid, signal.SIGKILL)
    seen += [int(line) for line in process.stdout.read().split()]
    process.wait()
    process.stdout.close()
    server = Server({"number": np.int64(0)}, 16, sampler="prioritized", capacity=1000, seed=1).restore(tmp_path)
    table = server.table()
    inserted = table.counters()["inserts"]
    assert seen[-1] <= inserted <= seen[-1] + 100
    batch, here = table.peek(table.keys())
    assert here.all() and batch["number"].tolist() == list(range(max(0, inserted - 1000), inserted))
    server.checkpoint(tmp_path)  # over what the killed one left


FRAMES = {"number": np.int64(0), "frame": np.zeros((40, 40), np.uint8)}


@pytest.mark.parametrize("example", [EXAMPLE, FRAMES], ids=["packed", "frames"])
def test_a_checkpoint_is_of_one_moment_whatever_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, example: dict) -> None:
    from echo_replay.checkpoint import checkpoint, table_snapshot

    def rows(start: int, stop: int) -> dict:
        numbers = np.arange(start, stop)
        return {name: np.repeat(numbers, leaf.size).astype(leaf.dtype).reshape(-1, *leaf.shape) for name, leaf in example.items()}

    def fresh() -> Server:
        return Server(example, 8, sampler="prioritized", capacity=200, seed=1)

    server = fresh()
    keys = server.submit_batch(rows(0, 200), priorities=np.arange(1, 201))
    table, steps, copies = server.table(), [], table_snapshot.copies

    def slowly(*arguments: object) -> object:
        """The copies, with somebody who overwrites, changes in place and deletes between any two of them."""
        for copied in copies(*arguments):  # type: ignore[arg-type]
            steps.append(len(copied[0]))
            table.submit_batch(rows(1000, 1030))
            table.update_items(keys[150:160], {name: leaf for name, leaf in rows(5000, 5010).items() if name != "number"})
            table.delete(keys[190:192])
            yield copied

    monkeypatch.setattr(table_snapshot, "copies", slowly)
    monkeypatch.setattr(checkpoint, "CHUNK_BYTES", 20 * table.spec.sample_bytes)
    checkpoint.save({"default": table}, tmp_path)
    again = fresh().restore(tmp_path).table()
    batch, here = again.peek(again.keys())
    assert here.all() and (again.keys() == keys).all()
    for name, leaf in rows(0, 200).items():
        np.testing.assert_array_equal(batch[name], leaf)
    assert (again.top(3)[0] == keys[:-4:-1]).all()
    assert sum(steps) == 200 and max(steps) > 20  # many of them were put aside by the writer
    # Writers are not stopped once the checkpoint is written, and the restored table goes on.
    again.submit_batch(rows(2000, 2100))
    assert again.peek(again.keys())[0]["number"].tolist() == [*range(100, 200), *range(2000, 2100)]


@pytest.mark.timeout(120)
def test_writers_go_on_while_a_large_table_is_written(tmp_path: Path) -> None:
    """Self-checking rows under churn: each restored row is whole, and the rows are those of one moment."""
    example = {"number": np.int64(0), "frame": np.zeros(8000, np.int64)}
    capacity = 2000  # 128 MB, more than writers may put aside at once

    def fresh() -> Server:
        return Server(example, 8, sampler="uniform", capacity=capacity, seed=1)

    server, stop, written = fresh(), threading.Event(), [0]

    def write() -> None:
        while not stop.is_set():
            n = written[0]
            server.submit({"number": np.int64(n), "frame": np.full(8000, n)})
            written[0] = n + 1

    writer = threading.Thread(target=write)
    writer.start()
    try:
        while written[0] < capacity:
            time.sleep(0.01)
        before = written[0]
        server.checkpoint(tmp_path)
        assert written[0] > before
    finally:
        stop.set()
        writer.join()
    again = fresh().restore(tmp_path).table()
    batch, here = again.peek(again.keys())
    assert here.all() and (batch["frame"] == batch["number"][:, None]).all()
    # One writer, and the oldest goes: the rows of one moment are consecutive numbers.
    assert (np.diff(batch["number"]) == 1).all() and capacity - 1 <= len(again) <= capacity
