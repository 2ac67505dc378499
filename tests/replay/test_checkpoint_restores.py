"""Restores that fail: refused by name, and nothing is changed by half."""

from __future__ import annotations

import json
import traceback
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import CheckpointError, ClosedError, MinSize, Sequences, Server, Slices, Table

pytestmark = [pytest.mark.needs("echo-samplers")]


def rewritten(root: Path, change: Callable[[Path, dict], None], table: int = 0) -> None:
    """The newest checkpoint in `root` with its manifest changed, and a checksum that fits."""
    folder = root / (root / "LATEST").read_text().split()[0]
    manifest = json.loads((folder / "manifest.json").read_text())
    change(folder, manifest["tables"][table])
    text = json.dumps(manifest).encode()
    (folder / "manifest.json").write_bytes(text)
    (root / "LATEST").write_text(f"{folder.name} {zlib.crc32(text):08x}\n")


def other_array(name: str, array: np.ndarray) -> Callable[[Path, dict], None]:
    def change(folder: Path, table: dict) -> None:
        (folder / table["files"][name]["file"]).write_bytes(array.tobytes())
        table["files"][name] |= {"shape": list(array.shape), "crc32": zlib.crc32(array.tobytes())}

    return change


def one() -> Server:
    return Server({"number": np.int64(0), "filler": np.zeros(5, np.float32)}, 16, sampler="prioritized", capacity=200, rate_limiter=MinSize(10))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (other_array("rows", np.arange(10, 60, dtype=np.uint32) * 5), "below 200"),
        (other_array("rows", np.zeros(50, np.uint32)), "different numbers"),
        (other_array("rows", np.arange(51, dtype=np.uint32)), "stored"),
        (other_array("generations", np.zeros(3, np.uint32)), r"generations are uint32\[3\], not uint32\[200\]"),
        (other_array("stored", np.zeros(50, np.uint32)), "stored"),
        (other_array("loaned", np.array([199], np.uint32)), "loaned"),
        (other_array("versions", np.zeros(3, np.uint64)), r"versions are uint64\[3\]"),
        (other_array("leaf/0", np.zeros(3, np.float32)), "leaf/0"),
        (lambda folder, table: table["files"]["rows"].update(file="../../secret"), "secret"),
        (lambda folder, table: table["files"]["rows"].update(crc32="0"), "crc32"),
        (lambda folder, table: table["files"].pop("rows"), "rows"),
        (lambda folder, table: table.pop("identity"), "identity|what table"),
        (lambda folder, table: table.update(files=7), "files|iterable"),
        (lambda folder, table: table.update(inserts=-1), "inserts"),
        (lambda folder, table: table.update(random="x"), "random|state"),
        (lambda folder, table: table["identity"].update(spec={"leaves": 1}), "manifest.json"),
        (lambda folder, table: table["identity"].update(spec=[]), "manifest.json"),
        (lambda folder, table: table["identity"]["spec"]["leaves"][0].update(dtype="no such dtype"), "manifest.json"),
        (lambda folder, table: table["files"].update(rows=[]), "manifest.json"),
        (lambda folder, table: table["files"]["rows"].update(file=7), "manifest.json"),
        (lambda folder, table: table["files"]["rows"].update(shape={"a": 1}), "manifest.json"),
        (lambda folder, table: table.update(inserts={}), "manifest.json"),
    ],
)
def test_what_somebody_wrote_on_purpose_is_refused(change: Callable[[Path, dict], None], text: str, tmp_path: Path) -> None:
    """Checksums fit, and still nothing is copied to where it does not belong."""
    first = one()
    first.submit_batch({"number": np.arange(50), "filler": np.zeros((50, 5), np.float32)})
    first.checkpoint(tmp_path)
    rewritten(tmp_path, lambda folder, table: None)
    assert len(one().restore(tmp_path).table()) == 50
    rewritten(tmp_path, change)
    with pytest.raises(CheckpointError, match=text):
        one().restore(tmp_path)


