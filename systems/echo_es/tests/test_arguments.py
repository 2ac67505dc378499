"""Arguments without a meaning are refused by their name, and never rounded or read as something else."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from echo_core import ConfigError
from echo_es import CMAES, PGPE, ESServer, Experiment, OpenAIES, SepCMAES, SharedObservations, Worker, run_worker
from echo_es.arguments import number, real_rewards, seed_of, whole
from echo_es.log import EpochLog, read_log
from echo_es.noise import NoiseTable

NOT_WHOLE = [1.5, 2.0, "4", 2**64, -1, True, None, float("nan"), 3 + 0j, [4], np.float64(4)]
NOT_REAL = ["4", None, True, float("nan"), float("inf"), 1j, [1.0]]


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
@pytest.mark.parametrize("kind", [OpenAIES, PGPE, SepCMAES, CMAES])
def test_sizes_of_strategies(kind: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ConfigError, match="^dims must be a whole number from 1 to"):
        kind(value, 8)
    with pytest.raises(ConfigError, match="^population must be a whole number from 2 to"):
        kind(3, value)


@pytest.mark.parametrize("value", [*NOT_REAL, 0, -0.5], ids=repr)
@pytest.mark.parametrize("kind", [OpenAIES, PGPE, SepCMAES, CMAES])
def test_sigma(kind: Callable[..., Any], value: Any) -> None:
    with pytest.raises(ConfigError, match="^sigma must be a finite number above 0, not"):
        kind(3, 8, sigma=value)


@pytest.mark.parametrize("value", [1.5, "4", None, True], ids=repr)
def test_seeds(value: Any) -> None:
    with pytest.raises(ConfigError, match="^seed must be a whole number, not"):
        SepCMAES(3, 8).init(np.zeros(3), value)


def test_a_seed_may_be_any_integer() -> None:
    for seed in (0, -1, 2**64, np.int32(5)):
        SepCMAES(3, 8).init(np.zeros(3), seed)


@pytest.mark.parametrize("value", [1.5, "4", 2**64, -1, 0], ids=repr)
def test_sizes_of_tables(value: Any) -> None:
    with pytest.raises(ConfigError, match="^table_size must be a whole number"):
        OpenAIES(3, 8, table_size=value)
    with pytest.raises(ConfigError, match="^size of a noise table must be a whole number"):
        NoiseTable(0, value)


@pytest.mark.parametrize(
    ("theta", "what"),
    [([1j, 0, 0], "real numbers, not complex128"), (["1", "2", "3"], "real numbers, not <U1"), ([None, 1.0, 2.0], "real numbers, not object")],
)
def test_parameters_that_are_no_numbers(theta: Any, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        SepCMAES(3, 8).init(theta, 0)


@pytest.mark.parametrize("value", NOT_WHOLE, ids=repr)
def test_sizes_of_searches_and_workers(value: Any) -> None:
    with pytest.raises(ConfigError, match="^population must be a whole number from 1 to"):
        Experiment(value)
    with pytest.raises(ConfigError, match="^population must be a whole number from 1 to"):
        ESServer(value)
    for name in ("max_epochs", "max_slices"):
        with pytest.raises(ConfigError, match=f"^{name} must be a whole number from 0 to"):
            Experiment(8, **{name: value})
    with pytest.raises(ConfigError, match="^cores must be a whole number from 1 to"):
        run_worker("tcp://127.0.0.1:9", lambda thetas, epoch: [], cores=value)
    with pytest.raises(ConfigError, match="^cores must be a whole number from 1 to"):
        type("Some", (Worker,), dict.fromkeys(("initialize", "evaluate", "optimize")))("tcp://127.0.0.1:9", value)
    with pytest.raises(ConfigError, match="^episodes must be a whole number from 1 to"):
        Experiment(8).test({}, episodes=value)


@pytest.mark.parametrize("value", ["4", -1, float("nan"), 1j, True], ids=repr)
def test_seconds_and_factors(value: Any) -> None:
    for name in ("grace", "task_timeout", "straggle", "straggle_floor"):
        with pytest.raises(ConfigError, match=f"^{name} must be a number"):
            Experiment(8, **{name: value})
    with pytest.raises(ConfigError, match="^reconnect must be a finite number of at least 0"):
        run_worker("tcp://127.0.0.1:9", lambda thetas, epoch: [], reconnect=value)


@pytest.mark.parametrize("value", [3, "3", (1.5,), ("4",), (2**64,), (-1,), (0,)], ids=repr)
def test_shapes_of_observations(value: Any) -> None:
    with pytest.raises(ConfigError, match="^observations"):
        Experiment(8, observations=value)
    with pytest.raises(ConfigError, match="^shape"):
        SharedObservations(value)


@pytest.mark.parametrize("value", [5, True, 1.5, "", b"search.log", "a\0b", ["search.log"]], ids=repr)
def test_paths(value: Any) -> None:
    for kind in (Experiment, ESServer):
        with pytest.raises(ConfigError, match="^log must be the path of a file, not"):
            kind(8, log=value)
    with pytest.raises(ConfigError, match="^path must be the path of a file, not"):
        EpochLog(value, {})
    with pytest.raises(ConfigError, match="^path must be the path of a file, not"):
        read_log(value)


@pytest.mark.parametrize("value", [5, "SepCMAES", SepCMAES], ids=repr)
def test_strategies(value: Any) -> None:
    with pytest.raises(ConfigError, match="^strategy must be a strategy, such as"):
        Experiment(strategy=value)


@pytest.mark.parametrize("value", [None, "evaluate", 5])
def test_a_function_that_is_none(value: Any) -> None:
    with pytest.raises(ConfigError, match="^evaluate must be a function"):
        run_worker("tcp://127.0.0.1:9", value)


WRONG_REWARDS = [
    ([1j] * 8, "complex numbers"),
    (["1"] * 8, "strings"),
    ([b"1"] * 8, "bytes"),
    ([None] * 8, "objects of the type NoneType"),
    ([Fraction(1, 2)] * 8, "objects of the type Fraction"),
    ([2**70] * 8, "integers of more than 64 bits"),
    ([np.datetime64("2020-01-01")] * 8, "datetime64"),
    ([[1.0]] * 7 + [[1.0, 2.0]], "different lengths"),
]


@pytest.mark.parametrize(("rewards", "what"), WRONG_REWARDS, ids=[what for _, what in WRONG_REWARDS])
def test_rewards_that_are_no_real_numbers(rewards: Any, what: str) -> None:
    for strategy in (OpenAIES(3, 8, table_size=1), PGPE(3, 8), SepCMAES(3, 8), CMAES(3, 8)):
        with pytest.raises(ValueError, match=f"^rewards: .*{what}"):
            strategy.tell(strategy.init(np.zeros(3), 0), rewards)
    strategy = OpenAIES(3, 8, table_size=1)
    with pytest.raises(ValueError, match="^rewards: "):
        strategy.tell_one(strategy.init(np.zeros(3), 0), 0, rewards[0] if what != "different lengths" else [1.0, 2.0])


def test_rewards_that_are_real_numbers() -> None:
    arrays = [np.array([1, 2], np.int8), np.array([1, 2], np.float32), np.array([1, 2.5], object)]
    for rewards in ([1, 2.5], (True, False), *arrays, [np.float32(1), 2], [], [float("nan"), float("inf")]):
        converted = real_rewards(rewards)
        assert converted.dtype == np.float64 and np.array_equal(converted, np.array(rewards, np.float64), equal_nan=True)


def test_whole_numbers_and_numbers() -> None:
    assert whole("n", np.uint8(4), 1) == 4 and type(whole("n", np.uint8(4), 1)) is int
    assert seed_of(np.int64(-3)) == -3
    assert number("x", np.float32(0.5)) == 0.5 and type(number("x", 3)) is float
    assert number("x", float("inf"), least=0, finite=False) == float("inf")
    with pytest.raises(ConfigError, match="^x must be a number of at least 0, not -1"):
        number("x", -1, least=0, finite=False)
