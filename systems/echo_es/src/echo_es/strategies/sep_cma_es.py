"""sep-CMA-ES: CMA-ES with a diagonal covariance, linear in time and memory (Ros and Hansen, 2008)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from .base import Array, Individuals, State
from .cma import CMA, Rates

__all__ = ["SepCMAES"]


class SepCMAES(CMA):
    """CMA-ES for many parameters: it learns a scale for each of them, and no dependence between them. `sigma` is the first step size."""

    def _constants(self) -> tuple[Array, Rates]:
        dims = self.dims
        weights = np.log(self.parents + 1) - np.log(np.arange(1, self.parents + 1))
        weights /= weights.sum()
        mass = 1 / float((weights**2).sum())
        one = 2 / ((dims + 1.3) ** 2 + mass)
        full = 2 / mass / (dims + 2**0.5) ** 2 + (1 - 1 / mass) * min(1.0, (2 * mass - 1) / ((dims + 2) ** 2 + mass))
        return weights, Rates(one, min(1 - one, (dims + 2) / 3 * full), 4 / (dims + 4), (mass + 2) / (dims + mass + 3))

    def init(self, theta: ArrayLike, seed: int) -> State:
        return super().init(theta, seed) | {"variances": np.ones(self.dims)}

    def params(self, state: State) -> State:
        return {"mean": state["mean"], "scales": state["sigma"] * np.sqrt(state["variances"]), "generation": state["generation"], "seed": state["seed"]}

    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        candidates: Array = self._z(params, *self._bounds(individuals)) * params["scales"]
        candidates += params["mean"]
        return candidates

    def tell(self, state: State, rewards: ArrayLike) -> State:
        values, after = self._told(state, rewards)
        order = (-values).argsort(kind="stable")
        if values[order[0]] == -np.inf:  # no reward says anything
            return state | after
        z = self._z(state, 0, self.population).take(order[: self.parents], 0)
        whitened = self._weights @ z
        np.multiply(z, z, out=z)
        squared = self._weights @ z
        variances = state["variances"]
        step = np.sqrt(variances) * whitened
        lengths, short = self._length_control(state, whitened)
        path, kept = self._path_c(state, step, short)
        rates = self._rates
        variances = variances * (1 - rates.one - rates.mu + kept + rates.mu * squared) + rates.one * path**2
        return state | after | lengths | {"mean": state["mean"] + state["sigma"] * step, "path_c": path, "variances": variances}
