"""CMA-ES and sep-CMA-ES against the packages `cmaes` and `cma`: the same numbers from the same candidates, and the same speed of convergence."""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from functions import ellipsoid, generations, rosenbrock, sphere

from echo_es.strategies import CMAES, SepCMAES

cmaes = pytest.importorskip("cmaes")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it misses matplotlib
    cma = pytest.importorskip("cma")


def told_alike(strategy: Any, reference: Any, steps: int) -> tuple[dict[str, np.ndarray], Any]:
    """Both are told the same candidates with the same values, `steps` times."""
    start = np.linspace(-1, 1, strategy.dims)
    state = strategy.init(start, seed=4)
    other = reference(mean=start.copy(), sigma=strategy.sigma, population_size=strategy.population, seed=1)
    for _ in range(steps):
        candidates = strategy.ask(state, range(strategy.population))
        values = rosenbrock(candidates)
        state = strategy.tell(state, -values)
        other.tell(list(zip(candidates, values.tolist())))
    return state, other


@pytest.mark.parametrize(("dims", "population"), [(2, 6), (5, 9), (20, 12), (30, 100)])
@pytest.mark.parametrize("steps", [1, 2, 25])
def test_sep_cma_has_the_numbers_of_cmaes(dims: int, population: int, steps: int) -> None:
    state, other = told_alike(SepCMAES(dims, population, sigma=0.4), cmaes.SepCMA, steps)
    np.testing.assert_allclose(state["mean"], other._mean, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(state["sigma"], other._sigma, rtol=1e-9)
    np.testing.assert_allclose(state["variances"], other._C, rtol=1e-8)
    np.testing.assert_allclose(state["path_c"], other._pc, rtol=1e-7, atol=1e-10)
    np.testing.assert_allclose(state["path_sigma"], other._p_sigma, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(("dims", "population"), [(2, 6), (5, 9), (20, 12), (10, 60)])
@pytest.mark.parametrize("steps", [1, 2, 25])
def test_cma_has_the_numbers_of_cmaes(dims: int, population: int, steps: int) -> None:
    strategy = CMAES(dims, population, sigma=0.4)
    assert strategy._pause == 1  # cmaes decomposes the covariance every time
    state, other = told_alike(strategy, cmaes.CMA, steps)
    np.testing.assert_allclose(state["mean"], other._mean, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(state["sigma"], other._sigma, rtol=1e-6)
    np.testing.assert_allclose(state["covariance"], other._C, rtol=1e-5, atol=1e-7)


def test_the_first_mean_is_that_of_pycma() -> None:
    strategy = CMAES(12, 14, sigma=0.3)
    state = strategy.init(np.ones(12), seed=2)
    candidates = strategy.ask(state, range(14))
    values = ellipsoid(candidates)
    other = cma.CMAEvolutionStrategy(np.ones(12), 0.3, {"popsize": 14, "verbose": -9, "seed": 1})
    other.ask()  # it wants to be asked first, and takes candidates of other origin
    other.tell(list(candidates), values.tolist())
    np.testing.assert_allclose(strategy.tell(state, -values)["mean"], other.mean, rtol=1e-9)


@pytest.mark.parametrize("function", [sphere, ellipsoid])
def test_sep_cma_converges_as_cmaes_does(function: Callable[[np.ndarray], np.ndarray]) -> None:
    ours = [generations(SepCMAES(10, 10, sigma=0.5), function, 1.0, seed) for seed in range(20)]
    theirs = [_generations(cmaes.SepCMA, function, seed) for seed in range(20)]
    assert statistics.median(ours) == pytest.approx(statistics.median(theirs), rel=0.1)


def test_cma_converges_as_cmaes_does() -> None:
    ours = [generations(CMAES(6, 10, sigma=0.5), ellipsoid, 1.0, seed) for seed in range(20)]
    theirs = [_generations(cmaes.CMA, ellipsoid, seed, dims=6) for seed in range(20)]
    assert statistics.median(ours) == pytest.approx(statistics.median(theirs), rel=0.1)


def test_a_pause_between_decompositions_costs_no_generations() -> None:
    """With many parameters the covariance changes so slowly that its decomposition may be older."""
    strategy = CMAES(40, 12, sigma=0.5)
    paused = [generations(strategy, sphere, 1.0, seed) for seed in range(5)]
    assert CMAES(200, 10)._pause > 1
    strategy._pause = 4
    assert statistics.median(generations(strategy, sphere, 1.0, seed) for seed in range(5)) == pytest.approx(statistics.median(paused), rel=0.1)


def _generations(reference: Any, function: Callable[[np.ndarray], np.ndarray], seed: int, dims: int = 10, limit: int = 5000) -> int:
    strategy = reference(mean=np.ones(dims), sigma=0.5, population_size=10, seed=seed)
    for generation in range(1, limit + 1):
        candidates = [strategy.ask() for _ in range(10)]
        values = function(np.array(candidates)).tolist()
        if min(values) < 1e-8:
            return generation
        strategy.tell(list(zip(candidates, values)))
    return limit
