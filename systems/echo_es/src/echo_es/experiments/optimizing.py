"""The strategy of an experiment and its state. Equal rewards lead to an equal state, so the state can be rebuilt from the log of the rewards."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from echo_core import CheckpointError, ConfigError

from .. import state as states
from ..search.tasks import Rewards

if TYPE_CHECKING:
    from ..log import Contents
    from ..strategies.base import Array, Strategy

State: TypeAlias = dict[str, Any]  # the arrays of a strategy's state

__all__ = ["Optimizing"]


class Optimizing:
    """Runs the strategy of an experiment, and holds its state.

    Args:
        strategy: the strategy.
        theta: the parameters that it begins with, shape (dims,). None means zeros.
        seed: the seed of its noise.
        steady: whether the strategy gets each reward when it arrives. `population` rewards then make a new version of the parameters.

    Raises ConfigError if the strategy cannot be told single rewards.
    """

    def __init__(self, strategy: Strategy, theta: ArrayLike | None, seed: int, *, steady: bool) -> None:
        if steady and not strategy.steady:
            name = type(strategy).__name__
            raise ConfigError(f"mode: {name} cannot take one reward at a time, because it compares a whole generation; use mode='epochs', or OpenAIES")
        begin = np.zeros(strategy.dims) if theta is None else np.asarray(theta)
        self.strategy = strategy
        self._steady = steady
        self._now = _Learned(strategy.init(begin, seed), 0, 0)
        self._begin = states.digest(self.save()[2])

    @property
    def version(self) -> int:
        """How many epochs were told."""
        return self._now.version

    @property
    def theta(self) -> Array:
        """The centre of the distribution, shape (dims,)."""
        return self.strategy.theta(self._now.state)

    def params(self) -> State:
        """What workers need to draw candidates."""
        return self.strategy.params(self._now.state)

    def describe(self) -> dict[str, Any]:
        """All that decides which candidates belong to which individuals, as JSON has it."""
        return {"strategy": self.strategy.describe(), "noise": self.strategy.noise_digest(), "start (theta and seed)": self._begin}

    def tell(self, rewards: Rewards) -> None:
        """The rewards of the next epoch, shape (population,)."""
        now = self._now
        self._now = _Learned(self.strategy.tell(now.state, rewards), now.version + 1, 0)

    def tell_each(self, individuals: Iterable[int], rewards: Rewards) -> bool:
        """Tell the strategy the rewards of these individuals, one after the other. Returns whether there are new parameters."""
        state, before, told = self._now
        for individual, reward in zip(individuals, rewards.tolist(), strict=True):
            state = self.strategy.tell_one(state, individual, reward)
            told += 1
        self._now = _Learned(state, told // self.strategy.population, told)
        return self._now.version > before

    def save(self) -> tuple[int, int, bytes]:
        """(version, told, state): `told` is how many rewards a steady search was told. The three values fit together even if another thread tells meanwhile."""
        now = self._now
        return now.version, now.told, states.pack(now.state)

    def resume(self, saved: tuple[int, int, bytes] | None, logged: Contents) -> None:
        """Begin with what `save` returned, and tell the rewards that the log has beyond it. Raises CheckpointError if the log ends before it."""
        if saved is not None:
            version, told, data = saved
            self._now = _Learned(states.unpack(data), version, told)
        individuals, rewards = logged.steady() if self._steady else (None, None)
        have, count = (self._now.version, len(logged.epochs)) if rewards is None else (self._now.told, len(rewards))
        if have > count:
            what = "epochs" if rewards is None else "rewards"
            raise CheckpointError(f"log: it has {count} {what}, and the state beside it was made from {have}; restore both from the same backup")
        if individuals is not None and rewards is not None:
            self.tell_each(individuals[have:].tolist(), rewards[have:])
        else:
            for _, values in logged.epochs[have:]:
                self.tell(values)


class _Learned(NamedTuple):
    """A state, its version, and how many rewards it was made from. It is replaced as a whole, so that no thread sees a state with another's version."""

    state: State
    version: int
    told: int
