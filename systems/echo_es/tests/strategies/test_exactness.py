"""What holds for every strategy: ranges, copies of the state, and rewards that are no numbers change nothing they must not change."""

from __future__ import annotations

import io
from collections.abc import Callable

import numpy as np
import pytest

from echo_core import ConfigError
from echo_es.noise import NoiseTable
from echo_es.strategies import CMAES, PGPE, OpenAIES, SepCMAES, State, Strategy, Whole, build

DIMS, POPULATION = 7, 40

MADE: dict[str, Callable[[], Strategy]] = {
    "openai table": lambda: OpenAIES(DIMS, POPULATION, sigma=0.1, noise="table", table_size=30_000),
    "openai seeds": lambda: OpenAIES(DIMS, POPULATION, sigma=0.1, noise="seeds"),
    "openai single": lambda: OpenAIES(DIMS, POPULATION, sigma=0.1, antithetic=False, optimizer="sgd", shaping="z_score", noise="table", table_size=50_000),
    "pgpe": lambda: PGPE(DIMS, POPULATION),
    "sep": lambda: SepCMAES(DIMS, POPULATION),
    "cma": lambda: CMAES(DIMS, POPULATION),
}


@pytest.fixture(params=list(MADE))
def strategy(request: pytest.FixtureRequest) -> Strategy:
    return MADE[request.param]()


def fresh(strategy: Strategy) -> Strategy:
    """The same strategy as another process would have it: nothing of what this one keeps."""
    return build(strategy.describe())


def rewards(candidates: np.ndarray) -> np.ndarray:
    return -((candidates - 0.3) ** 2).sum(axis=1)


def advanced(strategy: Strategy, generations: int, dtype: type = np.float64) -> State:
    state = strategy.init(np.linspace(-1, 1, DIMS).astype(dtype), seed=2**63 + 5)
    for _ in range(generations):
        state = strategy.tell(state, rewards(strategy.ask(state, range(POPULATION))))
    return state


def assert_same(first: State, second: State) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype and value.shape == second[name].shape, name
        assert value.tobytes() == second[name].tobytes(), name


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_ranges_are_those_of_the_whole(strategy: Strategy, dtype: type) -> None:
    state = advanced(strategy, 3, dtype)
    whole = strategy.ask(state, range(POPULATION))
    assert whole.shape == (POPULATION, DIMS)
    for first, last in ((0, 1), (0, 13), (13, 14), (14, 33), (33, 40), (5, 5), (39, 40)):
        part = fresh(strategy).ask(state, range(first, last))
        assert part.tobytes() == whole[first:last].tobytes(), (first, last)
        assert fresh(strategy).ask(state, slice(first, last)).tobytes() == part.tobytes()


def test_a_worker_draws_what_the_server_means(strategy: Strategy) -> None:
    state = advanced(strategy, 2)
    params = {name: np.array(value) for name, value in strategy.params(state).items()}
    worker = fresh(strategy)
    assert worker.theta(params).tobytes() == strategy.theta(state).tobytes()
    assert worker.draw(params, range(10, 20)).tobytes() == strategy.ask(state, range(10, 20)).tobytes()
    assert worker.noise_digest() == strategy.noise_digest()


def test_a_saved_state_goes_on_bit_by_bit(strategy: Strategy) -> None:
    state = advanced(strategy, 4)
    file = io.BytesIO()
    np.savez(file, **state)
    file.seek(0)
    with np.load(file, allow_pickle=False) as archive:
        loaded = dict(archive)
    assert_same(state, loaded)
    other = fresh(strategy)
    for _ in range(4):
        values = rewards(strategy.ask(state, range(POPULATION)))
        state = strategy.tell(state, values)
        loaded = other.tell(loaded, values)
        assert_same(state, loaded)


def test_told_without_asking_is_the_same(strategy: Strategy) -> None:
    state = advanced(strategy, 2)
    values = rewards(strategy.ask(state, range(POPULATION)))
    assert_same(fresh(strategy).tell(state, values), strategy.tell(state, values))


