"""The worker's side of a strategy that cannot draw: all candidates of a generation travel, and a worker takes its rows."""

from __future__ import annotations

from collections.abc import Mapping

from numpy.typing import ArrayLike

from echo_core import ConfigError

from .base import Array, Individuals, State, Strategy

__all__ = ["Whole"]


class Whole(Strategy):
    """Its params are `{"candidates": array of shape (population, dims), "theta": the centre}`. It draws, and can neither begin nor be told."""

    def params(self, state: State) -> State:
        return state

    def draw(self, params: Mapping[str, Array], individuals: Individuals) -> Array:
        first, last = self._bounds(individuals)
        rows: Array = params["candidates"][first:last]
        return rows

    def noise_digest(self) -> str:
        return ""

    def init(self, theta: ArrayLike, seed: int) -> State:
        raise ConfigError("Whole only takes rows of candidates that another strategy made")

    def tell(self, state: State, rewards: ArrayLike) -> State:
        raise ConfigError("Whole only takes rows of candidates that another strategy made")

    def theta(self, state: Mapping[str, Array]) -> Array:
        return state["theta"]
