"""Tests the promises of `hot_cold` beyond the contract: which samples are hot or removed, and that importance weights correct the mixture."""

from __future__ import annotations

import numpy as np
import pytest

from echo_core.base.errors import ConfigError
from echo_samplers.hot_cold import WEIGHTINGS, HotCold
from echo_samplers.scores import effective_sample_size


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def rows(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint64)


def hot(sampler: HotCold, n: int) -> set[int]:
    return set(np.flatnonzero(sampler.hot(rows(n))).tolist())


def filled(scores: list[float] | np.ndarray, **options: object) -> HotCold:
    sampler = HotCold(**{"capacity": len(scores) + 10, **options})
    sampler.insert(rows(len(scores)), np.array(scores, np.float64))
    return sampler


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_mean_with_importance_weights_is_unbiased(weighting: str) -> None:
    """A fifth of the samples has the value 1 and high scores, so without weights most of a batch would be 1."""
    rng, n = np.random.default_rng(0), 1000
    truth = (np.arange(n) % 5 == 0).astype(float)
    sampler = HotCold(capacity=n, hot_capacity=200, weighting=weighting, alpha=1.0, eps=0.1, temperature=2.0)
    sampler.insert(rows(n), 0.2 + 3 * truth + rng.random(n))
    assert sampler.hot(rows(n)).sum() == 200
    plain, weighted = [], []
    for _ in range(4000):
        drawn, probabilities = sampler.sample(37, rng)  # 37 * 0.7 is not a whole number
        values = truth[drawn.astype(np.int64)]
        plain.append(values.mean())
        weighted.append((values / (n * probabilities)).mean())
    error = np.std(weighted) / len(weighted) ** 0.5
    assert error < 0.01
    assert abs(np.mean(weighted) - 0.2) < 5 * error
    assert np.mean(plain) > 0.6, "without weights, the mean of the batches is far off"


def test_new_samples_are_hot_until_better_ones_come() -> None:
    sampler = filled([1.0, 5.0, 3.0], hot_capacity=3)
    assert hot(sampler, 3) == {0, 1, 2}
    sampler.insert(keys(3, 4), np.array([4.0, 2.0]))
    assert hot(sampler, 5) == {1, 2, 3}, "the fourth made the lowest one cold, and the fifth was the lowest itself"


def test_age_cools_and_is_counted_from_when_a_sample_became_hot() -> None:
    sampler = filled([9.0, 9.0], capacity=50, hot_capacity=40, age_threshold=3)
    sampler.insert(keys(2, 3), np.array([1.0, 1.0]))
    assert hot(sampler, 4) == {0, 1, 2, 3}
    sampler.insert(keys(4), np.array([1.0]))
    assert hot(sampler, 5) == {1, 2, 3, 4}, "the first is older than three inserts"
    sampler.update(keys(0), np.array([10.0]))
    assert 0 in hot(sampler, 5), "a score that rises makes it hot again"
    sampler.insert(keys(5, 6, 7), np.ones(3))
    assert hot(sampler, 8) == {0, 5, 6, 7, 4}, "and young"


def test_scores_promote_and_demote() -> None:
    sampler = filled(np.arange(1.0, 21.0), hot_capacity=5)
    assert hot(sampler, 20) == {15, 16, 17, 18, 19}
    sampler.update(keys(3), np.array([15.5]))
    assert hot(sampler, 20) == {15, 16, 17, 18, 19}, "not better than the lowest hot one"
    sampler.update(keys(3), np.array([18.5]))
    assert hot(sampler, 20) == {3, 16, 17, 18, 19}
    sampler.update(keys(19), np.array([2.5]))
    assert hot(sampler, 20) == {3, 16, 17, 18}, "below the median it becomes cold even if no sample replaces it"
    sampler.update(keys(18), np.array([15.0]))
    assert 18 in hot(sampler, 20), "a score that falls a little does not make a sample cold"


def test_victims_are_the_least_valuable() -> None:
    sampler = filled([5.0, 1.0, 4.0, 1.0, 3.0, 9.0], hot_capacity=2)
    assert hot(sampler, 6) == {0, 5}
    assert sampler.victims(6).tolist() == [1, 3, 4, 2, 0, 5]
    sampler.update(keys(1), np.array([3.5]))
    assert sampler.victims(2).tolist() == [3, 4]


def test_the_share_of_a_batch_is_hot() -> None:
    sampler, rng = filled(np.arange(1.0, 101.0), hot_capacity=20, hot_ratio=0.25), np.random.default_rng(0)
    counts = [int((sampler.sample(10, rng)[0] >= 80).sum()) for _ in range(4000)]
    assert set(counts) == {2, 3}
    assert abs(np.mean(counts) - 2.5) < 0.05
    sampler.delete(keys(*range(80, 100)))
    drawn, probabilities = sampler.sample(1000, rng)
    weights = np.arange(1.0, 81.0) ** 0.6
    np.testing.assert_allclose(probabilities, (weights / weights.sum())[drawn.astype(np.int64)], rtol=1e-5)


