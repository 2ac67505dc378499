"""A table of rows: what is added is sampled, whole and by its number; the draw is reproducible; files hold what was there."""

from __future__ import annotations

import multiprocessing
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from actors import add_for_ever, batch, new_rows

from echo_core.base.errors import CheckpointError, ClosedError, ConfigError, SpecError
from echo_ipc import Rows


def check_rows(found: dict[str, Any], numbers: np.ndarray) -> None:
    wanted = numbers.astype(np.int64)
    np.testing.assert_array_equal(found["number"], wanted)
    np.testing.assert_array_equal(found["obs"], np.repeat(wanted[:, None], 7, 1))
    np.testing.assert_array_equal(found["flag"], wanted % 2 == 0)


def test_rows_come_out_with_their_numbers() -> None:
    with new_rows() as rows:
        assert [rows.add(batch(first, 100)) for first in (0, 100)] == [0, 100]
        found, numbers = rows.sample(500)
        assert numbers.dtype == np.uint64 and numbers.max() < 200 and len(set(numbers.tolist())) > 100
        check_rows(found, numbers)
        assert (len(rows), rows.committed, rows.window()) == (200, 200, (0, 200))


def test_the_newest_rows_stay() -> None:
    with new_rows(100) as rows:
        for first in range(0, 1000, 30):
            rows.add(batch(first, 30))
        end = rows.committed
        assert rows.window() == (end - 100, end) and len(rows) == 100
        found, numbers = rows.sample(1000)
        assert set(numbers.tolist()) <= set(range(end - 100, end))
        check_rows(found, numbers)


@pytest.mark.parametrize("capacity", [1, 2, 3, 7])
def test_small_tables(capacity: int) -> None:
    with new_rows(capacity) as rows:
        for first in range(0, 10 * capacity, capacity):
            rows.add(batch(first, capacity))
            check_rows(*rows.sample(20))
        assert len(rows) == capacity


def test_the_draw_depends_on_the_seed() -> None:
    with new_rows() as rows:
        rows.add(batch(0, 1000))
        numbers = rows.sample(64, seed=3)[1]
        assert (rows.sample(64, seed=3)[1] == numbers).all()
        assert (rows.sample(64, generator=np.random.default_rng(3))[1] == numbers).all()
        assert (rows.sample_packed(64, seed=3)[1] == numbers).all()
        assert not (rows.sample(64, seed=4)[1] == numbers).all()
        assert not (rows.sample(64)[1] == rows.sample(64)[1]).all()
        with pytest.raises(ConfigError, match="not both"):
            rows.sample(1, seed=1, generator=np.random.default_rng(1))


def test_the_draw_is_uniform() -> None:
    with new_rows(10) as rows:
        rows.add(batch(0, 10))
        counts = np.bincount(rows.sample(100_000, seed=0)[1].astype(np.int64), minlength=10)
        assert (abs(counts - 10_000) < 500).all()


def test_sampling_into_arrays() -> None:
    with new_rows() as rows:
        rows.add(batch(0, 50))
        out = batch(0, 20)
        found, numbers = rows.sample(20, out=out)
        assert found is out
        check_rows(out, numbers)
        several = [("obs", np.zeros((20, 8))), ("obs", np.zeros((20, 7), np.float32)), ("flag", np.zeros(19, np.bool_)), ("obs", np.zeros((20, 14))[:, ::2])]
        for name, wrong in several:
            with pytest.raises(SpecError, match=repr(name)):
                rows.sample(20, out={**out, name: wrong})


def test_packed_rows() -> None:
    with Rows({"a": ((3,), "float32"), "b": ((), "float32")}, 10) as rows:
        assert rows.row_bytes == 16
        rows.add({"a": np.arange(9, dtype=np.float32).reshape(3, 3), "b": np.array([10, 11, 12], np.float32)})
        packed, numbers = rows.sample_packed(5, seed=0)
        for row, number in zip(packed.view(np.float32), numbers.astype(int)):
            assert row.tolist() == [3 * number, 3 * number + 1, 3 * number + 2, 10 + number]
        assert (rows.storage()[:3].view(np.float32)[:, 3] == [10, 11, 12]).all()
        views = rows.columns()
        assert views["a"].shape == (10, 3) and views["b"][:3].tolist() == [10, 11, 12]
        with pytest.raises(SpecError, match=r"uint8\[5, 16\]"):
            rows.sample_packed(5, out=np.empty((4, 16), np.uint8))


def test_rows_by_their_numbers() -> None:
    with new_rows(100) as rows:
        rows.add(batch(0, 100))
        rows.add(batch(100, 50))
        found, valid = rows.read([0, 49, 50, 149, 150, 10**12])
        assert valid.tolist() == [False, False, True, True, False, False]
        assert found["number"][valid].tolist() == [50, 149]


def test_an_empty_table_cannot_be_sampled() -> None:
    with new_rows() as rows, pytest.raises(ValueError, match="has no rows to sample"):
        rows.sample(1)


