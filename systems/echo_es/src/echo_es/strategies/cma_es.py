"""CMA-ES with a full covariance and active (negative) weights (Hansen, "The CMA Evolution Strategy: A Tutorial", 2016)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

from .base import Array, Individuals, State
from .cma import CMA, Rates

__all__ = ["CMAES"]

_ROWS = 32  # candidates computed at once, always the same ones: a product of another shape may differ in its last bits


class CMAES(CMA):
    """CMA-ES for up to some hundred parameters: memory and time grow with their square and more. `sigma` is the first step size."""

    def __init__(self, dims: int, population: int, sigma: float = 0.3) -> None:
        super().__init__(dims, population, sigma)
        # The decomposition costs dims**3 and the covariance changes slowly: generations between two of them.
        self._pause = max(1, int(1 / (10 * dims * (self._rates.one + self._rates.mu))))

    def _constants(self) -> tuple[Array, Rates]:
        dims, population = self.dims, self.population
        raw = np.log((population + 1) / 2) - np.log(np.arange(1, population + 1))
        chosen, others = raw[: self.parents], raw[self.parents :]
        mass = chosen.sum() ** 2 / (chosen**2).sum()
        mass_others = others.sum() ** 2 / (others**2).sum()
        one = float(2 / ((dims + 1.3) ** 2 + mass))
        mu = float(min(1 - one - 1e-8, 2 * (mass - 2 + 1 / mass) / ((dims + 2) ** 2 + mass)))
        # The sum of the negative weights; the last bound keeps the covariance positive.
        negative = min(1 + one / mu, 1 + 2 * mass_others / (mass + 2), (1 - one - mu) / (dims * mu)) if mu > 0 else 0.0
        weights = np.where(raw >= 0, raw / chosen.sum(), negative * raw / np.abs(raw[raw < 0]).sum())
        return weights, Rates(one, mu, float((4 + mass / dims) / (dims + 4 + 2 * mass / dims)), float((mass + 2) / (dims + mass + 5)))

    def init(self, theta: ArrayLike, seed: int) -> State:
        return super().init(theta, seed) | {"covariance": np.eye(self.dims), "axes": np.eye(self.dims), "lengths": np.ones(self.dims)}

    def params(self, state: State) -> State:
        root = state["sigma"] * state["lengths"][:, None] * state["axes"].T
        return {"mean": state["mean"], "root": root, "generation": state["generation"], "seed": state["seed"]}

    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        first, last = self._bounds(individuals)
        begin = first - first % _ROWS
        end = min(self.population, last + -last % _ROWS)
        out = np.empty((end - begin, self.dims))
        z = self._z(params, begin, end)
        for row in range(0, end - begin, _ROWS):
            np.matmul(z[row : row + _ROWS], params["root"], out=out[row : row + _ROWS])
        out += params["mean"]
        return out[first - begin : last - begin]

    def tell(self, state: State, rewards: ArrayLike) -> State:
        values, after = self._told(state, rewards)
        order = (-values).argsort(kind="stable")
        if values[order[0]] == -np.inf:  # no reward says anything
            return state | after
        z = self._z(state, 0, self.population).take(order, 0)
        axes, lengths = state["axes"], state["lengths"]
        y = (z * lengths) @ axes.T
        step = self._weights[: self.parents] @ y[: self.parents]
        control, short = self._length_control(state, axes @ (self._weights[: self.parents] @ z[: self.parents]))
        path, kept = self._path_c(state, step, short)
        # A long step counts no more than a usual one where the weight is negative: the covariance stays positive.
        rates = self._rates
        scaled = np.where(self._weights < 0, self._weights * self.dims / (np.einsum("ij,ij->i", z, z) + 1e-8), self._weights)
        covariance = (1 - rates.one + kept - rates.mu * self._weights.sum()) * state["covariance"]
        covariance += rates.one * np.outer(path, path)
        covariance += rates.mu * (y.T @ (scaled[:, None] * y))
        new = {"mean": state["mean"] + state["sigma"] * step, "path_c": path, "covariance": covariance}
        if int(after["generation"]) % self._pause == 0:
            covariance += covariance.T.copy()
            covariance /= 2
            squares, axes = np.linalg.eigh(covariance)
            new |= {"axes": axes, "lengths": np.sqrt(np.maximum(squares, 1e-16))}
        return state | after | control | new
