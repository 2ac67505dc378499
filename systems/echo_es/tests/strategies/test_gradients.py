"""OpenAI-ES and PGPE: one step by hand, learning, and rewards that come one by one."""

from __future__ import annotations

import numpy as np
import pytest
from functions import ellipsoid, rosenbrock, sphere

from echo_es.noise import normals
from echo_es.shaping import centered_rank
from echo_es.strategies import CMAES, PGPE, OpenAIES, SepCMAES, State


def test_one_step_of_sgd_by_hand() -> None:
    strategy = OpenAIES(3, 4, sigma=0.5, lr=0.1, optimizer="sgd", noise="seeds", weight_decay=0.2)
    theta = np.array([1.0, -2.0, 0.5])
    state = strategy.init(theta, seed=11)
    noise = normals(11, 0, 0, 2, 3)
    assert strategy.ask(state, range(4)).tolist() == [row.tolist() for pair in noise for row in (theta + 0.5 * pair, theta - 0.5 * pair)]
    # The ranks of 4, 1, 3, 2 are 0.5, -0.5, 1/6, -1/6.
    gradient = ((0.5 + 0.5) * noise[0] + (1 / 6 + 1 / 6) * noise[1]) / (4 * 0.5)
    told = strategy.tell(state, [4.0, 1.0, 3.0, 2.0])
    np.testing.assert_allclose(told["theta"], theta + 0.1 * (0.1 * gradient) - 0.1 * 0.2 * theta, rtol=1e-12)
    again = strategy.tell({**told, "generation": np.array(0)}, [4.0, 1.0, 3.0, 2.0])
    np.testing.assert_allclose(again["momentum"], 0.9 * 0.1 * gradient + 0.1 * gradient, rtol=1e-12)


def test_the_first_step_of_adam_has_the_length_of_lr() -> None:
    strategy = OpenAIES(3, 4, lr=0.1, noise="seeds")
    told = strategy.tell(strategy.init(np.zeros(3), 1), [4.0, 1.0, 3.0, 2.0])
    np.testing.assert_allclose(np.abs(told["theta"]), 0.1, rtol=1e-3)


def test_one_step_of_pgpe_by_hand() -> None:
    strategy = PGPE(3, 4, sigma=0.5, lr=0.1, lr_sigma=0.3, optimizer="sgd", shaping="none", max_change=0.9)
    theta = np.array([1.0, -2.0, 0.5])
    noise = normals(11, 0, 0, 2, 3)
    told = strategy.tell(strategy.init(theta, seed=11), [4.0, 1.0, 3.0, 2.0])
    direction = ((4 - 1) * noise[0] + (3 - 2) * noise[1]) / 4 / 0.5
    np.testing.assert_allclose(told["theta"], theta + 0.1 * 0.1 * direction, rtol=1e-12)
    # Both pairs have the mean reward 2.5, so nothing says that longer steps are better.
    np.testing.assert_allclose(told["sigma"], [0.5] * 3)
    told = strategy.tell(strategy.init(theta, seed=11), [4.0, 2.0, 1.0, 1.0])
    change = 0.3 * (1.0 * (noise[0] ** 2 - 1) - 1.0 * (noise[1] ** 2 - 1)) / 2
    np.testing.assert_allclose(told["sigma"], 0.5 * (1 + np.clip(change, -0.9, 0.9)), rtol=1e-12)


def test_the_estimate_is_the_gradient() -> None:
    """Of a linear function, over many pairs: the mean of noise times reward is the slope."""
    slope = np.array([1.0, -2.0, 3.0, 0.0])
    strategy = OpenAIES(4, 40_000, sigma=0.1, lr=1.0, optimizer="sgd", shaping="none", table_size=100_000)
    state = strategy.init(np.zeros(4), 3)
    told = strategy.tell(state, strategy.ask(state, range(40_000)) @ slope)
    np.testing.assert_allclose(told["momentum"] / 0.1, slope, atol=0.06)


@pytest.mark.parametrize("noise", ["table", "seeds"])
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_openai_es_learns(noise: str, optimizer: str) -> None:
    strategy = OpenAIES(10, 40, sigma=0.1, lr=0.05 if optimizer == "adam" else 0.3, optimizer=optimizer, noise=noise, table_size=100_000)
    state = strategy.init(np.ones(10), 5)
    for _ in range(200):
        state = strategy.tell(state, -sphere(strategy.ask(state, range(40))))
    assert sphere(strategy.theta(state)) < 0.05


def test_pgpe_learns_and_narrows_its_search() -> None:
    strategy = PGPE(10, 40, sigma=0.3, lr=0.05)
    state = strategy.init(np.ones(10), 5)
    for _ in range(300):
        state = strategy.tell(state, -sphere(strategy.ask(state, range(40))))
    assert sphere(strategy.theta(state)) < 0.05
    assert (state["sigma"] < 0.1).all() and (state["sigma"] > 0).all()