def two(items: int) -> Server:
    """Two tables, the second one with a remover of its own."""
    example = {"number": np.int64(0)}
    more = {"capacity": 100, "seed": 1}
    tables = [Table("first", example, sampler="prioritized", **more), Table("second", example, sampler="uniform", remover="lifo", **more)]
    server = Server(tables=tables, batch_size=4)
    for name in ("first", "second"):
        if items:
            server.table(name).submit_batch({"number": np.arange(items)})
    return server


def steps(count: int, items: Any = None) -> Server:
    table = Table("steps", {"obs": np.float32(0)}, capacity=200, sampler="uniform", seed=3, items=items or Sequences(4, period=2))
    server = Server(tables=[table], batch_size=4)
    writer: Any = server.table().writer()
    for number in range(count):
        writer.send({"obs": np.float32(number)})
    return server


def flipped(name: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        path = folder / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return change


def told(change: Callable[[Path, dict], None], table: int = 0) -> Callable[[Path], None]:
    """A manifest that somebody changed, with checksums that fit."""
    return lambda folder: rewritten(folder.parent, change, table)


def figures(table: Any) -> dict[str, Any]:
    """The contents of a table, its samplers and its store."""
    held = [len(sampler) for sampler in (table.sampler, table.remover) if sampler is not None]
    return {**table.counters(), "held": held, "random": table.rng.bit_generator.state, "steps": getattr(table, "steps_held", 0)}


def slices(count: int) -> Server:
    return steps(count, Slices(4))


U64 = np.uint64
NOT_HERE = [
    (two, flipped("1.leaf.0"), "1.leaf.0 is corrupted"),
    (two, flipped("1.times"), "1.times is corrupted"),
    (two, told(lambda folder, table: table.update(random="x"), 1), "random|state"),
    (two, told(lambda folder, table: table.update(random={"bit_generator": "MT19937"}), 0), "random|state|PCG64"),
    (two, told(other_array("sampler/keys", np.full(60, 100, U64)), 1), "keys"),
    (two, told(other_array("remover/keys", np.zeros(60, U64)), 1), "keys"),
    (two, told(lambda folder, table: table.update(samples=-1), 1), "samples"),
    (steps, flipped("0.step.0"), "0.step.0 is corrupted"),
    (steps, flipped("0.steps.links"), "0.steps.links is corrupted"),
    (steps, told(lambda folder, table: table.pop("first")), "first"),
    (steps, told(lambda folder, table: table.update(first=61)), "first"),
    (steps, told(lambda folder, table: table["files"].pop("step/0")), "step/0"),
    (steps, told(other_array("step/0", np.zeros(59, np.float32))), "step/0"),
    (steps, told(other_array("steps/states", np.zeros(59, np.uint8))), "states"),
    (steps, told(other_array("steps/links", np.zeros(119, U64))), "links"),
    (steps, told(other_array("steps/figures", np.array([0, 300, 60, 0, 0], U64))), "figures"),
    (steps, told(other_array("steps/figures", np.array([9, 3, 60, 0, 0], U64))), "figures"),
    (steps, told(other_array("steps/streams", np.array([1, 2, 3, 4, 5, 6], U64))), "streams"),
    (steps, told(other_array("steps/streams", np.array([1, 2, 0, 9, 0, 2, 7, 8], U64))), "streams"),
    (steps, told(other_array("steps/backlog", np.zeros(4, U64))), "backlog"),
    (slices, told(other_array("steps/runs", np.array([1 << 40, 0, 0], U64))), "runs"),
    (slices, told(other_array("steps/runs", np.zeros(0, U64))), "runs"),
]


@pytest.mark.parametrize(("written", "damage", "text"), NOT_HERE)
def test_a_restore_that_fails_changes_nothing(
    written: Callable[[int], Server], damage: Callable[[Path], None], text: str, tmp_path: Path
) -> None:
    first, fresh = written(60), written(0)
    folder = Path(first.checkpoint(tmp_path / "bad"))
    first.checkpoint(tmp_path / "good")
    damage(folder)
    before = [figures(table) for table in fresh.tables.values()]
    with pytest.raises(CheckpointError, match=text):
        fresh.restore(tmp_path / "bad")
    assert [figures(table) for table in fresh.tables.values()] == before
    fresh.restore(tmp_path / "good")
    for one, other in zip(first.tables.values(), fresh.tables.values()):
        assert one.keys().tolist() == other.keys().tolist()
        assert one.sample(timeout=5).keys.tolist() == other.sample(timeout=5).keys.tolist()


@pytest.mark.parametrize("part", ["sampler", "remover"])
def test_whatever_a_sampler_raises_nothing_is_changed(part: str, tmp_path: Path) -> None:
    first, fresh = two(60), two(0)
    first.checkpoint(tmp_path)
    before = [figures(table) for table in fresh.tables.values()]
    sampler: Any = getattr(fresh.table("second"), part)
    real, turns = sampler.restore, []

    def restore(state: Any) -> None:
        """By half, and then it raises; the first time."""
        real(state)
        turns.append(1)
        if len(turns) == 1:
            raise RuntimeError("sampler out of order")

    sampler.restore = restore
    with pytest.raises(RuntimeError, match="out of order"):
        fresh.restore(tmp_path)
    assert [figures(table) for table in fresh.tables.values()] == before
    fresh.restore(tmp_path)
    assert fresh.table("second").keys().tolist() == first.table("second").keys().tolist()


@pytest.mark.parametrize("written", [two, steps])
def test_a_table_that_was_written_to_is_refused(written: Callable[[int], Server], tmp_path: Path) -> None:
    written(60).checkpoint(tmp_path)
    other = written(2)  # of steps not even an item
    before = [figures(table) for table in other.tables.values()]
    with pytest.raises(CheckpointError, match="was written to already"):
        other.restore(tmp_path)
    assert [figures(table) for table in other.tables.values()] == before


def test_a_closed_server_takes_no_checkpoint(tmp_path: Path) -> None:
    with one() as server:
        server.submit({"number": np.int64(1), "filler": np.zeros(5, np.float32)})
        server.checkpoint(tmp_path)
    closed = one()
    closed.close()
    with pytest.raises(ClosedError, match="restore into a new one"):
        closed.restore(tmp_path)


def test_restore_takes_what_checkpoint_returned(tmp_path: Path) -> None:
    server = two(5)
    first = server.checkpoint(tmp_path)
    table = next(iter(server.tables))
    assert two(0).restore(first).tables[table].keys().tolist() == server.tables[table].keys().tolist()
    second = server.checkpoint(tmp_path)
    assert two(0).restore(second).tables[table].keys().tolist() == server.tables[table].keys().tolist()
    with pytest.raises(CheckpointError, match=r"00000001 is not the newest checkpoint, which is .*00000002; restore from"):
        two(0).restore(first)
    with pytest.raises(CheckpointError, match="holds no whole checkpoint"):
        two(0).restore(tmp_path / "elsewhere" / "00000001")


def test_no_error_shows_what_a_file_contains(tmp_path: Path) -> None:
    with one() as server:
        server.checkpoint(tmp_path)
        (tmp_path / "LATEST").write_text("swordfish 0")
        with pytest.raises(CheckpointError, match="LATEST is not the name and the checksum") as raised:
            server.restore(tmp_path)
    assert "swordfish" not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("sampler", ["prioritized", {"type": "prioritized", "alpha": 0.37, "eps": 0.0}, "hot_cold", "max_heap", "min_heap"], ids=str)
def test_priorities_are_bit_for_bit_those_before_the_checkpoint(sampler: Any, tmp_path: Path) -> None:
    example, rng = {"x": np.zeros(2, np.float32)}, np.random.default_rng(0)

    def made() -> Server:
        return Server(tables=[Table("t", example, capacity=64, sampler=sampler)], batch_size=4)

    with made() as server, made() as restored:
        for priority in rng.random(40):
            server.submit(example, priority=float(priority))
        keys, _ = server.table("t").top(40)
        server.update_priorities(keys[:20], 1e3 * rng.random(20))
        server.checkpoint(tmp_path / "saved")
        restored.restore(tmp_path / "saved")
        for before, after in zip(server.table("t").top(40), restored.table("t").top(40), strict=True):
            assert before.tobytes() == after.tobytes()
