"""Views: trees of arrays over a buffer, without a copy."""

from __future__ import annotations

import numpy as np
import pytest
from containers import Step, flattener

pytestmark = pytest.mark.every_python


def test_views_are_views_of_the_buffer() -> None:
    flat = flattener(Step(np.zeros(2, np.uint16), {"x": np.zeros((), np.uint8)}))
    buffer = bytearray(15)
    batch = flat.view(buffer, 3)
    assert type(batch) is Step and batch.obs.shape == (3, 2) and batch.reward["x"].shape == (3,)
    batch.obs[1] = 0x0201
    batch.reward["x"][2] = 7
    assert bytes(buffer) == bytes([0, 0, 0, 0, 1, 2, 1, 2, 0, 0, 0, 0, 0, 0, 7])
    with pytest.raises(BufferError):
        buffer.extend(b"more")  # exported for as long as an array lives
    part = batch.obs[1:]
    del batch
    with pytest.raises(BufferError):
        buffer.extend(b"more")
    del part
    buffer.extend(b"more")
    assert not flat.view(bytes(15), 3).obs.flags.writeable
    assert not flat.view(bytes(5)).obs.flags.writeable


def test_views_know_when_they_are_not_aligned() -> None:
    flat = flattener([np.zeros(1, np.uint8), np.zeros(1, np.float64)])
    one, two = flat.view(bytearray(9))
    assert one.flags.aligned and not two.flags.aligned and two[0] == 0.0


@pytest.mark.parametrize("size", [0, 8, 31, 33])
def test_view_refuses_other_sizes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        flattener({"x": np.zeros(2, np.float32)}).view(bytearray(size), 4)


def test_view_refuses_gaps() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        flattener(np.zeros(4, np.uint8)).view(memoryview(bytearray(8))[::2])
