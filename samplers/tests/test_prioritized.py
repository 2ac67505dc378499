"""Tests the promises of `prioritized` beyond the contract: exact probabilities at every scale, and sums that do not drift."""

from __future__ import annotations

from typing import Any

import numpy as np
import psutil
import pytest

from echo_core.base.errors import ConfigError
from echo_samplers.hot_cold import HotCold
from echo_samplers.prioritized import Prioritized


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def filled(priorities: list[float] | np.ndarray, **options: object) -> Prioritized:
    sampler = Prioritized(**{"capacity": len(priorities) + 10, **options})
    sampler.insert(np.arange(len(priorities), dtype=np.uint64), np.array(priorities, np.float64))
    return sampler


def same_draws(one: Prioritized, other: Prioritized, n: int = 1000) -> None:
    mine, theirs = one.sample(n, np.random.default_rng(0)), other.sample(n, np.random.default_rng(0))
    np.testing.assert_array_equal(mine[0], theirs[0])
    np.testing.assert_array_equal(mine[1], theirs[1])


@pytest.mark.parametrize(
    ("sampler", "refuses"),
    [
        (Prioritized(capacity=4), False),
        (Prioritized(capacity=4, eps=0.0), True),
        (Prioritized(capacity=4, eps=0.0, alpha=0.0), False),
        (HotCold(capacity=4, eps=0.0), True),
        (HotCold(capacity=4, eps=0.0, weighting="rank"), False),
    ],
)
def test_a_table_refuses_zero_where_it_would_never_be_drawn(sampler: Any, refuses: bool) -> None:
    assert sampler.refuses_zero is refuses


def test_zero_is_drawn_by_virtue_of_eps_alone() -> None:
    rng = np.random.default_rng(0)
    assert set(filled([0.0, 1.0, 0.0, 2.0, 0.0], eps=0.0).sample(10_000, rng)[0].tolist()) == {1, 3}
    drawn, probabilities = filled([0.0, 1.0], eps=1.0, alpha=1.0).sample(10_000, rng)
    assert set(drawn.tolist()) == {0, 1}
    np.testing.assert_allclose(probabilities, np.where(drawn == 0, 1 / 3, 2 / 3), rtol=1e-6)
    nothing = filled([0.0, 0.0], eps=0.0)
    with pytest.raises(ValueError, match="1 keys were requested, but 2 are held; none of them has a priority above 0"):
        nothing.sample(1, rng)
    nothing.update(keys(1), np.ones(1))
    assert nothing.sample(3, rng)[0].tolist() == [1, 1, 1]


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_with_an_alpha_of_zero_zero_is_drawn_like_all_others(eps: float) -> None:
    drawn, probabilities = filled([0.0, 1.0, 0.0, 1e30, 0.0], alpha=0.0, eps=eps).sample(1000, np.random.default_rng(0))
    assert set(drawn.tolist()) == set(range(5))
    np.testing.assert_array_equal(probabilities, 0.2)


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.5, 1.0, 2.0])
def test_priorities_of_every_magnitude_leave_the_others_drawable(alpha: float) -> None:
    extreme = [1e308, 1e-320, 5e-324, 1e38, 1.0]
    sampler = filled(extreme, alpha=alpha, eps=0.0)
    drawn, probabilities = sampler.sample(1000, np.random.default_rng(0))
    assert np.isfinite(probabilities).all() and (probabilities > 0).all() and (probabilities <= 1).all()
    sampler.delete(keys(0, 3))
    drawn, probabilities = sampler.sample(1000, np.random.default_rng(0))
    assert np.isfinite(probabilities).all() and drawn.max() == 4
    sampler.delete(keys(4))
    assert set(sampler.sample(1000, np.random.default_rng(0))[0].tolist()) == {1, 2}


def test_a_new_sample_gets_the_largest_priority_and_it_is_transformed_once() -> None:
    sampler = filled([1.0, 16.0], alpha=0.5, eps=0.0)
    sampler.update(keys(1), np.ones(1))  # the largest priority so far counts, not the largest at present
    sampler.insert(keys(5))
    drawn, probabilities = sampler.sample(1000, np.random.default_rng(0))
    np.testing.assert_allclose(probabilities, np.where(drawn == 5, 4 / 6, 1 / 6), rtol=1e-6)
    np.testing.assert_allclose(sampler.priorities(keys(5, 0)), [16, 1], rtol=1e-6)
    again = filled([], alpha=0.5, eps=0.0)
    again.restore(sampler.state())
    again.insert(keys(6))
    np.testing.assert_allclose(again.priorities(keys(6)), [16], rtol=1e-6)


def test_a_state_of_other_options_is_weighed_anew() -> None:
    saved = filled([0.0, 1.0, 4.0, 9.0], alpha=0.5, eps=0.1)
    other = filled([], capacity=14, alpha=1.0, eps=0.0)
    other.restore(saved.state())
    np.testing.assert_allclose(other.priorities(keys(0, 1, 2, 3)), [0, 1, 4, 9], rtol=1e-5, atol=1e-6)
    drawn, probabilities = other.sample(1000, np.random.default_rng(0))
    np.testing.assert_allclose(probabilities, np.array([0, 1, 4, 9])[drawn.astype(int)] / 14, rtol=1e-5, atol=1e-6)


