"""Test functions of shape (n, dims) -> (n,), to be minimised; the best value is 0."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from echo_es.strategies import Strategy


def sphere(x: np.ndarray) -> np.ndarray:
    return (x**2).sum(axis=-1)


def ellipsoid(x: np.ndarray) -> np.ndarray:
    """The axes' scales range over six powers of ten."""
    return (10.0 ** np.linspace(0, 6, x.shape[-1]) * x**2).sum(axis=-1)


def rosenbrock(x: np.ndarray) -> np.ndarray:
    return (100 * (x[..., 1:] - x[..., :-1] ** 2) ** 2 + (1 - x[..., :-1]) ** 2).sum(axis=-1)


def generations(strategy: Strategy, function: Callable[[np.ndarray], np.ndarray], start: float, seed: int, target: float = 1e-8, limit: int = 5000) -> int:
    """How many generations until a candidate is below `target`."""
    state = strategy.init(np.full(strategy.dims, start), seed)
    for generation in range(1, limit + 1):
        values = function(strategy.ask(state, range(strategy.population)))
        if values.min() < target:
            return generation
        state = strategy.tell(state, -values)
    return limit
