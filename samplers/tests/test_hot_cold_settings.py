"""Tests of `hot_cold`: a temperature that changes between draws, and ages that are counted in versions of the policy."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from echo_core import Server
from echo_core.base.errors import ConfigError
from echo_samplers.hot_cold import HotCold

EXAMPLE = np.zeros(1, np.float32)


def rows(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def exact(scores: np.ndarray, hot: np.ndarray, temperature: float) -> np.ndarray:
    """The probability of each sample with the weighting "softmax" and a hot_ratio of 0.7."""
    weights = np.exp((scores - scores.max()) / temperature)
    return np.where(hot, 0.7 * weights / weights[hot].sum(), 0.3 * weights / weights[~hot].sum())


def softmax(**options: object) -> tuple[HotCold, np.ndarray]:
    scores = np.linspace(0.0, 3.0, 12)
    sampler = HotCold(**{"capacity": 12, "hot_capacity": 4, "weighting": "softmax", **options})
    sampler.insert(np.arange(12, dtype=np.uint64), scores)
    return sampler, scores


@pytest.mark.parametrize("temperature", [0.5, 1.0, 7.0])
def test_draws_follow_the_temperature_that_was_set_last(temperature: float) -> None:
    sampler, scores = softmax(temperature=1.0)
    rng = np.random.default_rng(1)
    sampler.sample(8, rng)
    sampler.temperature = temperature
    promised = exact(scores, sampler.hot(np.arange(12, dtype=np.uint64)), temperature)
    counts, turns = np.zeros(12), 4000
    for _ in range(turns):
        drawn, probabilities = sampler.sample(10, rng)
        np.testing.assert_allclose(probabilities, promised[drawn.astype(np.int64)], rtol=1e-5)
        np.add.at(counts, drawn.astype(np.int64), 1)
    wanted = promised * turns * 10
    assert (np.square(counts - wanted) / wanted).sum() < 11 + 6 * 22**0.5, "chi-square of 12 samples"


def test_weights_correct_a_mean_while_the_temperature_falls() -> None:
    sampler, scores = softmax()
    rng, means = np.random.default_rng(2), []
    for temperature in np.linspace(5.0, 0.7, 4000):
        sampler.temperature = temperature
        drawn, probabilities = sampler.sample(16, rng)
        means.append((scores[drawn.astype(np.int64)] / (12 * probabilities)).mean())
    error = np.std(means) / len(means) ** 0.5
    assert abs(np.mean(means) - scores.mean()) < 5 * error < 0.1


def test_a_checkpoint_has_the_temperature_that_was_set() -> None:
    sampler, _ = softmax(temperature=1.0)
    sampler.temperature = 0.25
    again = HotCold(capacity=12, hot_capacity=4, weighting="softmax", temperature=1.0)
    again.restore(sampler.state())
    assert again.temperature == 0.25
    mine, theirs = (one.sample(64, np.random.default_rng(3)) for one in (sampler, again))
    assert mine[0].tolist() == theirs[0].tolist() and mine[1].tolist() == theirs[1].tolist()
    other = HotCold(capacity=12, hot_capacity=4, weighting="softmax", temperature=3.0)
    other.restore(softmax(temperature=1.0)[0].state())
    assert other.temperature == 3.0, "a temperature that nobody set is an option, and options are not part of a checkpoint"


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
def test_a_wrong_temperature_is_refused_and_changes_nothing(wrong: float) -> None:
    sampler, _ = softmax(temperature=2.0)
    with pytest.raises(ValueError, match="temperature must be positive"):
        sampler.temperature = wrong
    assert sampler.temperature == 2.0
    with pytest.raises(ValueError, match="'proportional' has no temperature"):
        HotCold(capacity=4).temperature = 1.0


def test_the_temperature_is_set_while_threads_insert_and_draw() -> None:
    sampler = {"type": "hot_cold", "weighting": "softmax"}
    with Server(EXAMPLE, 8, sampler=sampler, capacity=64, seed=1) as server:
        table, done = server.table(), threading.Event()

        def write() -> None:
            for i in range(4000):
                table.submit(np.full(1, i % 7, np.float32), priority=float(i % 7))
            done.set()

        writer = threading.Thread(target=write)
        writer.start()
        temperatures = np.random.default_rng(0).uniform(0.5, 5, 1000)
        for i in range(1000):
            if len(table):
                assert (table.sample().probabilities > 0).all()
            table.sampler.temperature = temperatures[i]
        writer.join()
        assert done.is_set()
        table.sampler.temperature = 1e6
        drawn = table.sample(64)
        hot = table.sampler.hot(np.arange(64, dtype=np.uint64)).sum()
        assert set(np.round(drawn.probabilities, 6)) <= set(np.round([0.7 / hot, 0.3 / (64 - hot)], 6)), "so hot that all weights are equal"


def test_samples_age_in_versions_of_the_policy() -> None:
    sampler = HotCold(capacity=100, hot_capacity=50, age_threshold=2, age_unit="versions")
    sampler.insert(rows(0, 1))
    sampler.published(1)
    sampler.insert(rows(*range(2, 40)))
    sampler.published(2)
    assert sampler.hot(rows(0, 1, 2)).all(), "inserts make no sample older"
    sampler.published(3)
    assert sampler.hot(rows(0, 1, 2, 39)).tolist() == [False, False, True, True]
    again = HotCold(capacity=100, hot_capacity=50, age_threshold=2, age_unit="versions")
    again.restore(sampler.state())
    again.published(4)
    assert not again.hot(rows(2, 39)).any()
    with pytest.raises(ValueError, match="counts ages in versions, but age_unit is 'inserts'"):
        HotCold(capacity=100, hot_capacity=50).restore(sampler.state())
    with pytest.raises(ConfigError, match="age_unit"):
        HotCold(capacity=100, age_unit="seconds")


def test_publish_ages_the_samples_of_a_table_and_a_checkpoint_keeps_it(tmp_path: Path) -> None:
    options = {"sampler": {"type": "hot_cold", "age_threshold": 1, "age_unit": "versions", "hot_capacity": 50}, "capacity": 100}
    with Server(EXAMPLE, 4, **options) as server:
        for _ in range(3):
            server.table().submit(EXAMPLE)
        server.publish(EXAMPLE)
        server.table().submit(EXAMPLE)
        assert server.table().sampler.hot(rows(0, 1, 2, 3)).all()
        server.publish(EXAMPLE)
        assert server.table().sampler.hot(rows(0, 1, 2, 3)).tolist() == [False, False, False, True]
        server.checkpoint(tmp_path / "checkpoint")
    with Server(EXAMPLE, 4, **options).restore(tmp_path / "checkpoint") as again:
        assert again.table().sampler.hot(rows(0, 1, 2, 3)).tolist() == [False, False, False, True]
        again.table().policy_version = 3
        assert not again.table().sampler.hot(rows(3)).any()
