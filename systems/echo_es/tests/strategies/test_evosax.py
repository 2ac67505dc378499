"""Strategies of evosax."""

from __future__ import annotations

import numpy as np
import pytest
from functions import sphere

from echo_core import ConfigError
from echo_es.strategies import Evosax, build

pytest.importorskip("evosax", reason="evosax is not installed")


@pytest.mark.parametrize("name", ["SNES", "CMA_ES", "PGPE"])
def test_it_learns_and_goes_on_from_its_arrays(name: str) -> None:
    strategy = Evosax(name, 6, 20, params={"std_init": 0.3})
    worker = build(strategy.describe())
    state = strategy.init(np.ones(6), 5)
    for _ in range(60):
        candidates = worker.draw(strategy.params(state), range(20))
        assert candidates.shape == (20, 6)
        assert worker.theta(strategy.params(state)).tobytes() == strategy.theta(state).tobytes()
        state = strategy.tell(state, -sphere(candidates))
    assert sphere(strategy.theta(state)) < 2
    assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
    other = Evosax(name, 6, 20, params={"std_init": 0.3})
    values = -sphere(strategy.ask(state, range(20)))
    values[3] = np.nan
    first, second = strategy.tell(state, values), other.tell(state, values)
    assert int(first["invalid"]) == 1 and int(first["generation"]) == 61
    for key in first:
        assert first[key].tobytes() == second[key].tobytes(), key


def test_refusals() -> None:
    with pytest.raises(ConfigError, match="no distribution-based algorithm 'SimpleGA'"):
        Evosax("SimpleGA", 3, 10)
    with pytest.raises(ConfigError, match="params of evosax's SNES: .*claws"):
        Evosax("SNES", 3, 10, params={"claws": 4})
    strategy = Evosax("SNES", 3, 10)
    with pytest.raises(ConfigError, match="Evosax cannot take one reward at a time"):
        strategy.tell_one(strategy.init(np.zeros(3), 0), 0, 1.0)
