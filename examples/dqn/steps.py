"""CartPole as steps: the example of a step, the worker's code that makes steps, and the evaluation of a policy."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cartpole.network import Layers, forward
from ..cartpole.rollout import make_envs

OBSERVATIONS = 4
ACTIONS = 2


def example() -> dict[str, NDArray[Any]]:
    """The pytree that fixes the contract: one step of one environment. The table makes transitions over several steps of it."""
    return {"obs": np.zeros(OBSERVATIONS, np.float32), "action": np.zeros((), np.int32), "reward": np.zeros((), np.float32)}


class Played(NamedTuple):
    """One step of each environment that made one, as `Client.send_batch` takes it."""

    steps: dict[str, NDArray[Any]]  # leaves (n, ...)
    ends: list[str | None]  # how the episode goes on after each
    streams: NDArray[Any]  # the number of each environment


class Player:
    """Steps `count` environments together with an epsilon-greedy policy."""

    def __init__(self, count: int, seed: int) -> None:
        self.envs = make_envs(count)
        self.count = count
        self.rng = np.random.default_rng(seed)
        self.obs, _ = self.envs.reset(seed=seed)
        # An environment resets itself in the step *after* an end. That step ignores its action and shows a fresh state.
        self.terminated, self.truncated = np.zeros((2, count), np.bool_)  # in the step before

    def step(self, layers: Layers, epsilon: float) -> Played:
        """Step every environment once.

        After a termination, the environment only resets, and nothing is sent. After 500 steps an episode is cut off, and the observation
        from which the learner bootstraps is sent as a boundary: only its `obs` counts.
        """
        action = forward(layers, self.obs)[0].argmax(axis=1)
        explore = self.rng.random(self.count) < epsilon
        action = np.where(explore, self.rng.integers(0, ACTIONS, self.count), action)
        before, sent, boundary = self.obs, ~self.terminated, self.truncated & ~self.terminated
        self.obs, reward, self.terminated, self.truncated, _ = self.envs.step(action)
        ends = np.full(self.count, None, object)
        ends[self.terminated] = "terminated"
        ends[boundary] = "boundary"  # this step only resets, so the environment did not end with it
        made = {"obs": before, "action": action, "reward": reward}
        steps = {key: np.asarray(made[key], leaf.dtype)[sent] for key, leaf in example().items()}
        return Played(steps, list(ends[sent]), np.flatnonzero(sent))

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def evaluate(layers: Layers, episodes: int, seed: int) -> float:
    """The mean return of `episodes` greedy episodes, each in its own environment."""
    envs = make_envs(episodes)
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
