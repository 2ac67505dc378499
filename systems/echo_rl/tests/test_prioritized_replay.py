from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echo_core import CheckpointError
from echo_rl.core.prioritized_replay import PrioritizedReplayBuffer, ReplayConfig

SMALL = {"hot_buffer_size": 200, "cold_buffer_size": 800, "seed": 1}


@pytest.fixture
def opened() -> Iterator[list[PrioritizedReplayBuffer]]:
    buffers: list[PrioritizedReplayBuffer] = []
    yield buffers
    for buffer in buffers:
        buffer.close()


def filled(opened: list[PrioritizedReplayBuffer], scores: Any, **config: Any) -> PrioritizedReplayBuffer:
    buffer = PrioritizedReplayBuffer(ReplayConfig(**{**SMALL, **config}))
    opened.append(buffer)
    buffer.add_batch({"x": np.arange(len(scores))}, scores)
    return buffer


@pytest.mark.parametrize("weighting", ["rank", "softmax"])
def test_the_weighted_mean_is_that_of_all_items(opened: list[PrioritizedReplayBuffer], weighting: str) -> None:
    # A fifth of the items has the value 1 and a high score.
    values = np.arange(1000) % 5 == 0
    buffer = filled(opened, 0.5 + values, weighting=weighting)
    drawn, weights = buffer.sample_batch(200_000)
    assert np.mean(weights * values[drawn["x"]]) == pytest.approx(0.2, abs=0.005)
    assert np.mean(values[drawn["x"]]) > 0.3, "high scores come more often"


def test_a_full_buffer_removes_the_least_valuable(opened: list[PrioritizedReplayBuffer]) -> None:
    buffer = filled(opened, np.arange(1, 1001))
    buffer.add_batch({"x": np.arange(1000, 1100)}, np.full(100, 5000.0))
    items, here = buffer._filled().table.peek(buffer._filled().table.keys())
    assert here.all() and sorted(items["x"]) == list(range(100, 1100))


def test_alpha_and_temperature_spread_the_draws(opened: list[PrioritizedReplayBuffer]) -> None:
    def mean(**config: float) -> float:
        return float(filled(opened, np.arange(1.0, 1001), **config).sample_batch(20_000)[0]["x"].mean())

    assert mean(temperature=2.0) == mean(alpha=0.3) < mean() < mean(alpha=1.2)
    with pytest.raises(ValueError, match="temperature=3.0 differs"):
        filled(opened, [1.0]).sample_batch(1, temperature=3.0)


@pytest.mark.parametrize("weighting", ["softmax", "robust"])
def test_a_draw_may_have_its_own_temperature(opened: list[PrioritizedReplayBuffer], weighting: str) -> None:
    buffer = filled(opened, np.linspace(0, 3, 1000), weighting=weighting, hot_buffer_size=999, cold_buffer_size=1, hot_ratio=0.99)
    sharp, plain, flat = (float(buffer.sample_batch(20_000, temperature=t)[0]["x"].mean()) for t in (0.1, None, 1e6))
    assert sharp > plain + 100 > flat + 200
    assert float(buffer.sample_batch(20_000)[0]["x"].mean()) == pytest.approx(plain, abs=15), "the configuration's comes back"
    drawn, weights = buffer.sample_batch(200_000, temperature=2.0)
    assert np.mean(weights * drawn["x"]) == pytest.approx(499.5, rel=0.02)


def test_items_cool_down_by_versions(opened: list[PrioritizedReplayBuffer]) -> None:
    buffer = filled(opened, np.ones(100), age_threshold=2, hot_buffer_size=500, cold_buffer_size=500)
    buffer.advance(2)
    buffer.add_batch({"x": np.arange(100, 200)}, np.ones(100))

    def newest() -> float:
        return float((buffer.sample_batch(20_000)[0]["x"] >= 100).mean())

    assert newest() == pytest.approx(0.5, abs=0.02), "all are hot"
    buffer.advance(3)
    assert newest() == pytest.approx(0.7, abs=0.02), "the first hundred became cold"


