"""Statistics of observations, merged."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_es.observations import ObservationStats


@given(st.lists(st.integers(0, 20), min_size=1, max_size=8), st.integers(0, 1000))
def test_merged_is_what_one_would_have_seen(sizes: list[int], seed: int) -> None:
    rng = np.random.default_rng(seed)
    parts = [rng.normal(1e4, 3, (size, 2, 3)) for size in sizes]
    learner = ObservationStats((2, 3))
    for part in parts:
        worker = ObservationStats((2, 3))
        worker.add(part[: len(part) // 2])
        worker.add(part[len(part) // 2 :])
        learner.merge(worker.take())
        assert worker.count == 0 and not worker.m2.any()
    seen = np.concatenate(parts)
    assert learner.count == len(seen)
    if len(seen):
        np.testing.assert_allclose(learner.mean, seen.mean(axis=0))
        np.testing.assert_allclose(learner.m2, ((seen - seen.mean(axis=0)) ** 2).sum(axis=0), rtol=1e-6, atol=1e-6)


def test_sums_are_taken_too() -> None:
    rows = np.random.default_rng(1).normal(2, 3, (50, 4))
    stats = ObservationStats((4,))
    stats.merge({"count": 50, "sum": rows.sum(axis=0), "sumsq": (rows**2).sum(axis=0)})
    np.testing.assert_allclose(stats.deviation, rows.std(axis=0))


def test_normalize() -> None:
    stats = ObservationStats((2,))
    assert stats.normalize([[3.0, -9.0]]).tolist() == [[3.0, -5.0]]
    stats.add([[1.0, 7.0], [3.0, 7.0]])
    assert stats.normalize([3.0, 7.001]).tolist() == pytest.approx([1.0, 0.1])  # the deviation is at least 0.01
    assert stats.normalize([[3.0, 7.0]]).dtype == np.float32


def test_what_is_no_number_is_left_out() -> None:
    stats = ObservationStats((2,))
    stats.add([[1.0, 2.0], [np.nan, 0.0], [3.0, np.inf]])
    assert stats.count == 1 and stats.invalid == 2 and stats.mean.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(
    "arrays",
    [
        {"count": 1, "mean": np.zeros(3), "m2": np.zeros(3)},
        {"count": -1, "mean": np.zeros(2), "m2": np.zeros(2)},
        {"count": 1, "mean": np.array([0, np.nan]), "m2": np.zeros(2)},
        {"count": 1, "mean": np.zeros(2), "m2": np.array([0.0, -1.0])},
        {"count": 1, "sum": np.zeros(2), "sumsq": np.array([np.inf, 0])},
    ],
)
def test_what_cannot_be_merged_changes_nothing(arrays: dict[str, np.ndarray]) -> None:
    stats = ObservationStats((2,))
    stats.add([[1.0, 2.0]])
    with pytest.raises(ValueError, match="observation statistics"):
        stats.merge(arrays)
    assert stats.count == 1 and stats.mean.tolist() == [1.0, 2.0]


def test_observations_of_another_shape() -> None:
    with pytest.raises(ValueError, match=r"must be \(n, 2\), not \(2,\)"):
        ObservationStats((2,)).add([1.0, 2.0])
