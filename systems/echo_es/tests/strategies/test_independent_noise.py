"""Each perturbation of a generation is its own, whatever the size of a table of noise."""

from __future__ import annotations

import logging
from collections.abc import Callable

import numpy as np
import pytest

from echo_core import ConfigError
from echo_es.noise import table_needed
from echo_es.strategies import CMAES, PGPE, OpenAIES, SepCMAES, Strategy, build

POPULATION = 64


def sizes(dims: int) -> list[int]:
    """Sizes of tables around those that are too small for `dims` parameters."""
    return [1, dims - 1, dims, dims + 2, dims * 2, dims * 10, table_needed(dims, POPULATION // 2) - 1, table_needed(dims, POPULATION // 2)]


@pytest.mark.parametrize("antithetic", [True, False])
def test_perturbations_differ_with_a_table_of_any_size(antithetic: bool) -> None:
    dims = 1000
    for size in sizes(dims):
        strategy = OpenAIES(dims, POPULATION, sigma=1.0, antithetic=antithetic, table_size=size)
        candidates = strategy.ask(strategy.init(np.zeros(dims, np.float32), seed=3), range(POPULATION))
        assert len(np.unique(candidates, axis=0)) == POPULATION, size


@pytest.mark.parametrize("kind", [PGPE, SepCMAES, CMAES])
def test_perturbations_of_other_strategies_differ(kind: Callable[[int, int], Strategy]) -> None:
    strategy = kind(50, POPULATION)
    state = strategy.init(np.zeros(50), seed=3)
    generations = [strategy.ask(state | {"generation": np.array(number)}, range(POPULATION)) for number in range(10)]
    assert len(np.unique(np.concatenate(generations), axis=0)) == 10 * POPULATION


def test_a_search_finds_its_goal_with_a_table_of_any_size() -> None:
    dims = 50
    goal = np.random.default_rng(0).normal(size=dims)
    for size in sizes(dims):
        strategy = OpenAIES(dims, 32, sigma=0.1, lr=0.05, table_size=size)
        state = strategy.init(np.zeros(dims), seed=0)
        for _ in range(150):
            state = strategy.tell(state, -((strategy.ask(state, range(32)) - goal) ** 2).sum(axis=1))
        assert ((strategy.theta(state) - goal) ** 2).sum() < 0.01 * (goal**2).sum(), size


def test_the_noise_of_many_parameters_is_drawn_from_seeds() -> None:
    assert OpenAIES(2_500_000, 16).noise == "table"
    large = OpenAIES(25_000_000 - 3, 16)
    assert large.noise == "seeds" and large.describe()["noise"] == "seeds"
    assert OpenAIES(100, 60_000).noise == "seeds"
    assert build(large.describe()).describe() == large.describe()
    with pytest.raises(ConfigError, match="draws its noise from seeds"):
        large.table  # noqa: B018


def test_a_table_that_is_too_small_is_refused_by_name() -> None:
    needed = table_needed(1000, 32)
    with pytest.raises(ConfigError, match=f"set table_size to at least {needed:,}, or use noise='seeds'"):
        OpenAIES(1000, 64, noise="table", table_size=needed - 1)
    assert OpenAIES(1000, 64, noise="table", table_size=needed).noise == "table"


@pytest.mark.parametrize(
    "make",
    [lambda: OpenAIES(3, 8, table_size=1), lambda: PGPE(3, 8), lambda: SepCMAES(3, 8), lambda: CMAES(3, 8)],
    ids=["OpenAIES", "PGPE", "SepCMAES", "CMAES"],
)
def test_equal_rewards_are_said_once(make: Callable[[], Strategy], caplog: pytest.LogCaptureFixture) -> None:
    strategy = make()
    state = strategy.init(np.zeros(3), 0)
    with caplog.at_level(logging.WARNING, "echo.es"):
        strategy.tell(strategy.tell(state, np.arange(8.0)), [*[1.0] * 7, 2.0])
        strategy.tell(state, np.full(8, np.nan))  # they move nothing
        assert not caplog.records
        for _ in range(5):
            state = strategy.tell(state, np.full(8, 2.5))
    (record,) = caplog.records
    assert f"all 8 rewards of a generation are equal (2.5): {type(strategy).__name__} learns nothing" in record.getMessage()


def test_equal_rewards_one_by_one_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    strategy = OpenAIES(3, 8, table_size=1)
    state = strategy.init(np.zeros(3), 0)
    with caplog.at_level(logging.WARNING, "echo.es"):
        for individual in range(32):
            state = strategy.tell_one(state, individual, 1.0)
    assert len(caplog.records) == 1
