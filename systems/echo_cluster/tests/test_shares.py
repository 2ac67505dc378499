"""Counts of shards are systematic and exact on average; together with the shards' draws, every item has the probability of one table."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_cluster.shares import chances, counts

MASSES = st.lists(st.floats(0, 1e9), min_size=1, max_size=20).filter(lambda masses: sum(masses) > 1e-3)


@given(MASSES, st.integers(1, 5000), st.floats(0, 1, exclude_max=True))
def test_counts_are_the_expectation_rounded(masses: list[float], n: int, uniform: float) -> None:
    shares = chances(masses)
    found = counts(shares, n, uniform)
    assert found.sum() == n
    assert (np.abs(found - n * shares) < 1 + 1e-6).all()
    assert (found[shares == 0] == 0).all(), "an empty shard is asked for nothing"


def test_counts_are_exact_on_average() -> None:
    shares = chances([3.0, 0.5, 11.25, 1.0])
    steps = 100_000
    mean = sum(counts(shares, 7, (step + 0.5) / steps) for step in range(steps)) / steps
    np.testing.assert_allclose(mean, 7 * shares, atol=2e-5)


@pytest.mark.parametrize("masses", [[], [0.0, 0.0], [1.0, -1.0], [1.0, math.nan], [1.0, math.inf]])
def test_masses_that_cannot_be_drawn_by_are_refused(masses: list[float]) -> None:
    with pytest.raises(ValueError, match="masses of the shards"):
        chances(masses)


def chi_square_p(statistic: float, freedom: int) -> float:
    """The probability of a larger statistic, by the approximation of Wilson and Hilferty (1931)."""
    z = ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))
    return 0.5 * math.erfc(z / math.sqrt(2))


def uniform_p(values: list[float]) -> float:
    """The probability that uniform numbers lie farther from their distribution than these (Kolmogorov and Smirnov, Stephens' correction)."""
    ordered, n = np.sort(values), len(values)
    distance = max((np.arange(1, n + 1) / n - ordered).max(), (ordered - np.arange(n) / n).max())
    z = (math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * distance
    return min(1.0, max(0.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * k * k * z * z) for k in range(1, 101))))


@pytest.mark.parametrize("shards", [2, 4, 16])
@pytest.mark.parametrize("prioritized", [True, False])
def test_items_are_drawn_as_from_one_table(shards: int, prioritized: bool) -> None:
    """The sum of squares over items within shards is that of chance, and the totals of shards are within 1 of their share."""
    found = []
    for seed in range(20):
        rng = np.random.default_rng([seed, shards, prioritized])
        sizes = rng.integers(20, 60, shards)
        priorities = [rng.gamma(1.0, 2.0, size) + 0.05 if prioritized else np.ones(size) for size in sizes]
        masses = [float(one.sum()) for one in priorities]
        shares, n, batches = chances(masses), 256, 300
        drawn = [np.zeros(size) for size in sizes]
        for _ in range(batches):
            parts = counts(shares, n, rng.random())
            assert (np.abs(parts - n * shares) < 1 + 1e-9).all()
            for shard, part in enumerate(parts):
                drawn[shard] += rng.multinomial(part, priorities[shard] / masses[shard])
        statistic, freedom = 0.0, 0
        for shard in range(shards):
            expected = drawn[shard].sum() * priorities[shard] / masses[shard]
            statistic += float(((drawn[shard] - expected) ** 2 / expected).sum())
            freedom += int(sizes[shard]) - 1
        found.append(chi_square_p(statistic, freedom))
    assert min(found) >= 1e-5, found
    assert uniform_p(found) > 0.001, found


def test_equal_halves_would_be_noticed() -> None:
    """The tests above can fail: drawing half a batch from each of two unequal shards is far from one table."""
    rng = np.random.default_rng(0)
    drawn = rng.multinomial(10_000, [0.5, 0.5])
    expected = 10_000 * chances([492.0, 4543.0])
    assert chi_square_p(float(((drawn - expected) ** 2 / expected).sum()), 1) < 1e-5
