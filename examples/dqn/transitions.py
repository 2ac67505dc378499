"""CartPole as transitions over several steps: the example of a sample, the worker's code that makes samples, and the evaluation of a policy."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cartpole.network import Layers, forward

OBSERVATIONS = 4
ACTIONS = 2


def example() -> dict[str, NDArray[Any]]:
    """The pytree that fixes the contract: several steps of one environment, from one action on.

    `reward` is the discounted sum over these steps, `next_obs` the observation after them, and `discount` the factor of its value, which
    is 0 if the episode terminated. An episode that was truncated after 500 steps is bootstrapped from there.
    """
    return {
        "obs": np.zeros(OBSERVATIONS, np.float32),
        "action": np.zeros((), np.int32),
        "reward": np.zeros((), np.float32),
        "next_obs": np.zeros(OBSERVATIONS, np.float32),
        "discount": np.zeros((), np.float32),
    }


def _make(count: int) -> Any:
    import gymnasium as gym

    # CartPole's own vector environment steps all of them in one numpy expression.
    return gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point")


@dataclass(frozen=True)
class Step:
    """One step of every environment; leaves (count, ...)."""

    obs: NDArray[Any]
    action: NDArray[Any]
    reward: NDArray[Any]
    next_obs: NDArray[Any]
    terminated: NDArray[Any]
    ended: NDArray[Any]  # terminated or truncated
    real: NDArray[Any]  # False for the environment's own reset, which takes the step after an end


class Player:
    """Steps `count` environments together with an epsilon-greedy policy. Returns span `span` steps with `discount`."""

    def __init__(self, count: int, span: int, discount: float, seed: int) -> None:
        self.envs = _make(count)
        self.count, self.span, self.discount = count, span, discount
        self.rng = np.random.default_rng(seed)
        self.obs, _ = self.envs.reset(seed=seed)
        self.resetting = np.zeros(count, np.bool_)
        self.recent: deque[Step] = deque(maxlen=span)

    def play(self, layers: Layers, epsilon: float, steps: int) -> dict[str, NDArray[Any]]:
        """Up to `steps` samples of every environment, as one pytree with leaves (n, ...)."""
        made: list[dict[str, NDArray[Any]]] = []
        while len(made) < steps:
            action = forward(layers, self.obs)[0].argmax(axis=1)
            explore = self.rng.random(self.count) < epsilon
            action = np.where(explore, self.rng.integers(0, ACTIONS, self.count), action)
            before, real = self.obs, ~self.resetting
            self.obs, reward, terminated, truncated, _ = self.envs.step(action)
            self.resetting = terminated | truncated
            self.recent.append(Step(before, action, reward, self.obs, terminated, self.resetting, real))
            if len(self.recent) == self.span:
                made.append(self._sample())
        return {key: np.concatenate([one[key] for one in made]).astype(leaf.dtype) for key, leaf in example().items()}

    def _sample(self) -> dict[str, NDArray[Any]]:
        """Make samples that begin with the oldest of the recent steps, for every environment in which that step was not a reset."""
        first = self.recent[0]
        going, factor = first.real.copy(), np.ones(self.count)  # episodes that go on, and the discount so far
        total, reached, over = np.zeros(self.count), first.next_obs, np.zeros(self.count, np.bool_)
        for step in self.recent:
            total += factor * step.reward * going
            factor = np.where(going, factor * self.discount, factor)
            reached = np.where(going[:, None], step.next_obs, reached)
            over |= going & step.terminated
            going &= ~step.ended
        sample = {"obs": first.obs, "action": first.action, "reward": total, "next_obs": reached, "discount": np.where(over, 0.0, factor)}
        return {key: np.asarray(value)[first.real] for key, value in sample.items()}

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def evaluate(layers: Layers, episodes: int, seed: int) -> float:
    """The mean return of `episodes` greedy episodes, each in its own environment."""
    envs = _make(episodes)
    try:
        obs, _ = envs.reset(seed=seed)
        returns, playing = np.zeros(episodes), np.ones(episodes, np.bool_)
        while playing.any():
            obs, reward, terminated, truncated, _ = envs.step(forward(layers, obs)[0].argmax(axis=1))
            returns += reward * playing
            playing &= ~(terminated | truncated)
        return float(returns.mean())
    finally:
        envs.close()
