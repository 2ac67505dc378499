"""Samples written into the rows of arrays."""

from __future__ import annotations

import numpy as np
import pytest
from containers import flattener

from echo_core.base.errors import SpecError
from echo_core.spec.row_writer import RowWriter

pytestmark = pytest.mark.every_python


def test_row_writer() -> None:
    flat = flattener({"x": np.zeros(2, np.int16), "y": np.zeros((), np.float32)})
    x, y = np.zeros((3, 2), np.int16), np.zeros(3, np.float32)
    writer = RowWriter(flat, [x, y])
    assert writer.rows == 3
    writer.write(1, {"x": np.array([1, 2], np.int16), "y": 0.5})
    writer.write(2, {"x": np.array([[3, 4]], np.int16), "y": np.array([1.5], np.float32)})
    assert x.tolist() == [[0, 0], [1, 2], [3, 4]] and y.tolist() == [0, 0.5, 1.5]
    for row in (-1, 3):
        with pytest.raises(IndexError):
            writer.write(row, {"x": x[0], "y": 0.0})
    before = x.copy(), y.copy()
    for bad in (
        {"x": np.array([[9, 9]] * 2, np.int16), "y": 9.0},
        {"x": np.array([9, 9], np.int16), "y": np.float64(1e39)},
        {"x": np.array([9, 9], np.int16)},
    ):
        with pytest.raises(SpecError):
            writer.write(0, bad)
    assert (x == before[0]).all() and (y == before[1]).all()
    writer.write(0, {"x": x[1], "y": y[1]})  # from the very arrays it writes
    assert x[0].tolist() == [1, 2]


def test_row_writer_refuses_arrays_it_cannot_fill() -> None:
    flat = flattener({"x": np.zeros(2, np.int16)})
    frozen = np.zeros((3, 2), np.int16)
    frozen.flags.writeable = False
    for bad in (
        [],
        [np.zeros((3, 2))],
        [np.zeros((3, 4), np.int16)[:, ::2]],
        [frozen],
        [np.zeros(3, np.int16)],
    ):
        with pytest.raises(ValueError):
            RowWriter(flat, bad)
    wide = flattener({"x": np.zeros(2, np.int16), "y": np.zeros(1, np.int8)})
    with pytest.raises(ValueError, match="whole rows"):
        RowWriter(wide, [np.zeros((3, 2), np.int16), np.zeros((4, 1), np.int8)])