def test_telling_changes_no_older_state(strategy: Strategy) -> None:
    state = advanced(strategy, 2)
    before = {name: value.copy() for name, value in state.items()}
    strategy.tell(state, rewards(strategy.ask(state, range(POPULATION))))
    assert_same(state, before)


def test_candidates_can_be_overwritten(strategy: Strategy) -> None:
    state = advanced(strategy, 1)
    kept = strategy.ask(state, range(POPULATION)).copy()
    strategy.ask(state, range(POPULATION))[:] = 0
    assert strategy.ask(state, range(POPULATION)).tobytes() == kept.tobytes()


def test_what_is_no_number_counts_as_worst(strategy: Strategy) -> None:
    state = advanced(strategy, 2)
    values = rewards(strategy.ask(state, range(POPULATION)))
    worst = values.copy()
    values[[3, 8, 20]] = np.nan, np.inf, -np.inf
    worst[[3, 8, 20]] = worst.min() - 1
    told = strategy.tell(state, values)
    assert int(told["invalid"]) == 3 and int(told["generation"]) == 3
    assert all(np.isfinite(value).all() for value in told.values())
    if "shaping" not in strategy.describe() or strategy.describe()["shaping"] == "centered_rank":
        expected = strategy.tell(state, worst)
        assert_same({**told, "invalid": expected["invalid"]}, expected)


def test_a_generation_without_numbers_moves_nothing(strategy: Strategy) -> None:
    state = advanced(strategy, 0)
    told = strategy.tell(state, np.full(POPULATION, np.nan))
    assert int(told["invalid"]) == POPULATION
    np.testing.assert_array_equal(strategy.theta(told), strategy.theta(state))
    assert strategy.ask(told, range(2)).tobytes() != strategy.ask(state, range(2)).tobytes()  # it tries others next


def test_seeds_and_generations_draw_differently(strategy: Strategy) -> None:
    theta = np.zeros(DIMS)
    first, second = strategy.init(theta, 1), strategy.init(theta, 2)
    assert (strategy.ask(first, range(4)) != strategy.ask(second, range(4))).any(axis=1).all()
    assert (strategy.ask(first, range(4)) != strategy.ask({**first, "generation": np.array(1)}, range(4))).any(axis=1).all()


@pytest.mark.parametrize("name", ["openai table", "openai seeds", "pgpe"])
def test_pairs_are_antithetic(name: str) -> None:
    strategy = MADE[name]()
    state = advanced(strategy, 3)
    candidates = strategy.ask(state, range(POPULATION)) - strategy.theta(state)
    np.testing.assert_allclose(candidates[0::2], -candidates[1::2], atol=1e-12)


def test_table_noise_is_the_one_that_the_table_has() -> None:
    strategy = OpenAIES(DIMS, POPULATION, sigma=0.5, table_seed=9, table_size=30_000)
    state = advanced(strategy, 2)
    table = NoiseTable(9, 30_000)
    for pair in (0, 7, 19):
        (offset,) = table.offsets(DIMS, int(state["seed"]), int(state["generation"]), pair, 1)
        expected = state["theta"] + np.float64(0.5) * table.values[offset : offset + DIMS].astype(np.float64)
        np.testing.assert_array_equal(strategy.ask(state, range(2 * pair, 2 * pair + 1))[0], expected)
    assert strategy.noise_digest() == table.digest


