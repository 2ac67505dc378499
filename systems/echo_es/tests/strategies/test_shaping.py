"""Shaped rewards, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echo_core import ConfigError
from echo_es.shaping import centered_rank, clean, raw, shaping_by_name, z_score

INF = float("inf")


def test_centred_ranks() -> None:
    assert centered_rank(np.array([3.0, -1.0, 10.0, 4.0, 5.0])).tolist() == [-0.25, -0.5, 0.5, 0.0, 0.25]


def test_equal_rewards_have_equal_ranks() -> None:
    assert centered_rank(np.array([2.0, 1.0, 2.0])).tolist() == [0.25, -0.5, 0.25]
    assert centered_rank(np.array([500.0, 500.0])).tolist() == [0.0, 0.0]
    assert centered_rank(np.array([1.0])).tolist() == [0.0]


def test_z_score() -> None:
    assert z_score(np.array([1.0, 3.0, 5.0, 7.0])) == pytest.approx(np.array([-3, -1, 1, 3]) / 5**0.5)
    assert z_score(np.full(7, 0.1)).tolist() == [0.0] * 7


def test_what_is_no_number_is_the_worst() -> None:
    rewards, bad = clean([1.0, float("nan"), -5.0, INF, -INF], 5)
    assert bad == 3
    assert rewards.tolist() == [1.0, -INF, -5.0, -INF, -INF]
    assert centered_rank(rewards).tolist() == [0.5, -0.25, 0.25, -0.25, -0.25]
    assert raw(rewards).tolist() == [1.0, -5.0, -5.0, -5.0, -5.0]
    assert np.isfinite(z_score(rewards)).all()


def test_no_numbers_at_all() -> None:
    rewards, bad = clean([float("nan")] * 4, 4)
    assert bad == 4
    for shape in (centered_rank, z_score, raw):
        assert shape(rewards).tolist() == [0.0] * 4


def test_the_given_rewards_do_not_change() -> None:
    given_rewards = np.array([1.0, float("nan")])
    clean(given_rewards, 2)
    assert np.isnan(given_rewards[1])


def test_a_wrong_number_of_rewards() -> None:
    with pytest.raises(ValueError, match=r"there must be 3.*\(2,\)"):
        clean([1.0, 2.0], 3)
    with pytest.raises(ValueError, match="there must be 2"):
        clean([[1.0, 2.0]], 2)


def test_an_unknown_name() -> None:
    with pytest.raises(ConfigError, match="centered_rank, z_score, none"):
        shaping_by_name("ranks")


@given(st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30))
def test_ranks_do_not_depend_on_order_and_sum_to_zero(rewards: list[float]) -> None:
    values = np.array(rewards)
    ranks = centered_rank(values)
    turn = np.random.default_rng(1).permutation(len(values))
    np.testing.assert_allclose(centered_rank(values[turn]), ranks[turn])
    assert ranks.sum() == pytest.approx(0, abs=1e-9)
    order = np.argsort(values, kind="stable")
    assert (np.diff(ranks[order]) >= 0).all()