@pytest.mark.parametrize(
    ("change", "kind", "text"),
    [
        (lambda b: b.pop("flag"), SpecError, "there is no entry 'flag'"),
        (lambda b: b.update(more=b["flag"]), SpecError, "'more' is not in the schema"),
        (lambda b: b.update(obs=b["obs"][:, :6]), SpecError, r"'obs' must be rows of float64\[7\], but is rows of float64\[6\]"),
        (lambda b: b.update(number=b["number"].astype(np.int32)), SpecError, r"'number' must be rows of int64\[\], but is rows of int32\[\]"),
        (lambda b: b.update(flag=b["flag"][:3]), SpecError, "'flag' has 3 rows, but 'obs' has 5"),
        (lambda b: b.update(number=np.int64(3)), SpecError, "'number' has no rows"),
        (lambda b: b.update(batch(0, 1001)), ValueError, "1,001 rows do not fit in a table that keeps 1,000"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_added(change: Any, kind: type[Exception], text: str) -> None:
    with new_rows() as rows:
        wrong = batch(0, 5)
        change(wrong)
        with pytest.raises(kind, match=text):
            rows.add(wrong)
        assert rows.committed == 0


def test_no_row_is_torn_while_another_process_goes_round_the_table() -> None:
    ready = multiprocessing.get_context("spawn").Event()
    with new_rows(200) as rows:
        process = multiprocessing.get_context("spawn").Process(target=add_for_ever, args=(rows, ready))
        process.start()
        assert ready.wait(60)
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            check_rows(*rows.sample(256))
        process.kill()
        process.join()
        check_rows(*rows.sample(256))


def test_waiting_for_rows() -> None:
    with new_rows() as rows:
        assert not rows.wait(0, timeout=0.01)
        thread = threading.Timer(0.05, lambda: rows.add(batch(0, 10)))
        thread.start()
        assert rows.wait(9, timeout=30) and len(rows) == 10
        thread.join()


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with new_rows(100) as rows:
        rows.add(batch(0, 100))
        rows.add(batch(100, 30))
        assert rows.save(path) == 100
    with new_rows(1000) as larger, new_rows(40) as smaller:
        assert (larger.load(path), smaller.load(path)) == (100, 40)
        assert larger.read(range(100))[0]["number"].tolist() == list(range(30, 130))
        assert smaller.read(range(40))[0]["number"].tolist() == list(range(90, 130))
    assert [file.name for file in tmp_path.iterdir()] == ["rows"]


def test_damaged_files(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with new_rows(100) as rows, Rows({"obs": ((7,), "float64")}, 100) as others:
        rows.add(batch(0, 10))
        rows.save(path)
        whole = path.read_bytes()
        with pytest.raises(SpecError, match="also has an entry 'number'"):
            others.load(path)
        damaged = [(b"PK" + whole, "no file of rows"), (whole[:-3], "whole row"), (whole[:30], "cannot be read"), (whole[:20], "cannot be read")]
        for length in (len(whole) - 23, 1 << 40, (1 << 64) - 1):
            damaged.append((whole[:16] + length.to_bytes(8, "little") + whole[24:], "the file ends before it does"))
        nested = b"[" * 100_000
        damaged.append((whole[:16] + len(nested).to_bytes(8, "little") + nested, "cannot be read"))
        for text, fault in damaged:
            path.write_bytes(text)
            with pytest.raises(CheckpointError, match=fault):
                rows.load(path)
        assert rows.committed == 10


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    with new_rows(100) as rows:
        rows.add(batch(0, 10))
        rows.save(path)
        before = path.read_bytes()
        (tmp_path / "folder").mkdir()
        with pytest.raises(IsADirectoryError):
            rows.save(tmp_path / "folder")
        assert path.read_bytes() == before and sorted(file.name for file in tmp_path.iterdir()) == ["folder", "rows"]


def test_read_only() -> None:
    with new_rows() as rows, Rows(None, name=rows.name, mode="r") as reader:
        rows.add(batch(0, 10))
        check_rows(*reader.sample(20))
        with pytest.raises(PermissionError):
            reader.add(batch(10, 1))


def test_after_close() -> None:
    rows = new_rows()
    rows.add(batch(0, 10))
    view = rows.columns()["number"]
    rows.cleanup()
    for call in (lambda: rows.sample(1), lambda: rows.add(batch(0, 1)), lambda: len(rows), rows.stats, rows.wait, rows.storage):
        with pytest.raises(ClosedError):
            call()
    assert view[:10].tolist() == list(range(10)), "what is borrowed stays readable"


def test_figures() -> None:
    with new_rows() as rows:
        rows.add(batch(0, 10))
        assert rows.stats() == {"committed": 10, "readable": 10, "reserved": 10, "broken": 0, "repairs": 0}


@pytest.mark.parametrize("capacity", [0, -1, None])
def test_a_table_needs_room(capacity: Any) -> None:
    with pytest.raises(ConfigError, match="a capacity of at least 1"):
        Rows({"a": ((), "int8")}, capacity)
