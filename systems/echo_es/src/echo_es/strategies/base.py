"""The interface of all strategies: `ask` returns candidates, `tell` takes their rewards, and a state of plain arrays holds everything that was learned.

A strategy object holds options only. The state can be copied, saved with `numpy.savez`, and used in another process.
Rewards are maximised everywhere.

Candidates need not travel. The server publishes `params(state)`, which is small or as large as theta; a worker builds the same strategy from
`describe()` and computes the candidates of its own range with `draw(params, individuals)`. Both must compute the same noise: they
compare `noise_digest()` when the worker joins.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from echo_core import ConfigError

from ..arguments import seed_of, whole
from ..noise import stream_digest
from ..shaping import clean

__all__ = ["Array", "Individuals", "State", "Strategy", "build", "counter"]

_log = logging.getLogger("echo.es")

Array: TypeAlias = NDArray[Any]
State: TypeAlias = dict[str, Array]  # arrays by name, none of dtype object
Individuals: TypeAlias = "range | slice"

# Where each strategy that a worker can build lives.
_HOME = {
    "CMAES": "cma_es",
    "OpenAIES": "openai_es",
    "PGPE": "pgpe",
    "SepCMAES": "sep_cma_es",
    "Whole": "whole",
}


class Strategy(ABC):
    """A strategy for `dims` parameters and `population` individuals in each generation.

    Every state has `generation` (how many have been told), `seed`, and `invalid` (how many rewards were NaN or infinite, and counted as
    worse than all others), each an integer array of shape ().
    """

    steady: ClassVar[bool] = False
    """Whether `tell_one` works, so that no individual has to wait for the others of its generation."""

    def __init__(self, dims: int, population: int) -> None:
        self.dims = whole("dims", dims, 1)
        self.population = whole("population", population, 2)
        self._warned = False

    @abstractmethod
    def init(self, theta: ArrayLike, seed: int) -> State:
        """The state before the first generation, with `theta` of shape (dims,) as its centre. Raises ValueError if theta does not fit."""

    @abstractmethod
    def params(self, state: State) -> State:
        """What `draw` needs to know of the state: all that a worker has to receive for this generation."""

    @abstractmethod
    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        """The candidates of these individuals, shape (n, dims). Any two processes with the same `params` get the same."""

    @abstractmethod
    def tell(self, state: State, rewards: ArrayLike) -> State:
        """The state of the next generation. `rewards` has shape (population,), in the order of the individuals; `state` does not change.

        Rewards that are NaN or infinite count as worse than all others and are added to `invalid`. Raises ValueError if the number is wrong, if
        they are not real numbers, or if rewards that nothing shapes are too large.
        """

    @abstractmethod
    def theta(self, state: Mapping[str, Array]) -> Array:
        """The centre of the distribution, shape (dims,): the parameters to use when the search is over. `state` may be `params(state)`."""

    def ask(self, state: State, individuals: Individuals) -> Array:
        """The candidates of these individuals of the generation, shape (n, dims)."""
        return self.draw(self.params(state), individuals)

    def tell_one(self, state: State, individual: int, reward: float) -> State:
        """The state after the reward of one individual, for the steady mode, in which the numbers of individuals never start again at 0.

        Raises ConfigError if the strategy needs a whole generation.
        """
        name = type(self).__name__
        raise ConfigError(f"{name} cannot take one reward at a time, because it compares a whole generation: tell generations, or use OpenAIES")

    def describe(self) -> dict[str, Any]:
        """The name and the options, as JSON has them; `build` makes the strategy again from this."""
        return {"strategy": type(self).__name__, "dims": self.dims, "population": self.population, **self._options()}

    def noise_digest(self) -> str:
        """A digest that is equal in two processes if they draw the same candidates. Without it, nobody would notice that versions of numpy differ."""
        return stream_digest()

    def _options(self) -> dict[str, Any]:
        return {}

    def _begin(self, theta: ArrayLike, seed: int) -> tuple[Array, State]:
        """`theta` as floating point in memory of its own, and what every state has."""
        centre, seed = np.array(theta), seed_of(seed)
        if centre.dtype.kind not in "biuf":
            raise ValueError(f"theta: the parameters must be real numbers, not {centre.dtype}")
        if centre.dtype not in (np.float32, np.float64):
            centre = centre.astype(np.float64)
        if centre.shape != (self.dims,):
            raise ValueError(f"theta: its shape must be ({self.dims},), not {centre.shape}")
        if not np.isfinite(centre).all():
            raise ValueError("theta: every parameter must be a finite number")
        return centre, {"generation": counter(0), "seed": np.array(seed % 2**64, np.uint64), "invalid": counter(0)}

    def _told(self, state: State, rewards: ArrayLike) -> tuple[Array, State]:
        """The rewards, -inf where they are no numbers, and what every next state has."""
        values, bad = clean(rewards, self.population)
        self._warn_if_equal(values)
        return values, {"generation": counter(state["generation"] + 1), "seed": state["seed"], "invalid": counter(state["invalid"] + bad)}

    def _warn_if_equal(self, values: Array) -> None:
        """Say once if all rewards are equal. A strategy that compares ranks then follows the order of the individuals, which is random."""
        if not self._warned and values[0] > -np.inf and (values == values[0]).all():
            self._warned = True
            _log.warning(
                "all %d rewards of a generation are equal (%g): %s learns nothing from them, and its parameters may drift at random; "
                "check what `evaluate` returns. This is said once",
                len(values),
                values[0],
                type(self).__name__,
            )

    def _bounds(self, individuals: Individuals, *, endless: bool = False) -> tuple[int, int]:
        """First and past-the-last individual. Raises ValueError if the range has gaps or leaves the population."""
        first, last, step = individuals.start, individuals.stop, individuals.step
        if step not in (None, 1) or not 0 <= first <= last or (last > self.population and not endless):
            raise ValueError(f"individuals: {individuals} is no range without gaps within a population of {self.population}")
        return first, last


def counter(value: Any) -> Array:
    """An integer as a state keeps it: int64 of shape (), because numpy's sums of such arrays are scalars and no arrays."""
    return np.array(value, np.int64)


def build(description: Mapping[str, Any]) -> Strategy:
    """The strategy that `describe()` described. Raises ConfigError if its name or an option is unknown."""
    options = dict(description)
    name = options.pop("strategy", None)
    if name not in _HOME:
        raise ConfigError(f"strategy: there is no {name!r}; choose one of {', '.join(sorted(_HOME.keys() - {'Whole'}))}")
    made = getattr(import_module(f".{_HOME[name]}", __package__), name)
    try:
        strategy: Strategy = made(**options)
    except TypeError as error:
        raise ConfigError(f"strategy {name}: {error}") from None
    return strategy