def spread(weighting: str, scores: np.ndarray) -> float:
    """The effective sample size of the distribution itself, 1 / sum of p**2, estimated as a mean of p over draws."""
    sampler = filled(scores, weighting=weighting, hot_capacity=len(scores))
    _, probabilities = sampler.sample(100_000, np.random.default_rng(0))
    return 1 / float(probabilities.mean())


def test_a_softmax_over_squared_distances_collapses_and_ranks_and_robust_scores_do_not() -> None:
    rng, n = np.random.default_rng(0), 20_000
    distances = np.square(rng.normal(size=(n, 64)) * rng.lognormal(size=(n, 1))).sum(axis=1)
    assert spread("softmax", distances) < 1.1
    assert spread("rank", distances) > 1000
    assert spread("robust", distances) > 1000
    assert spread("proportional", distances) > 1000


def test_a_score_beyond_the_scale_of_a_softmax_rescales_it() -> None:
    sampler = filled([1.0] * 100, weighting="softmax", hot_capacity=110, temperature=1.0)
    sampler.update(keys(7), np.array([1000.0]))
    drawn, probabilities = sampler.sample(100, np.random.default_rng(0))
    assert set(drawn.tolist()) == {7} and (probabilities > 0.999).all()
    sampler.delete(keys(7))
    sampler.update(keys(0), np.array([1.0]))
    assert effective_sample_size(sampler.sample(100, np.random.default_rng(0))[1]) == pytest.approx(100)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_equal_scores_are_equally_likely(weighting: str) -> None:
    sampler = filled([0.5] * 64, weighting=weighting, hot_capacity=64)
    _, probabilities = sampler.sample(100, np.random.default_rng(0))
    np.testing.assert_allclose(probabilities, 1 / 64, rtol=1e-6)


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_a_large_table_is_restored_with_its_scale(weighting: str) -> None:
    """The table has more samples than the quantiles hold, and a history. After the restore, both get the same calls."""
    rng, n = np.random.default_rng(1), 5000
    options = {"capacity": n, "hot_capacity": 700, "age_threshold": 2000, "weighting": weighting}
    one = HotCold(**options)
    one.insert(rows(n), rng.lognormal(size=n))
    one.delete(np.arange(0, n, 7, dtype=np.uint64))
    one.update(np.arange(1, n, 7, dtype=np.uint64), rng.lognormal(size=len(range(1, n, 7))))
    other = HotCold(**options)
    other.restore(one.state())
    for turn in range(30):
        mine, theirs = one.sample(64, np.random.default_rng(turn)), other.sample(64, np.random.default_rng(turn))
        np.testing.assert_array_equal(mine[0], theirs[0])
        np.testing.assert_array_equal(mine[1], theirs[1])
        changed, scores = np.unique(mine[0]), rng.lognormal(size=200)
        for sampler in (one, other):
            sampler.update(changed, scores[: len(changed)])
            sampler.delete(changed[:3])
            sampler.insert(changed[:3])
    np.testing.assert_array_equal(one.victims(len(one)), other.victims(len(other)))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"hot_capacity": 0}, "hot_capacity must be from 1 to the capacity of 10"),
        ({"hot_capacity": 11}, "hot_capacity must be from 1 to the capacity of 10"),
        ({"hot_ratio": 1.0}, "hot_ratio must be between 0 and 1"),
        ({"age_threshold": 0}, "age_threshold must be at least 1"),
        ({"weighting": "max"}, "weighting"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"demote_below": 0.9, "promote_above": 0.8}, "0 <= demote_below <= promote_above <= 1"),
        ({"alpha": float("inf")}, "alpha must be from 0"),
    ],
)
def test_options_out_of_range_are_refused(options: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        HotCold(capacity=10, **options)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"hot": keys(4), "entered": np.ones(1)}, "'hot' holds a key that is not in 'keys'"),
        ({"hot": keys(1, 1), "entered": np.ones(2)}, "'hot' holds a key twice"),
        ({"hot": keys(0, 1, 2), "entered": np.ones(3)}, "'hot' has 3 keys, but hot_capacity is 2"),
        ({"entered": np.ones(1)}, "'entered' has another length"),
        ({"entered": np.array([3.0, 2.0])}, "'entered' is out of order"),
        ({"entered": np.array([3.0, np.nan])}, "'entered' is out of order"),
        ({"numbers": np.ones(3)}, "'numbers' has a wrong length"),
        ({"numbers": np.full(11, np.inf)}, "'numbers' holds a number that is negative or not finite"),
        ({"priorities": np.array([1.0, 2.0])}, "'priorities'"),
        ({"priorities": np.array([1.0, 2.0, -3.0])}, "'priorities': priority -3.0 of key 2"),
    ],
)
def test_a_damaged_state_is_refused_and_changes_nothing(change: dict, said: str) -> None:
    sampler = filled([1.0, 2.0, 3.0], hot_capacity=2)
    with pytest.raises(ValueError, match=said):
        sampler.restore({**sampler.state(), **change})
    assert (len(sampler), hot(sampler, 3)) == (3, {1, 2})
