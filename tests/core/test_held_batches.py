"""Batches larger than a message, on the server, until their last part was fetched."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core.server import large_draws
from echo_core.server.large_draws import HeldBatches

pytestmark = pytest.mark.every_python


def columns(n: int) -> list[np.ndarray]:
    return [np.arange(n, dtype=np.uint64), np.ones((n, 3))]


def test_parts_are_of_one_batch_which_goes_with_the_last() -> None:
    held = HeldBatches()
    held.put(1, 7, {"figure": 1}, columns(10))
    assert held.part(1, 8, 0, 4) is held.part(2, 7, 0, 4) is None, "another batch, another client"
    for start, rows in ((0, 4), (4, 4), (8, 2)):
        figures, (numbers, ones) = held.part(1, 7, start, rows) or pytest.fail("it is gone")
        assert figures == {"figure": 1} and numbers.tolist() == [*range(start, start + rows)] and ones.shape == (rows, 3)
    assert held.part(1, 7, 8, 2) is None
    held.put(1, 9, {}, columns(10))
    held.forget(1)
    assert held.part(1, 9, 0, 1) is None


def test_of_too_many_or_too_large_ones_the_oldest_go(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldBatches()
    for number in range(large_draws.MOST + 2):
        held.put(1, number, {}, columns(2))
    here = [number for number in range(large_draws.MOST + 2) if held.part(1, number, 0, 1)]
    assert here == [*range(2, large_draws.MOST + 2)]
    monkeypatch.setattr(large_draws, "MOST_BYTES", 1000)
    held.put(1, 100, {}, columns(20))  # 640 bytes
    held.put(1, 101, {}, columns(20))
    assert held.part(1, 100, 0, 1) is None and held.part(1, 101, 0, 1) is not None
    held.put(1, 102, {}, columns(1000))
    assert held.part(1, 102, 0, 1) is not None, "one alone may be as large as a draw may be"
