"""CartPole as single transitions: what a sample looks like, the worker's side of making them, and how a policy is judged."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cartpole.network import Layers, forward

OBSERVATIONS = 4
ACTIONS = 2


def example() -> dict[str, NDArray[Any]]:
    """The pytree that fixes the contract: one step of one environment.

    `terminated` says that nothing follows `next_obs`; an episode that was cut after 500 steps is not terminated, and is bootstrapped from there.
    """
    return {
        "obs": np.zeros(OBSERVATIONS, np.float32),
        "action": np.zeros((), np.int32),
        "reward": np.zeros((), np.float32),
        "next_obs": np.zeros(OBSERVATIONS, np.float32),
        "terminated": np.zeros((), np.bool_),
    }


def _make(count: int) -> Any:
    import gymnasium as gym

    # CartPole's own vector environment steps all of them in one numpy expression.
    return gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point")


class Player:
    """`count` environments stepped together with an epsilon-greedy policy."""

    def __init__(self, count: int, seed: int) -> None:
        self.envs = _make(count)
        self.count = count
        self.rng = np.random.default_rng(seed)
        self.obs, _ = self.envs.reset(seed=seed)
        # The step *after* an episode's end is the environment's own reset. It isn't experience, and is left out.
        self.resetting = np.zeros(count, np.bool_)

    def play(self, layers: Layers, epsilon: float, steps: int) -> dict[str, NDArray[Any]]:
        """Up to `steps` transitions of every environment, as one pytree with leaves (n, ...)."""
        rows: list[dict[str, NDArray[Any]]] = []
        for _ in range(steps):
            action = forward(layers, self.obs)[0].argmax(axis=1)
            explore = self.rng.random(self.count) < epsilon
            action = np.where(explore, self.rng.integers(0, ACTIONS, self.count), action)
            before, real = self.obs, ~self.resetting
            self.obs, reward, terminated, truncated, _ = self.envs.step(action)
            self.resetting = terminated | truncated
            row = {"obs": before, "action": action, "reward": reward, "next_obs": self.obs, "terminated": terminated}
            rows.append({key: np.asarray(value)[real] for key, value in row.items()})
        return {key: np.concatenate([row[key] for row in rows]).astype(leaf.dtype) for key, leaf in example().items()}

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()


def evaluate(layers: Layers, episodes: int, seed: int) -> float:
    """The mean return of `episodes` played greedily, one in each of as many environments."""
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
