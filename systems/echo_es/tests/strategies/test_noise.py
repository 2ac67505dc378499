"""Noise is the same in every process and for every range."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core import ConfigError
from echo_es.noise import NoiseTable, normals, philox, shared_table, stream_digest


def test_philox_gives_the_published_numbers() -> None:
    """The known answers that come with Philox4x32-10 (Salmon and others, 2011): words 0 and 1."""
    assert int(philox(0, 0, 0, 1)[0]) == 0xE169C58D_6627E8D5
    assert int(philox(2**64 - 1, 2**64 - 1, 2**64 - 1, 1)[0]) == 0x41C83B0E_408F276D
    assert int(philox(0x299F31D0_A4093822, 0x03707344_13198A2E, 0x85A308D3_243F6A88, 1)[0]) == 0x94FDCCEB_D16CFE09


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 10), st.integers(1, 9))
def test_a_place_does_not_depend_on_the_range(seed: int, epoch: int, first: int, count: int) -> None:
    assert philox(seed, epoch, first, count).tolist() == [int(philox(seed, epoch, first + index, 1)[0]) for index in range(count)]


def test_rows_are_slices_of_the_table() -> None:
    table = NoiseTable(seed=3, size=1000)
    offsets = table.offsets(dims=10, seed=5, epoch=7, first=2, count=4)
    assert ((offsets >= 0) & (offsets <= 990)).all()
    for row, offset in zip(table.rows(offsets, 10), offsets):
        assert row.tolist() == table.values[offset : offset + 10].tolist()


def test_rows_are_no_view_of_the_table() -> None:
    table = NoiseTable(seed=3, size=100)
    before = table.digest
    table.rows(np.array([0, 5]), 10)[:] = 7
    assert NoiseTable(seed=3, size=100, values=table.values).digest == before
    with pytest.raises(ValueError):
        table.values[0] = 1


def test_a_table_that_is_too_short() -> None:
    with pytest.raises(ConfigError, match="8 numbers and cannot perturb 9 parameters"):
        NoiseTable(seed=0, size=8).offsets(9, 1, 2, 0, 3)
    with pytest.raises(ConfigError, match="size of a noise table"):
        NoiseTable(size=0)
    with pytest.raises(ConfigError, match="float32"):
        NoiseTable(size=3, values=np.zeros(3))


def test_digests_tell_tables_apart() -> None:
    assert NoiseTable(1, 500).digest == NoiseTable(1, 500).digest
    assert len({NoiseTable(1, 500).digest, NoiseTable(2, 500).digest, NoiseTable(1, 501).digest}) == 3
    assert len(stream_digest()) == 32


def test_the_table_is_shared_by_the_process() -> None:
    first, other = shared_table(4, 2000), shared_table(5, 2000)
    assert shared_table(4, 2000) is first and shared_table(5, 2000) is other


def test_a_table_that_nobody_uses_is_given_back() -> None:
    gone = weakref.ref(shared_table(6, 2000))
    gc.collect()
    assert gone() is None


@given(st.integers(0, 2**64 - 1), st.integers(0, 10**6), st.integers(1, 6000), st.data())
def test_normals_of_a_range_are_those_of_the_whole(seed: int, epoch: int, dims: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, 12))
    stop = data.draw(st.integers(start, 12))
    for dtype in (np.float32, np.float64):
        whole = normals(seed, epoch, 0, 12, dims, dtype)
        assert whole.dtype == dtype and whole.shape == (12, dims)
        np.testing.assert_array_equal(normals(seed, epoch, start, stop, dims, dtype), whole[start:stop])


def test_normals_are_normal_and_differ() -> None:
    first, second, third = normals(1, 0, 0, 50, 1000), normals(1, 1, 0, 50, 1000), normals(2, 0, 0, 50, 1000)
    for values in (first, second, third):
        assert abs(values.mean()) < 0.02 and abs(values.std() - 1) < 0.02
    assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(first.ravel(), third.ravel())[0, 1]) < 0.02
    assert abs(np.corrcoef(first[:16].ravel(), first[16:32].ravel())[0, 1]) < 0.05  # blocks of one generation
