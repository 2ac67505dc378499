"""What processes of the tests do. A module of its own, because spawned processes import it."""

from __future__ import annotations

import itertools
import os
import signal
from typing import Any

import numpy as np

from echo_ipc import Cell, Ring, Rows
from echo_testing.huge_pages import forbid_huge_pages, mapped_in_huge_pages

WIDTH = 1000


def value(number: int, width: int = WIDTH) -> dict[str, Any]:
    """A value of a cell; all its words are its number."""
    return {"w": np.full(width, number, np.float64), "policy": {"n": np.full((3, 5), number, np.int32)}}


def new_cell(width: int = WIDTH) -> Cell:
    return Cell(value(0, width))


def check_value(tree: dict[str, Any]) -> int:
    number = int(tree["w"][0])
    assert (tree["w"] == number).all() and (tree["policy"]["n"] == number).all(), "torn"
    return number


def new_ring(**options: Any) -> Ring:
    return Ring({"x": ((WIDTH,), "int64"), "info": {"producer": ((), "int64")}}, options.pop("slots", 4), **options)


def rollout(producer: int, number: int) -> dict[str, Any]:
    return {"x": np.full(WIDTH, number), "info": {"producer": np.int64(producer)}}


def new_rows(capacity: int = 1000) -> Rows:
    return Rows({"obs": ((7,), "float64"), "number": ((), "int64"), "flag": ((), "bool")}, capacity)


def batch(first: int, count: int) -> dict[str, Any]:
    numbers = np.arange(first, first + count)
    return {"obs": np.repeat(numbers[:, None], 7, 1).astype(np.float64), "number": numbers, "flag": numbers % 2 == 0}


def large_rows() -> Rows:
    """6 MB, all of it the number of the row."""
    rows = Rows({"x": ((1000,), "float32")}, 1500)
    rows.add({"x": np.repeat(np.arange(1500, dtype=np.float32)[:, None], 1000, 1)})
    return rows


def look_at_large_rows(rows: Rows | None, answers: Any) -> None:
    """Answer how many bytes are mapped in huge pages; None: of rows that are made here, without such pages."""
    if rows is None:
        forbid_huge_pages()
        rows = large_rows()
    numbers = np.arange(1500)
    found, _ = rows.read(numbers)
    assert (found["x"] == numbers[:, None]).all()
    answers.put(mapped_in_huge_pages("memfd:echo-ipc"))


def use_all(cell: Cell, ring: Ring, rows: Rows, answers: Any = None) -> None:
    """Write to each once; with a queue, hand the cell back through it."""
    cell.write(value(cell.version + 1))
    ring.put(rollout(os.getpid(), 5), timeout=30)
    rows.add(batch(rows.committed, 10))
    if answers is not None:
        answers.put((os.getpid(), cell.name))


def write_for_ever(cell: Cell, ready: Any = None) -> None:
    trees = [value(number, len(cell.read()[0]["w"]) if cell.version else WIDTH) for number in range(8)]  # type: ignore[index]
    for count in itertools.count():
        cell.write(trees[count % 8])
        if count == 3 and ready is not None:
            ready.set()


def write_and_stop(cell: Cell, width: int) -> None:
    """Stop somewhere in the middle of writing, as a debugger would do it."""
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    for count in itertools.count(1):
        cell.write(value(count, width))


def produce(ring: Ring, producer: int, count: int | None, ready: Any = None) -> None:
    """Put `count` rollouts, or rollouts for ever."""
    for number in itertools.count() if count is None else range(count):
        ring.put(rollout(producer, number), timeout=60)
        if ready is not None and number == 3:
            ready.set()


def consume(ring: Ring, answers: Any, ready: Any = None) -> None:
    """Take until a rollout has a negative number; tell of each."""
    while True:
        with ring.take(timeout=60) as slot:
            number, producer = int(slot.arrays["x"][0]), int(slot.arrays["info"]["producer"])
            assert (slot.arrays["x"] == number).all(), "mixed"
            answers.put((producer, number, slot.number))
        if number < 0:
            return


def claim_and_wait(ring: Ring, ready: Any) -> None:
    slot = ring.claim(timeout=30)
    slot.arrays["x"][:500] = 77
    ready.set()
    signal.pause()


def take_and_wait(ring: Ring, ready: Any) -> None:
    slot = ring.take(timeout=30)
    assert slot.held
    ready.set()
    signal.pause()


def add_for_ever(rows: Rows, ready: Any = None) -> None:
    for count in itertools.count():
        first = rows.committed
        assert rows.add(batch(first, 1 + first % (rows.capacity // 2))) == first
        if count == 3 and ready is not None:
            ready.set()