def test_a_million_updates_of_every_magnitude_leave_the_sums_of_a_fresh_tree() -> None:
    rng, n = np.random.default_rng(1), 5000
    sampler = filled(np.ones(n), alpha=1.0, eps=0.0)
    final = np.ones(n)
    for _ in range(2000):
        rows, priorities = rng.integers(0, n, 512), 10.0 ** rng.uniform(-30, 30, 512)
        sampler.update(rows.astype(np.uint64), priorities)
        final[rows] = priorities
    final[:] = rng.random(n)  # from 1e30 to 1: a sum that is changed by differences would keep an error of 1e14
    sampler.update(np.arange(n, dtype=np.uint64), final)
    fresh = filled(np.ones(n), alpha=1.0, eps=0.0)
    fresh.update(np.arange(n, dtype=np.uint64), final)
    same_draws(sampler, fresh)
    drawn, probabilities = sampler.sample(1000, rng)
    np.testing.assert_allclose(probabilities, final[drawn.astype(int)] / final.sum(), rtol=1e-6)


@pytest.mark.parametrize("stratified", [False, True])
@pytest.mark.parametrize("n", [1, 16, 17, 300, 5000])
def test_every_key_comes_as_often_as_its_weight(n: int, stratified: bool) -> None:
    rng = np.random.default_rng(2)
    weights = rng.random(n) ** 4 * (rng.random(n) < 0.7)
    weights[n // 2] = 1.0
    counts, draws = np.zeros(n), 400_000
    sampler = filled(weights, alpha=1.0, eps=0.0, stratified=stratified)
    for _ in range(draws // 1000):
        np.add.at(counts, sampler.sample(1000, rng)[0].astype(np.int64), 1)
    expected = weights / weights.sum() * draws
    assert (counts[weights == 0] == 0).all()
    often = expected >= 10
    statistic = ((counts - expected)[often] ** 2 / expected[often]).sum()
    assert statistic <= often.sum() + 6 * (2 * often.sum()) ** 0.5


def test_strata_draw_each_key_about_as_often_as_its_share_of_the_batch() -> None:
    rng, n = np.random.default_rng(3), 40
    sampler = filled(rng.random(n) + 0.1, alpha=1.0, stratified=True)
    for _ in range(50):
        drawn, probabilities = sampler.sample(512, rng)
        counts = np.bincount(drawn.astype(np.int64), minlength=n)
        share = np.zeros(n)
        share[drawn.astype(np.int64)] = probabilities * 512
        assert (abs(counts - share) < 2).all()


def test_memory_is_what_the_docstring_says_and_taken_as_the_table_fills() -> None:
    rows, process = 8_000_000, psutil.Process()
    before = process.memory_info().rss
    sampler = Prioritized(capacity=rows)
    assert process.memory_info().rss - before < rows  # less than a byte per row, because nothing is held
    for start in range(0, rows, 100_000):
        sampler.insert(np.arange(start, start + 100_000, dtype=np.uint64))
    assert 4 * rows < process.memory_info().rss - before < 6 * rows


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"capacity": 0}, "Prioritized: capacity must be from 1 to 4294967293, not 0"),
        ({"capacity": 2**32}, "capacity must be from 1"),
        ({"capacity": 5, "alpha": -1.0}, "Prioritized.alpha: alpha must be from 0"),
        ({"capacity": 5, "alpha": float("nan")}, "alpha must be from 0"),
        ({"capacity": 5, "eps": -1e-9}, "eps must be from 0"),
        ({"capacity": 5, "beta": 0.4}, "beta"),
        ({}, "capacity"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Prioritized(**options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"weights": np.array([1.0])}, "'weights' has another length"),
        ({"weights": np.array([1.0, -1.0])}, "'weights' holds a weight that is negative"),
        ({"weights": np.array([1.0, np.nan])}, "'weights' holds a weight that is negative or not finite"),
        ({"keys": np.array([1, 12], np.uint64)}, "'keys' holds key 12, but the capacity is 12"),
        ({"keys": np.array([1, 1], np.uint64)}, "'keys' holds 1 twice"),
        ({"keys": np.array([0.5, 1.5])}, "'keys': keys must be whole numbers"),
        ({"numbers": np.zeros(2)}, "'numbers' must be the largest priority so far, alpha and eps"),
        ({"numbers": np.zeros((3, 1))}, "'numbers' must have one dimension"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: dict, said: str) -> None:
    sampler, twin = filled([1.0, 3.0]), filled([1.0, 3.0])
    with pytest.raises(ValueError, match=said):
        sampler.restore({**sampler.state(), **change})
    same_draws(sampler, twin)