def test_float32_stays_float32() -> None:
    for strategy in (OpenAIES(5, 10, table_size=1000), OpenAIES(5, 10, noise="seeds"), PGPE(5, 10)):
        state = strategy.init(np.ones(5, np.float32), 1)
        assert strategy.ask(state, range(10)).dtype == np.float32
        state = strategy.tell(state, np.arange(10.0))
        assert {state[name].dtype for name in state if state[name].shape == (5,)} == {np.dtype(np.float32)}


@pytest.mark.parametrize("antithetic", [True, False])
def test_rewards_one_by_one_make_the_step_of_a_generation(antithetic: bool) -> None:
    """In whatever order they come, the first `population` of them give what the generation would."""
    strategy = OpenAIES(6, 10, sigma=0.1, antithetic=antithetic, table_size=1000)
    state = first = strategy.init(np.ones(6), 7)
    values = -rosenbrock(strategy.ask(state, range(10)))
    for index in np.random.default_rng(2).permutation(10).tolist():
        assert state["theta"] is first["theta"]
        state = strategy.tell_one(state, index, float(values[index]))
    np.testing.assert_allclose(state["theta"], strategy.tell(first, values)["theta"], rtol=1e-12)


def test_it_learns_one_by_one_with_late_rewards() -> None:
    """Eight individuals are out at any time, and their rewards belong to older parameters when they come."""
    strategy = OpenAIES(6, 20, sigma=0.1, lr=0.05, table_size=10_000)
    state = strategy.init(np.ones(6), 7)
    out: list[tuple[int, float]] = []
    for index in range(6000):
        out.append((index, -float(sphere(strategy.ask(state, range(index, index + 1))[0]))))
        if len(out) == 8:
            state = strategy.tell_one(state, *out.pop(index % 8))
    assert sphere(strategy.theta(state)) < 0.05
    assert int(state["invalid"]) == 0


def test_one_by_one_with_what_is_no_number() -> None:
    strategy = OpenAIES(4, 4, table_size=1000)
    state = strategy.init(np.ones(4), 7)
    for index, reward in enumerate((1.0, float("nan"), float("inf"), 2.0)):
        state = strategy.tell_one(state, index, reward)
    assert int(state["invalid"]) == 2 and int(state["steps"]) == 1
    expected = strategy.tell(strategy.init(np.ones(4), 7), [1.0, float("nan"), float("nan"), 2.0])
    np.testing.assert_allclose(state["theta"], expected["theta"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [OpenAIES, PGPE])
def test_rewards_that_are_too_large(kind: type[OpenAIES] | type[PGPE], dtype: type) -> None:
    strategy = kind(4, 4, shaping="none", sigma=0.01, noise="seeds") if kind is OpenAIES else kind(4, 4, shaping="none", sigma=0.01)
    state = strategy.init(np.ones(4, dtype), 1)
    for rewards in ([1e308, -1e308, 1e308, -1e308], [1e308, 1e308, 1e308, 1e307], [1e200, 0.0, 0.0, 0.0]):
        with pytest.raises(ValueError, match=r"too large .* shaping='centered_rank'"):
            strategy.tell(state, rewards)
    shaped = kind(4, 4, shaping="z_score", noise="seeds") if kind is OpenAIES else kind(4, 4, shaping="z_score")
    told = shaped.tell(state, [1e308, -1e308, 1e308, -1e308])
    assert np.isfinite(shaped.theta(told)).all()


def test_a_search_without_an_end_stays_finite() -> None:
    for strategy in (SepCMAES(3, 10), CMAES(3, 10)):
        state = strategy.init(np.ones(3), 1)
        for _ in range(600):
            state = strategy.tell(state, strategy.ask(state, range(10))[:, 0])
        assert all(np.isfinite(value).all() for value in state.values())


def test_weights_of_many_pairs_are_those_of_one_sum() -> None:
    """More pairs than are looked up at once."""
    strategy = OpenAIES(5, 300, noise="seeds", optimizer="sgd", lr=1.0, sigma=1.0)
    state: State = strategy.init(np.zeros(5), 3)
    values = np.sin(np.arange(300.0))
    weights = centered_rank(values)
    expected = (weights[0::2] - weights[1::2]) @ normals(3, 0, 0, 150, 5) / 300
    np.testing.assert_allclose(strategy.tell(state, values)["momentum"], 0.1 * expected, rtol=1e-10)


def test_ellipsoid_is_for_cma() -> None:
    """Scales that differ a thousandfold are what SepCMAES is for."""
    strategy = SepCMAES(10, 20, sigma=0.5)
    state = strategy.init(np.ones(10), 5)
    for _ in range(300):
        state = strategy.tell(state, -ellipsoid(strategy.ask(state, range(20))))
    assert ellipsoid(strategy.theta(state)) < 1e-6
