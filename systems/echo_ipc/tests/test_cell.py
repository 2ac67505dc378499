"""The newest value: what is written comes out, whole, in the arrays of the reader; what does not fit is refused and named."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from actors import check_value, new_cell, value

from echo_core.base.errors import ClosedError, ConfigError, EchoTimeoutError, SpecError
from echo_ipc import Bytes, Cell

DTYPES = ["bool", "int8", "uint16", "int64", "float16", "float32", "float64", "complex64", "S5", "U3", "datetime64[ns]"]


def test_before_the_first_value_there_is_none() -> None:
    with new_cell() as cell:
        mine = value(-1)
        assert (cell.version, cell.read(), cell.read_into(mine)) == (0, (None, 0), 0)
        assert check_value(mine) == -1
        assert not cell.wait(0, timeout=0)


def test_versions_count_from_one() -> None:
    with new_cell() as cell:
        assert [cell.write(value(number)) for number in (10, 20, 30, 40, 50)] == [1, 2, 3, 4, 5]
        tree, version = cell.read()
        assert tree is not None and (check_value(tree), version, cell.version) == (50, 5, 5)
        mine = value(0)
        assert cell.read_into(mine) == 5 and check_value(mine) == 50


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_comes_out_as_it_went_in(dtype: str) -> None:
    arrays = {"scalar": np.zeros((), dtype), "line": np.arange(6).astype(dtype), "none": np.zeros((0, 4), dtype)}
    arrays["cube"] = np.arange(24).reshape(2, 3, 4).astype(dtype)
    with Cell(arrays) as cell:
        cell.write(arrays)
        tree, _ = cell.read()
        assert tree is not None
        for name, array in arrays.items():
            assert tree[name].dtype == array.dtype
            np.testing.assert_array_equal(tree[name], array)


def test_dtypes_of_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    array = np.arange(5).astype(ml_dtypes.bfloat16)
    with Cell({"w": array}) as cell, Cell(None, name=cell.name) as other:
        cell.write({"w": array})
        tree, _ = other.read()
        assert tree is not None and tree["w"].dtype == array.dtype and (tree["w"] == array).all()


def test_arrays_in_another_order_of_memory() -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    with Cell({"w": array}) as cell:
        for source in (np.asfortranarray(array), np.repeat(array, 2, 1)[:, ::2], array.astype(">f4"), array.tolist()):
            cell.write({"w": np.asarray(source, dtype=None if isinstance(source, np.ndarray) else np.float32)})
            for target in (np.zeros((4, 3), np.float32).T, np.zeros((6, 4), np.float32)[::2], np.zeros((3, 4), ">f4")):
                cell.read_into({"w": target})
                np.testing.assert_array_equal(target, array)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda tree: tree.pop("w"), r"there is no entry 'w'; the schema has w, policy/n"),
        (lambda tree: tree.update(bias=np.zeros(3)), r"the entry 'bias' is not in the schema"),
        (lambda tree: tree["policy"].update(m=np.zeros(3)), r"the entry 'policy/m' is not in the schema; did you mean 'policy/n'\?"),
        (lambda tree: tree.update(w=np.zeros(3)), r"'w' must be float64\[1000\], but is float64\[3\]"),
        (lambda tree: tree.update(w=np.zeros(1000, np.float32)), r"'w' must be float64\[1000\], but is float32\[1000\]"),
        (lambda tree: tree.update(policy=np.zeros(3)), r"there is no entry 'policy/n'"),
        (lambda tree: tree.update(w=None), r"'w' must be float64\[1000\], but is object\[\]"),
    ],
)
def test_what_does_not_fit_is_named_and_nothing_is_written(change: Any, text: str) -> None:
    with new_cell() as cell:
        cell.write(value(1))
        tree = value(2)
        change(tree)
        with pytest.raises(SpecError, match=text):
            cell.write(tree)
        mine = value(3)
        change(mine)
        with pytest.raises(SpecError):
            cell.read_into(mine)
        kept, version = cell.read()
        assert kept is not None and (check_value(kept), version) == (1, 1)


def test_a_target_that_is_no_memory_is_refused() -> None:
    with Cell({"w": ((3,), "float64")}) as cell:
        cell.write({"w": np.ones(3)})
        fixed = np.zeros(3)
        fixed.flags.writeable = False
        with pytest.raises(SpecError, match=r"'w' is read-only"):
            cell.read_into({"w": fixed})
        with pytest.raises(SpecError, match=r"'w' must be an array or a tensor to be copied into, not list"):
            cell.read_into({"w": [0.0, 0.0, 0.0]})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({}, "at least one entry"),
        ([1], "must be a mapping"),
        ({"w": (3, 4)}, r"'w' must be \(shape, dtype\)"),
        ({"w": "float32"}, r"'w' must be \(shape, dtype\)"),
        ({"w": ((3,), "float33")}, r"'w' must be \(shape, dtype\)"),
        ({"w": ((3,), object)}, "'w' has the dtype object"),
        ({"w": ((-1,), "int8")}, "'w' has a negative size"),
        ({"a": {"b": ((), "int8")}, "a/b": ((), "int8")}, "'a/b' is there twice"),
        ({1: ((), "int8")}, "must be a string"),
    ],
)
def test_a_schema_that_is_none(schema: Any, text: str) -> None:
    with pytest.raises(SpecError, match=text):
        Cell(schema)


def test_a_new_cell_needs_a_schema() -> None:
    with pytest.raises(ConfigError, match="needs a schema"):
        Cell(None)
    with pytest.raises(ConfigError, match="'rw' or 'r'"):
        Cell({"w": ((), "int8")}, mode="w")


def test_waiting() -> None:
    with new_cell() as cell:
        with pytest.raises(EchoTimeoutError, match="no version above 0 within 0.01 s"):
            cell.read(newer_than=0, timeout=0.01)
        thread = threading.Thread(target=lambda: [time.sleep(0.05), cell.write(value(8)), time.sleep(0.05), cell.write(value(9))])
        thread.start()
        assert cell.wait(0, timeout=30)
        tree, version = cell.read(newer_than=1, timeout=30)
        assert tree is not None and (check_value(tree), version) == (9, 2)
        thread.join()


def test_a_read_only_reader() -> None:
    with new_cell() as cell, Cell(None, name=cell.name, mode="r") as reader:
        cell.write(value(4))
        tree, version = reader.read()
        assert tree is not None and (check_value(tree), version) == (4, 1)
        with pytest.raises(PermissionError, match="mode='rw'"):
            reader.write(value(5))
        thread = threading.Timer(0.05, lambda: cell.write(value(6)))
        thread.start()
        assert reader.read(newer_than=1, timeout=30)[1] == 2
        thread.join()


def test_figures() -> None:
    with new_cell() as cell:
        cell.write(value(1))
        assert cell.stats() == {"version": 1, "broken": 0, "locked": 0, "repairs": 0}


def test_after_close_every_call_is_an_error() -> None:
    cell = new_cell()
    cell.write(value(1))
    cell.cleanup()
    cell.cleanup()
    assert cell.closed and "closed" in repr(cell)
    for call in (lambda: cell.version, cell.read, cell.stats, lambda: cell.wait(0), lambda: cell.write(value(1)), lambda: cell.read_into(value(1))):
        with pytest.raises(ClosedError, match="was closed here"):
            call()


def test_close_ends_a_wait_in_another_thread() -> None:
    cell = new_cell()
    caught: list[BaseException] = []

    def wait() -> None:
        try:
            cell.wait(0)
        except ClosedError as error:
            caught.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.05)
    cell.cleanup()
    thread.join()
    assert len(caught) == 1


def test_bytes_of_any_length() -> None:
    with Bytes(10_000) as some, Bytes(name=some.name) as other:
        assert other.read() == (b"", 0)
        for text in (b"", b"x", bytes(range(256)) * 39, b"short again"):
            version = some.write(text)
            assert other.read() == (text, version)
        with pytest.raises(ValueError, match="10,001 bytes do not fit in 10,000"):
            some.write(bytes(10_001))
        with pytest.raises(EchoTimeoutError):
            other.read(newer_than=4, timeout=0.01)
        with pytest.raises(ConfigError, match=r"attach to it with Bytes\(name=...\)"):
            Cell(None, name=some.name)
    with new_cell() as cell, pytest.raises(ConfigError, match=r"attach to it with Cell\(None, name=...\)"):
        Bytes(name=cell.name)


def test_threads_never_see_a_torn_value() -> None:
    with new_cell(100_000) as cell:
        cell.write(value(0, 100_000))
        over = threading.Event()

        def write(start: int) -> None:
            number = start
            while not over.is_set():
                number += 2
                cell.write(value(number, 100_000))

        writers = [threading.Thread(target=write, args=(start,)) for start in (0, 1)]
        for thread in writers:
            thread.start()
        last, end = 0, time.monotonic() + 1
        while time.monotonic() < end:
            tree, version = cell.read()
            assert tree is not None and version >= last
            check_value(tree)
            last = version
        over.set()
        for thread in writers:
            thread.join()
        assert last > 1
