"""OpenAI-ES: a gradient estimated from the rewards of perturbed parameters (Salimans and others, 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from echo_core import ConfigError

from ..arguments import number, whole
from ..noise import TABLE_SIZE, NoiseTable, normals, shared_table, table_needed
from ..shaping import clean, shaping_by_name
from .base import Array, Individuals, State, Strategy, counter
from .optimizers import OPTIMIZERS, finite

__all__ = ["OpenAIES"]

_ROWS = 64  # perturbations that are looked up at once


class OpenAIES(Strategy):
    """Perturb theta by `sigma` times noise, and follow the gradient that the shaped rewards give.

    - `antithetic`: individuals 2k and 2k+1 add and subtract the same noise; the population must be even.
    - `shaping`: "centered_rank", "z_score" or "none".
    - `optimizer`: "adam" or "sgd" (`momentum` 0.9); `lr` is its step, `weight_decay` pulls theta to zero by `lr * weight_decay * theta`.
    - `noise`: "table" looks the noise up in a table of `table_size` numbers of `table_seed`, which all strategies of a process share;
      "seeds" draws it again each time, which needs no memory and more time. "auto" is "table" if the table is large enough, and "seeds" if
      not: the table must have at least 10 numbers for each parameter, and 1,000 offsets for each perturbation of a generation.

    Attributes:
        noise: "table" or "seeds".

    The dtype of theta is that of `init`: float32 or float64. Raises ConfigError if an option is invalid.
    """

    steady = True

    def __init__(
        self,
        dims: int,
        population: int,
        sigma: float = 0.02,
        lr: float = 0.01,
        antithetic: bool = True,
        shaping: str = "centered_rank",
        optimizer: str = "adam",
        weight_decay: float = 0.0,
        noise: str = "auto",
        table_seed: int = 0,
        table_size: int = TABLE_SIZE,
    ) -> None:
        super().__init__(dims, population)
        sigma, lr, weight_decay = number("sigma", sigma, above=0), number("lr", lr, above=0), number("weight_decay", weight_decay)
        table_seed, table_size = whole("table_seed", table_seed, 0, 2**64 - 1), whole("table_size", table_size, 1)
        if antithetic and population % 2:
            raise ConfigError(f"population: antithetic pairs need an even number, not {population}")
        if optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer: there is no {optimizer!r}; choose one of {', '.join(OPTIMIZERS)}")
        if noise not in ("auto", "table", "seeds"):
            raise ConfigError(f"noise: there is no {noise!r}; choose 'auto', 'table' or 'seeds'")
        needed = table_needed(self.dims, self.population // 2 if antithetic else self.population)
        if noise == "table" and table_size < needed:
            raise ConfigError(
                f"noise: a table of {table_size:,} numbers repeats its noise with {self.dims:,} parameters and {self.population:,} individuals; "
                f"set table_size to at least {needed:,}, or use noise='seeds'"
            )
        if noise == "auto":
            noise = "table" if table_size >= needed else "seeds"
        self.sigma, self.lr, self.antithetic, self.weight_decay = sigma, lr, antithetic, weight_decay
        self.shaping, self.optimizer, self.noise, self.table_seed, self.table_size = shaping, optimizer, noise, table_seed, table_size
        self._shape = shaping_by_name(shaping)
        self._optimizer = OPTIMIZERS[optimizer]
        self._table: NoiseTable | None = None

    def _options(self) -> dict[str, Any]:
        names = ("sigma", "lr", "antithetic", "shaping", "optimizer", "weight_decay", "noise", "table_seed", "table_size")
        return {name: getattr(self, name) for name in names}

    @property
    def table(self) -> NoiseTable:
        """The table of noise. A process whose numpy makes another one than the server's can set the server's: its `noise_digest()` is then the same.

        Raises ConfigError if it is set to a table of another size, or if the noise is drawn from seeds.
        """
        self._check_has_table()
        if self._table is None:
            self._table = shared_table(self.table_seed, self.table_size)
        return self._table

    @table.setter
    def table(self, table: NoiseTable) -> None:
        self._check_has_table()
        if table.size != self.table_size:
            raise ConfigError(f"table: it must have {self.table_size} numbers, not {table.size}")
        self._table = table

    def _check_has_table(self) -> None:
        if self.noise != "table":
            raise ConfigError("table: this strategy draws its noise from seeds and has no table; use noise='table' with a table_size that is large enough")

    def noise_digest(self) -> str:
        return self.table.digest if self.noise == "table" else super().noise_digest()

    def init(self, theta: ArrayLike, seed: int) -> State:
        centre, state = self._begin(theta, seed)
        state |= {"theta": centre, "steps": counter(0), **self._optimizer.init(centre)}
        # Rewards that came one by one and have not been used: steady mode.
        return state | {"told": np.empty(0, np.int64), "rewards": np.empty(0, np.float64)}

    def theta(self, state: Mapping[str, Array]) -> Array:
        return state["theta"]

    def params(self, state: State) -> State:
        return {"theta": state["theta"], "generation": state["generation"], "seed": state["seed"]}

    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        first, last = self._bounds(individuals, endless=True)
        theta = params["theta"]
        scale = theta.dtype.type(self.sigma)
        if not self.antithetic:
            out: Array = self._noise(params, first, last)
            out *= scale
            out += theta
            return out
        pairs = self._noise(params, first // 2, (last + 1) // 2)
        pairs *= scale
        out = np.empty((2 * len(pairs), self.dims), theta.dtype)
        np.add(theta, pairs, out=out[0::2])
        np.subtract(theta, pairs, out=out[1::2])
        return out[first % 2 : first % 2 + last - first]

    def tell(self, state: State, rewards: ArrayLike) -> State:
        values, after = self._told(state, rewards)
        weights = self._shape(values)
        with np.errstate(over="ignore", invalid="ignore"):  # `_step` looks at the result
            combined = self._combined(state, weights[0::2] - weights[1::2] if self.antithetic else weights)
        return self._step(state, after, combined)

    def tell_one(self, state: State, individual: int, reward: float) -> State:
        """Keep the reward; the last of each `population` of them makes a step of the optimizer, whichever individuals they belong to."""
        (value,), bad = clean([reward], 1)
        after = state | {
            "told": np.append(state["told"], np.int64(individual)),
            "rewards": np.append(state["rewards"], value),
            "invalid": counter(state["invalid"] + bad),
        }
        if len(after["told"]) < self.population:
            return after
        self._warn_if_equal(after["rewards"])
        weights = self._shape(after["rewards"])
        own = after["told"]
        if self.antithetic:
            weights, own = np.where(own % 2, -weights, weights), own // 2
        places, where = np.unique(own, return_inverse=True)
        summed = np.bincount(where, weights)
        gradient = np.zeros(self.dims, np.float64)
        for place, weight in zip(places.tolist(), summed.tolist()):
            gradient += weight * self._noise(state, place, place + 1)[0]
        return self._step(state, after | {"told": state["told"][:0], "rewards": state["rewards"][:0]}, gradient)

    def _noise(self, params: Mapping[str, Array], first: int, last: int) -> Array:
        """The noise of the places `first` to `last`: a place is a pair, or an individual where there are no pairs."""
        seed, generation = int(params["seed"]), int(params["generation"])
        dtype = params["theta"].dtype
        if self.noise == "seeds":
            return normals(seed, generation, first, last, self.dims, dtype)
        table = self.table
        return table.rows(table.offsets(self.dims, seed, generation, first, last - first), self.dims).astype(dtype, copy=False)

    def _combined(self, state: State, weights: Array) -> Array:
        """The sum of the noise of all places, each times its weight, float64 of shape (dims,)."""
        total = np.zeros(self.dims, np.float64)
        for begin in range(0, len(weights), _ROWS):
            part = weights[begin : begin + _ROWS]
            noise = self._noise(state, begin, begin + len(part))
            total += part.astype(noise.dtype) @ noise
        return total

    def _step(self, state: State, after: State, combined: Array) -> State:
        theta = state["theta"]
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = finite((combined / (self.population * self.sigma)).astype(theta.dtype))
        steps = int(state["steps"]) + 1
        step, moments = self._optimizer.step(state, gradient, self.lr, steps)
        moved = theta + step
        if self.weight_decay:
            moved -= theta.dtype.type(self.lr * self.weight_decay) * theta
        return state | after | moments | {"theta": moved, "steps": counter(steps)}
