"""Strategies of evosax (https://github.com/RobertTLange/evosax), which run on JAX in the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import ConfigError
from echo_core.base.installing import how_to_install

from .base import Array, State
from .whole import Whole

__all__ = ["Evosax"]


class Evosax(Whole):
    """The distribution-based algorithm `name` of evosax 0.2 or newer, for example "SNES" or "CMA_ES".

    `params` replaces entries of the algorithm's own parameters, `{"std_init": 0.1}` for example; `options` goes to its constructor.
    Only the server needs JAX: all candidates of a generation travel to the workers. They are float32, as JAX computes.
    Raises ConfigError if evosax is not installed, or has no such algorithm or parameter.
    """

    def __init__(self, name: str, dims: int, population: int, params: Mapping[str, float] | None = None, **options: Any) -> None:
        super().__init__(dims, population)
        try:
            import jax
            from evosax import algorithms
            from evosax.algorithms.distribution_based.base import DistributionBasedAlgorithm
        except ImportError as error:
            raise ConfigError(f"Evosax needs evosax and JAX, and {error}; {how_to_install('echo-es[evosax]')}") from None
        kind = getattr(algorithms, name, None)
        if not (isinstance(kind, type) and issubclass(kind, DistributionBasedAlgorithm)):
            raise ConfigError(f"evosax has no distribution-based algorithm {name!r}")
        self._jax = jax
        self._algorithm: Any = kind(population_size=population, solution=np.zeros(dims, np.float32), **options)
        try:
            self._settings = self._algorithm.default_params.replace(**(params or {}))
        except TypeError as error:
            raise ConfigError(f"params of evosax's {name}: {error}") from None
        shapes = jax.eval_shape(self._algorithm.init, jax.random.key(0), np.zeros(dims, np.float32), self._settings)
        self._structure: Any = jax.tree.structure(shapes)

    def describe(self) -> dict[str, Any]:
        return {"strategy": "Whole", "dims": self.dims, "population": self.population}

    def init(self, theta: ArrayLike, seed: int) -> State:
        mean, state = self._begin(theta, seed)
        key = self._key(state, 0)
        return state | self._arrays(self._algorithm.init(key, mean.astype(np.float32), self._settings))

    def theta(self, state: Mapping[str, Array]) -> Array:
        return state["theta"] if "theta" in state else np.asarray(self._algorithm.get_mean(self._tree(state)))

    def params(self, state: State) -> State:
        return {"candidates": np.asarray(self._asked(state)[0]), "theta": self.theta(state)}

    def tell(self, state: State, rewards: ArrayLike) -> State:
        values, after = self._told(state, rewards)
        known = np.isfinite(values)
        if not known.any():
            return state | after
        costs = -np.where(known, values, values.min(where=known, initial=np.inf))
        candidates, asked = self._asked(state)
        tree, _ = self._algorithm.tell(self._key(state, 2), candidates, costs.astype(np.float32), asked, self._settings)
        return state | after | self._arrays(tree)

    def _asked(self, state: State) -> tuple[Any, Any]:
        """The candidates, and evosax's state after asking for them. The same state gives the same, so nothing has to be kept."""
        candidates, tree = self._algorithm.ask(self._key(state, 1), self._tree(state), self._settings)
        return candidates, tree

    def _key(self, state: State, use: int) -> Any:
        random = self._jax.random
        key = random.fold_in(random.key(int(state["seed"]) & 0xFFFF_FFFF), int(state["seed"]) >> 32)
        return random.fold_in(random.fold_in(key, int(state["generation"])), use)

    def _arrays(self, tree: Any) -> State:
        return {f"evosax_{index}": np.asarray(leaf) for index, leaf in enumerate(self._jax.tree.leaves(tree))}

    def _tree(self, state: Mapping[str, Array]) -> Any:
        leaves = [self._jax.numpy.asarray(state[f"evosax_{index}"]) for index in range(self._structure.num_leaves)]
        return self._jax.tree.unflatten(self._structure, leaves)
