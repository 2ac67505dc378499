"""Intervals and tests against values of scipy 1.17.1, or against a count by hand."""

from __future__ import annotations

import math

import pytest

from echo_rl.evaluation.statistics import bca_interval, holm, paired_permutation_test

ONE = [0.1, 0.5, 0.2, 3.1, 0.9, 1.4, 0.05, 0.3, 2.2, 0.7]
TWO = [0.0, 0.1, 0.4, 1.0, 1.1, 0.2, 0.3, 0.1, 0.6, 0.2]


def test_bca_is_scipys() -> None:
    # scipy.stats.bootstrap((ONE,), np.mean, method="BCa", n_resamples=200000) gives 0.48 to 1.73; percentiles alone would give 0.385 to 1.57.
    assert bca_interval(ONE, resamples=100_000) == pytest.approx((0.48, 1.73), abs=0.02)
    assert bca_interval([1.0] * 7 + [0.0] * 23, resamples=50_000) == pytest.approx((0.1, 0.4), abs=0.001)
    assert bca_interval(ONE) == bca_interval(ONE)


def test_bca_of_too_few_or_equal_values() -> None:
    assert bca_interval([1.0]) == (-math.inf, math.inf)
    assert bca_interval([0.1] * 9) == pytest.approx((0.1, 0.1))


def test_the_permutation_test_is_scipys() -> None:
    # scipy.stats.permutation_test(..., permutation_type="samples", n_resamples=inf)
    assert paired_permutation_test(ONE, TWO) == 0.06640625
    assert paired_permutation_test(TWO, ONE) == 0.06640625
    assert paired_permutation_test([1e-12 * x for x in ONE], [1e-12 * x for x in TWO]) == 0.06640625, "rewards may have any scale"
    assert paired_permutation_test([1.0, 1.0, 1.0], [0.0, 0.0, 0.0]) == 2 / 8
    assert paired_permutation_test([0.3, 0.1], [0.3, 0.1]) == 1.0
    # More than 14 pairs are drawn: the exact value of 15 equal differences is 2 / 2^15.
    assert paired_permutation_test([1.0] * 15, [0.0] * 15) == pytest.approx(2 / 2**15, abs=3e-4)
    assert paired_permutation_test(ONE * 2, TWO * 2) == pytest.approx(0.0055, abs=0.002)
    with pytest.raises(ValueError, match="as many values of both"):
        paired_permutation_test([1.0], [])


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0] and holm([]) == []