def test_a_worker_takes_the_table_of_the_server() -> None:
    """As if numpy made another table in the worker."""
    server = OpenAIES(DIMS, POPULATION, table_seed=9, table_size=30_000)
    worker = fresh(server)
    assert isinstance(worker, OpenAIES)
    worker.table = NoiseTable(1, 30_000)
    state = advanced(server, 1)
    assert worker.noise_digest() != server.noise_digest()
    assert worker.ask(state, range(2)).tobytes() != server.ask(state, range(2)).tobytes()
    worker.table = NoiseTable(9, 30_000, values=np.array(server.table.values))
    assert worker.noise_digest() == server.noise_digest()
    assert worker.ask(state, range(2)).tobytes() == server.ask(state, range(2)).tobytes()
    with pytest.raises(ConfigError, match="30000 numbers, not 20"):
        worker.table = NoiseTable(1, 20)


def test_refusals_name_what_is_wrong(strategy: Strategy) -> None:
    state = advanced(strategy, 0)
    with pytest.raises(ValueError, match=r"theta: its shape must be \(7,\), not \(8,\)"):
        strategy.init(np.zeros(8), 0)
    with pytest.raises(ValueError, match="finite"):
        strategy.init(np.full(DIMS, np.nan), 0)
    with pytest.raises(ValueError, match="there must be 40"):
        strategy.tell(state, np.zeros(39))
    for wrong in (range(0, 10, 2), range(-1, 3), range(5, 4)):
        with pytest.raises(ValueError, match="individuals"):
            strategy.ask(state, wrong)
    if not strategy.steady:
        with pytest.raises(ValueError, match="population of 40"):
            strategy.ask(state, range(30, 41))
        with pytest.raises(ConfigError, match=f"{type(strategy).__name__} cannot take one reward at a time"):
            strategy.tell_one(state, 0, 1.0)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: OpenAIES(0, 10), "dims"),
        (lambda: SepCMAES(3, 1), "population"),
        (lambda: OpenAIES(3, 11), "even number, not 11"),
        (lambda: PGPE(3, 11), "even number, not 11"),
        (lambda: OpenAIES(3, 10, sigma=0), "sigma"),
        (lambda: SepCMAES(3, 10, sigma=float("nan")), "sigma"),
        (lambda: OpenAIES(3, 10, optimizer="lion"), "adam, sgd"),
        (lambda: OpenAIES(3, 10, shaping="lion"), "centered_rank"),
        (lambda: OpenAIES(3, 10, noise="lion"), "'auto', 'table' or 'seeds'"),
        (lambda: OpenAIES(300, 10, noise="table", table_size=200), "table_size to at least 5,299"),
        (lambda: build({"strategy": "lion", "dims": 3, "population": 10}), "CMAES, OpenAIES, PGPE, SepCMAES$"),
        (lambda: build({"strategy": "CMAES", "dims": 3, "population": 10, "claws": 4}), "CMAES: .*claws"),
    ],
)
def test_options_without_a_meaning(make: Callable[[], Strategy], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        make()


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("population", [2, 3, 4, 7])
@pytest.mark.parametrize("kind", [OpenAIES, PGPE, SepCMAES, CMAES])
def test_the_smallest_searches(kind: type[Strategy], dims: int, population: int) -> None:
    if population % 2 and kind in (OpenAIES, PGPE):
        return
    strategy = OpenAIES(dims, population, table_size=100) if kind is OpenAIES else kind(dims, population)
    state = strategy.init(np.ones(dims), 1)
    for _ in range(50):
        state = strategy.tell(state, -(strategy.ask(state, range(population)) ** 2).sum(axis=1))
    assert all(np.isfinite(value).all() for value in state.values())
    assert (strategy.theta(state) ** 2).sum() < dims


def test_whole_takes_rows() -> None:
    whole = build({"strategy": "Whole", "dims": 2, "population": 3})
    assert isinstance(whole, Whole)
    candidates = np.arange(6.0).reshape(3, 2)
    assert whole.theta({"candidates": candidates, "theta": candidates[0]}).tolist() == [0, 1]
    assert whole.draw({"candidates": candidates}, range(1, 3)).tolist() == [[2, 3], [4, 5]]
    with pytest.raises(ConfigError, match="rows of candidates"):
        whole.init(np.zeros(2), 0)
