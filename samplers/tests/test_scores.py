"""Tests the results of the scorers, and that invalid values do not reach a sampler through them."""

from __future__ import annotations

import numpy as np
import pytest

from echo_samplers.scores import TrajectoryScore, effective_sample_size, plain_priority, td_error


def test_a_trajectory_scores_by_its_distance_from_the_average_and_its_reward() -> None:
    score = TrajectoryScore(alpha=0.5, decay=0.9)
    first = np.array([[[0.0, 0.0]], [[2.0, 4.0]]])
    np.testing.assert_allclose(score(first, [1.0, -3.0]), [1 + 4 + 0.5, 1 + 4 + 1.5])
    np.testing.assert_allclose(score.average, [1.0, 2.0])  # the first mean is copied; it does not start from zero
    np.testing.assert_allclose(score(np.array([[11.0, 2.0]]), [0.0]), [81.0])
    np.testing.assert_allclose(score.average, [2.0, 2.0])
    np.testing.assert_allclose(score(np.array([[2.0, 2.0]]), [[1.0, -1.0]], update=False), [1.0])
    np.testing.assert_allclose(score.average, [2.0, 2.0])


def test_what_is_not_finite_is_refused_and_moves_nothing() -> None:
    score = TrajectoryScore()
    score(np.zeros((2, 3)), np.zeros(2))
    for bad in (np.array([[0, 0, 0], [0, np.nan, 0]]), np.array([[0, 0, 0], [0, np.inf, 0]])):
        with pytest.raises(ValueError, match="of the batch must be finite"):
            score(bad, np.zeros(2))
        np.testing.assert_array_equal(score.average, np.zeros(3))
    with pytest.raises(ValueError, match="have 4 numbers, but earlier ones had 3"):
        score(np.zeros((2, 4)), np.zeros(2))
    with pytest.raises(ValueError, match="2 trajectories need 2 rewards"):
        score(np.zeros((2, 3)), np.zeros(3))
    with pytest.raises(ValueError, match="at least one"):
        score(np.zeros((0, 3)), np.zeros(0))


def test_the_average_survives_a_checkpoint() -> None:
    score, again = TrajectoryScore(), TrajectoryScore()
    assert score.state() == {}
    again.restore(score.state())
    score(np.ones((2, 3)), np.zeros(2))
    again.restore(score.state())
    batch = np.arange(6.0).reshape(2, 3)
    np.testing.assert_array_equal(score(batch, np.ones(2)), again(batch, np.ones(2)))
    with pytest.raises(ValueError, match="'mean'"):
        again.restore({"mean": np.zeros(3)})


def test_td_errors_of_steps_and_of_sequences() -> None:
    np.testing.assert_allclose(td_error([-2.0, 0.5]), [2.0, 0.5])
    np.testing.assert_allclose(td_error([[-2.0], [0.5]]), [2.0, 0.5])
    np.testing.assert_allclose(td_error([[-2.0, 0.0], [1.0, 1.0]]), [0.9 * 2 + 0.1 * 1, 1.0])
    with pytest.raises(ValueError, match="TD error nan of sample 1"):
        td_error([1.0, np.nan])


def test_plain_priorities_are_checked() -> None:
    np.testing.assert_array_equal(plain_priority(np.array([[1], [2]])), [1.0, 2.0])
    with pytest.raises(ValueError, match=r"priority -1.0 of sample 0"):
        plain_priority([-1.0])
    with pytest.raises(ValueError, match=r"shape \(n,\), not \(2, 2\)"):
        plain_priority(np.ones((2, 2)))


def test_effective_sample_size() -> None:
    assert effective_sample_size(np.full(50, 0.02)) == pytest.approx(50)
    assert effective_sample_size([1.0, 0, 0, 0]) == 1
    assert effective_sample_size([1e-200, 1e-200]) == pytest.approx(2)
    for bad in ([], [0.0], [-1.0, 2.0], [np.nan], [np.inf]):
        with pytest.raises(ValueError, match="at least one of them positive"):
            effective_sample_size(bad)
