"""PGPE: policy gradients with parameter-based exploration, with antithetic pairs (Sehnke and others, 2010)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import ConfigError

from ..arguments import number
from ..noise import normals
from ..shaping import shaping_by_name
from .base import Array, Individuals, State, Strategy, counter
from .optimizers import OPTIMIZERS, finite

__all__ = ["PGPE"]


class PGPE(Strategy):
    """Follows the gradient for the centre and for a scale of each parameter. So it learns for each parameter how far to explore.

    Individuals 2k and 2k+1 add and subtract the same noise. `sigma` is the first scale of every parameter. `lr` is the step of the centre, and
    `lr_sigma` is the step of the scales. `max_change` is the largest part of a scale by which one generation changes it.
    """

    def __init__(
        self,
        dims: int,
        population: int,
        sigma: float = 0.1,
        lr: float = 0.01,
        lr_sigma: float = 0.1,
        max_change: float = 0.2,
        shaping: str = "centered_rank",
        optimizer: str = "adam",
    ) -> None:
        super().__init__(dims, population)
        if population % 2:
            raise ConfigError(f"population: antithetic pairs need an even number, not {population}")
        sigma, lr, lr_sigma = number("sigma", sigma, above=0), number("lr", lr, above=0), number("lr_sigma", lr_sigma, least=0)
        if not 0 < number("max_change", max_change) < 1:
            raise ConfigError(f"max_change must lie between 0 and 1, not {max_change}")
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: there is no {optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
        self.sigma, self.lr, self.lr_sigma, self.max_change, self.shaping, self.optimizer = sigma, lr, lr_sigma, max_change, shaping, optimizer
        self._shape = shaping_by_name(shaping)
        self._optimizer = OPTIMIZERS[optimizer]

    def _options(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in ("sigma", "lr", "lr_sigma", "max_change", "shaping", "optimizer")}

    def init(self, theta: ArrayLike, seed: int) -> State:
        centre, state = self._begin(theta, seed)
        scales = np.full(self.dims, self.sigma, centre.dtype)
        return state | {"theta": centre, "sigma": scales, "steps": counter(0), **self._optimizer.init(centre)}

    def theta(self, state: Mapping[str, Array]) -> Array:
        return state["theta"]

    def params(self, state: State) -> State:
        return {name: state[name] for name in ("theta", "sigma", "generation", "seed")}

    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        first, last = self._bounds(individuals)
        steps = self._noise(params, first // 2, (last + 1) // 2) * params["sigma"]
        out = np.empty((2 * len(steps), self.dims), steps.dtype)
        np.add(params["theta"], steps, out=out[0::2])
        np.subtract(params["theta"], steps, out=out[1::2])
        return out[first % 2 : first % 2 + last - first]

    def tell(self, state: State, rewards: ArrayLike) -> State:
        values, after = self._told(state, rewards)
        weights = self._shape(values)
        noise = self._noise(state, 0, self.population // 2)
        sigma = state["sigma"]
        dtype = sigma.dtype.type
        pairs = len(noise)
        # Which of the two was better says where to go; whether both were better than the rest says whether to go that far.
        with np.errstate(over="ignore", invalid="ignore"):  # `finite` looks at the results
            direction = finite((weights[0::2] - weights[1::2]).astype(dtype) @ noise / (2 * pairs) / sigma)
            both = ((weights[0::2] + weights[1::2]) / 2 - weights.mean()).astype(dtype)
            np.multiply(noise, noise, out=noise)
            noise -= 1
            change = np.clip(finite(dtype(self.lr_sigma) * (both @ noise) / pairs), -self.max_change, self.max_change)
        steps = int(state["steps"]) + 1
        step, moments = self._optimizer.step(state, direction, self.lr, steps)
        return state | after | moments | {"theta": state["theta"] + step, "sigma": sigma * (1 + change), "steps": counter(steps)}

    def _noise(self, params: Mapping[str, Array], first: int, last: int) -> Array:
        return normals(int(params["seed"]), int(params["generation"]), first, last, self.dims, params["theta"].dtype)
