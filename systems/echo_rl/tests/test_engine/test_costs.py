"""The measured cost of a model."""

import dataclasses

import pytest

from echo_rl.core.bandwidth import CalibratedCost
from echo_rl.engine import Model, ModelConfig, measure
from echo_rl.kernels import effective_bandwidth_cost


def test_a_measured_cost_is_less_with_a_cached_prefix(configs: dict[str, ModelConfig]) -> None:
    """No coefficient is negative, and computing less costs less."""
    cost = measure(Model.random(configs["llama"]), seconds=0.1)
    assert min(cost.c0, cost.c1, cost.c2) >= 0
    assert cost(200, 100) < cost(200, 0) < cost(250, 0)


def test_a_context_that_is_too_short_is_named(configs: dict[str, ModelConfig]) -> None:
    """The error says how long it must be."""
    with pytest.raises(ValueError, match="context=4 is too short to measure a cost; it must be at least 8"):
        measure(Model.random(dataclasses.replace(configs["gpt2"], context=4)))


def test_the_quadratic_cost_is_a_calibrated_one() -> None:
    """b(t) - b(t') with b(t) = s t (t + 1) / 2 has the coefficients (0, s/2, s/2)."""
    for scale, length, reused in ((1.0, 128, 96), (0.3, 7, 0), (2.0, 5, 5)):
        assert CalibratedCost(0, scale / 2, scale / 2)(length, reused) == pytest.approx(effective_bandwidth_cost(length, reused, scale))
