"""Rows of a gatherer's chunks that are lent, to be filled in place: every sample that was committed comes out once, and waits for nobody."""

from __future__ import annotations

import sys
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core import Spec
from echo_net.gather import Chunk, Gatherer, Row

EXAMPLE = {"obs": np.zeros(3, np.float32), "number": np.zeros((), np.int64), "nothing": np.zeros((0, 2))}
SPEC = Spec.from_example(EXAMPLE)


class Owner:
    """Does at once what a connection does under its lock."""

    def __init__(self) -> None:
        self.woken = 0

    def commit_row(self, row: Row) -> None:
        self.woken += row.keep()

    def abort_row(self, row: Row) -> None:
        row.give_back()


def gatherer_of(rows: int, head: int = 0) -> Gatherer:
    gatherer = Gatherer(SPEC.flattener, rows * SPEC.sample_bytes, 1000, head)
    gatherer.limit = 1 << 40
    return gatherer


def fill(row: Any, number: int) -> None:
    sample = row.sample
    sample["obs"][...] = number
    sample["number"][...] = number


def numbers(chunk: Chunk) -> list[int]:
    payload, count = chunk.payload(), chunk.count
    found = np.frombuffer(payload, np.int64, count)  # leaves come in the order of their keys
    obs = np.frombuffer(payload, np.float32, 3 * count, 8 * count).reshape(count, 3)
    assert (obs == found[:, None]).all()
    return [int(n) for n in found]


@given(st.data(), st.integers(1, 4), st.sampled_from([0, 13]))
def test_every_committed_sample_comes_out_once(data: st.DataObject, rows: int, head: int) -> None:
    """Whatever is held, aborted or forgotten beside it; those of `take` in their order."""
    gatherer, owner = gatherer_of(rows, head), Owner()
    held: list[tuple[Row, int]] = []
    given, came = [], []
    for last in range(1, 1 + data.draw(st.integers(0, 60))):
        step = data.draw(st.sampled_from(["take", "reserve", "reserve", "commit", "commit", "abort", "drop", "collect", "settle", "idle"]))
        if step == "take":
            gatherer.take({**EXAMPLE, "obs": np.full(3, last, np.float32), "number": np.int64(last)})
            given.append(last)
        elif step == "reserve":
            held.append((gatherer.reserve(SPEC, owner), last))
            fill(held[-1][0], last)
        elif step in ("commit", "abort", "drop") and held:
            row, number = held.pop(data.draw(st.integers(0, len(held) - 1)))
            if step == "commit":
                woken, idle = owner.woken, gatherer.idle
                row.commit()
                assert owner.woken - woken == idle and not gatherer.idle
                given.append(-number)
            elif step == "abort":
                row.abort()
            del row
        elif step == "collect" and (chunk := gatherer.collect()) is not None:
            came += numbers(chunk)
            assert (chunk.framed(b"h" * head) is None) == (head == 0 or chunk.count < rows)
        elif step == "settle":
            taken = [n for n in given if n > 0]
            came += [n for chunk in gatherer.settle() for n in numbers(chunk)]
            assert set(taken) <= set(came)
        elif step == "idle":
            gatherer.idle = True
        assert (gatherer.taken, gatherer.held) == (len(given), len(held))
    while (chunk := gatherer.collect()) is not None:
        came += numbers(chunk)
    assert sorted(came) == sorted(abs(n) for n in given)
    assert [n for n in came if n in given] == [n for n in given if n > 0]
    for row, number in held:  # what was collected around them did not touch them
        assert row.sample["number"] == number
        row.commit()
    while (chunk := gatherer.collect()) is not None:
        came += numbers(chunk)
    assert sorted(came) == sorted([abs(n) for n in given] + [number for _, number in held])


def test_a_row_that_follows_another_shares_its_chunk() -> None:
    gatherer, owner = gatherer_of(3, head=5), Owner()
    for number in range(6):
        row = gatherer.reserve(SPEC, owner)
        fill(row, number)
        row.commit()
    chunks = [gatherer.collect(), gatherer.collect()]
    assert [numbers(chunk) for chunk in chunks if chunk] == [[0, 1, 2], [3, 4, 5]]
    assert all(chunk and chunk.framed(b"front") == b"front" + chunk.payload() for chunk in chunks)


def test_reserved_rows_count_as_taken_for_the_limit() -> None:
    gatherer, owner = gatherer_of(4), Owner()
    gatherer.limit = 2
    row = gatherer.reserve(SPEC, owner)
    assert gatherer.take(EXAMPLE) == 1
    assert gatherer.take(EXAMPLE) == 0
    row.abort()
    assert gatherer.take(EXAMPLE) == 1


@pytest.mark.parametrize("held", [False, True])
def test_a_committed_sample_is_not_kept_back_by_others_that_come_without_end(held: bool) -> None:
    gatherer, owner = gatherer_of(2), Owner()
    row = gatherer.reserve(SPEC, owner)
    fill(row, 77)
    row.commit()
    other = gatherer.reserve(SPEC, owner) if held else None  # behind it
    for _ in range(20):
        for _ in range(2):
            gatherer.take(EXAMPLE)
        chunk = gatherer.collect()
        assert chunk is not None
        if 77 in numbers(chunk):
            break
        gatherer.take(EXAMPLE)  # there is always a full one
        gatherer.take(EXAMPLE)
    else:
        pytest.fail("twenty chunks went before it")
    if other is not None:
        other.commit()


def test_arrays_that_live_forbid_the_end_of_a_row() -> None:
    gatherer, owner = gatherer_of(2), Owner()
    row = gatherer.reserve(SPEC, owner)
    view = row.sample["obs"][1:]
    for end in (row.commit, row.abort):
        with pytest.raises(BufferError, match="1 arrays of this slot are still alive"):
            end()
    del view
    row.commit()
    for call in (row.commit, row.abort, lambda: row.sample):
        with pytest.raises(ValueError, match="already"):
            call()
    assert (gatherer.taken, gatherer.held) == (1, 0)


def test_a_block_left_with_arrays_alive_gives_the_row_back_when_they_are_gone() -> None:
    gatherer, owner = gatherer_of(2), Owner()
    with gatherer.reserve(SPEC, owner) as row:
        kept = row.sample["obs"]
    del row
    kept[...] = 5  # nobody else's memory
    assert gatherer.held == 1
    del kept
    assert (gatherer.taken, gatherer.held) == (0, 0)


def test_threads_that_reserve_and_take_together() -> None:
    gatherer, owner = gatherer_of(5), Owner()
    each, came = 3000, list[int]()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)

    def reserving(start: int) -> None:
        for number in range(start, start + each):
            row = gatherer.reserve(SPEC, owner)
            fill(row, number)
            row.commit()

    def taking(start: int) -> None:
        for number in range(start, start + each):
            gatherer.take({**EXAMPLE, "obs": np.full(3, number, np.float32), "number": np.int64(number)})

    workers = [threading.Thread(target=work, args=(n * each,)) for n, work in enumerate([reserving, reserving, taking, taking])]
    try:
        for worker in workers:
            worker.start()
        while len(came) < 4 * each and (any(worker.is_alive() for worker in workers) or gatherer.taken > len(came)):
            gatherer.idle = True
            if (chunk := gatherer.collect()) is not None:
                came += numbers(chunk)
    finally:
        for worker in workers:
            worker.join()
        sys.setswitchinterval(interval)
    assert sorted(came) == list(range(4 * each))