def test_the_strata_follow_the_configuration(opened: list[PrioritizedReplayBuffer]) -> None:
    def newest(**config: Any) -> float:
        """The share of the last 100 items among the draws; all items have one score."""
        return float((filled(opened, np.ones(1000), **config).sample_batch(20_000)[0]["x"] >= 900).mean())

    # Equal scores: a full hot stratum has given away its oldest, so that it holds the newest.
    assert newest(hot_buffer_size=100, cold_buffer_size=900) == pytest.approx(0.7, abs=0.02)
    assert newest(hot_buffer_size=100, cold_buffer_size=900, hot_ratio=0.4) == pytest.approx(0.4, abs=0.02)
    assert newest(age_threshold=99, age_unit="inserts") == pytest.approx(0.7, abs=0.02)
    assert newest() == pytest.approx(0.35, abs=0.02)


def test_beta_and_decay_have_an_effect(opened: list[PrioritizedReplayBuffer]) -> None:
    full, half = (filled(opened, np.arange(1.0, 1001), beta=beta).sample_batch(64)[1] for beta in (1.0, 0.5))
    np.testing.assert_allclose(np.sqrt(full), half)
    buffer = PrioritizedReplayBuffer(ReplayConfig(**SMALL, plan_decay=0.75))
    opened.append(buffer)
    for plan in (0.0, 8.0):
        buffer.add({"plan": np.array([plan]), "reward": 0.0})
    assert buffer.score.average is not None and buffer.score.average.tolist() == [2.0]


def test_items_age_in_versions(opened: list[PrioritizedReplayBuffer]) -> None:
    buffer = filled(opened, np.ones(10), max_replay_age=2)
    buffer.advance(2)
    buffer.add({"x": 77}, 1.0)
    assert len(buffer) == 11
    buffer.advance(3)
    assert len(buffer) == 1 and buffer.sample_batch(4)[0]["x"].tolist() == [77] * 4


def test_plans_and_rewards_make_the_scores(opened: list[PrioritizedReplayBuffer]) -> None:
    buffer = PrioritizedReplayBuffer(ReplayConfig(**SMALL, reward_weight=10.0))
    opened.append(buffer)
    buffer.add_batch({"plan": np.zeros((3, 2), np.float32), "reward": np.array([0.0, 1.0, -2.0])})
    assert buffer._filled().table.top(3)[1].tolist() == [20, 10, 0]


def test_a_saved_buffer_comes_back(opened: list[PrioritizedReplayBuffer], tmp_path: Path) -> None:
    buffer = PrioritizedReplayBuffer(ReplayConfig(**SMALL))
    opened.append(buffer)
    buffer.add_batch({"plan": np.random.default_rng(0).normal(size=(50, 3)), "reward": np.arange(50.0)})
    buffer.save(tmp_path)
    again = PrioritizedReplayBuffer.load(tmp_path)
    opened.append(again)
    for one, two in zip(buffer.sample_batch(32), again.sample_batch(32), strict=True):
        np.testing.assert_equal(one, two)
    np.testing.assert_equal(buffer.score.average, again.score.average)
    (tmp_path / "replay.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"replay\.json is not a saved replay buffer"):
        PrioritizedReplayBuffer.load(tmp_path)


def test_sizes_beyond_the_memory_are_cut_and_said(opened: list[PrioritizedReplayBuffer], caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        buffer = filled(opened, np.ones(5), max_bytes=168 * 500)
    assert buffer._filled().capacity == 500 and "capacity is now 500 (hot: 100)" in caplog.text
    with pytest.raises(ValueError, match="max_bytes=100 is too small"):
        filled(opened, [1.0], max_bytes=100)


def test_what_is_wrong_is_named() -> None:
    for name, value in {"hot_buffer_size": 0, "weighting": "best", "age_unit": "days", "temperature": 0.0, "beta": 2.0}.items():
        with pytest.raises(ValueError, match=name):
            ReplayConfig(**{name: value})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="is empty"):
        PrioritizedReplayBuffer().sample_batch(1)


def test_the_configuration_is_importable_from_core() -> None:
    from echo_rl import core

    assert core.ReplayConfig is ReplayConfig
