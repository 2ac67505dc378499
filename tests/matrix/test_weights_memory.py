"""Beside its caller's arrays, a learner holds one copy of large weights, also while it publishes the next version."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # benchmarks is not installed

from benchmarks.weights_memory import PLACES, measure

SIZE = 96 << 20  # bytes: above the size from which this holds


@pytest.mark.parametrize("scheme", list(PLACES))
def test_one_copy_while_publishing_and_afterwards(scheme: str) -> None:
    peak, rest = measure(scheme, SIZE)
    assert 0.9 < peak < 1.3 and 0.9 < rest < 1.3
