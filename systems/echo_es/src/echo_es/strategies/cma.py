"""What CMA-ES and its separable variant share: noise in the generation's own coordinates, the paths, and the step size."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..arguments import number
from ..noise import normals
from .base import Array, State, Strategy

__all__ = ["CMA", "Rates"]


class Rates(NamedTuple):
    """How fast each part follows a new generation: the covariance by its path (`one`) and by the ranks (`mu`), and the two paths."""

    one: float
    mu: float
    path: float
    sigma: float


class CMA(Strategy):
    """Base of `CMAES` and `SepCMAES`. Candidates are `mean + sigma * A z`, with z normal and A a root of the covariance.

    `sigma` is the first step size. The state is float64, whatever theta was.
    """

    def __init__(self, dims: int, population: int, sigma: float = 0.3) -> None:
        super().__init__(dims, population)
        self.sigma = number("sigma", sigma, above=0)
        self.parents = self.population // 2
        self._weights, rates = self._constants()
        self._rates = rates
        self._mass = 1 / float((self._weights[: self.parents] ** 2).sum())
        dims = self.dims
        self._damping = 1 + 2 * max(0.0, math.sqrt((self._mass - 1) / (dims + 1)) - 1) + rates.sigma
        self._chi = math.sqrt(dims) * (1 - 1 / (4 * dims) + 1 / (21 * dims**2))  # the mean length of a normal vector
        self._last: tuple[tuple[int, int], Array] | None = None

    @abstractmethod
    def _constants(self) -> tuple[Array, Rates]:
        """The weights by rank, those of the parents first and positive, and the rates."""

    def _options(self) -> dict[str, Any]:
        return {"sigma": self.sigma}

    def init(self, theta: ArrayLike, seed: int) -> State:
        mean, state = self._begin(theta, seed)
        zeros = np.zeros(self.dims)
        return state | {"mean": mean.astype(np.float64), "sigma": np.array(float(self.sigma)), "path_sigma": zeros, "path_c": zeros}

    def theta(self, state: Mapping[str, Array]) -> Array:
        return state["mean"]

    def _z(self, params: Mapping[str, Array], first: int, last: int) -> Array:
        """Rows of the generation's noise. The whole of the last generation is kept, so that `tell` need not draw it after `ask`."""
        key = int(params["seed"]), int(params["generation"])
        if self._last is not None and self._last[0] == key:
            return self._last[1][first:last]
        z = normals(*key, first, last, self.dims)
        if last - first == self.population:
            z.flags.writeable = False
            self._last = key, z
        return z

    def _length_control(self, state: State, whitened: Array) -> tuple[State, float]:
        """The new path and step size from the mean of the parents' noise, and 1.0 unless the path is so long that the rank-one update has to wait."""
        rate = self._rates.sigma
        path = (1 - rate) * state["path_sigma"] + math.sqrt(rate * (2 - rate) * self._mass) * whitened
        length = math.sqrt(path @ path)
        sigma = min(float(state["sigma"]) * math.exp(rate / self._damping * (length / self._chi - 1)), 1e32)  # where rewards grow without end
        begun = math.sqrt(1 - (1 - rate) ** (2 * (int(state["generation"]) + 2)))
        short = 1.0 if length / begun < (1.4 + 2 / (self.dims + 1)) * self._chi else 0.0
        return {"path_sigma": path, "sigma": np.array(sigma)}, short

    def _path_c(self, state: State, step: Array, short: float) -> tuple[Array, float]:
        """The path of the rank-one update after the mean moved by `step` (in units of sigma), and what more of the covariance stays."""
        rate = self._rates.path
        path: Array = (1 - rate) * state["path_c"] + short * math.sqrt(rate * (2 - rate) * self._mass) * step
        return path, self._rates.one * (1 - short) * rate * (2 - rate)
