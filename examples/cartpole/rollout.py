"""CartPole as experience: the example of a sample, and the worker's code that makes samples."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .network import Layers, forward, log_softmax

OBSERVATIONS = 4
ACTIONS = 2


def example(steps: int) -> dict[str, NDArray[Any]]:
    """The pytree that fixes the contract: one rollout of one environment, ``steps`` long.

    ``obs`` has one more row than there are steps, for bootstrapping. ``episode_return`` is the return
    of the episode that ended on that step, and NaN on every other step. ``version`` is the policy
    version that acted, and ``made_at`` the wall clock (seconds since 1970) at the end. ``worker`` is
    the worker's number, and ``waited`` the share of its recent time that it waited for the learner.
    """
    return {
        "obs": np.zeros((steps + 1, OBSERVATIONS), np.float32),
        "action": np.zeros(steps, np.int8),
        "log_prob": np.zeros(steps, np.float32),
        "reward": np.zeros(steps, np.float32),
        "terminated": np.zeros(steps, np.bool_),
        "valid": np.zeros(steps, np.bool_),
        "episode_return": np.zeros(steps, np.float32),
        "version": np.zeros((), np.int64),
        "made_at": np.zeros((), np.float64),
        "worker": np.zeros((), np.int32),
        "waited": np.zeros((), np.float32),
    }


def make_envs(count: int) -> Any:
    """Return ``count`` CartPole-v1 environments, which reset themselves in the step after an end.

    Raises RuntimeError if this version of Gymnasium resets at another time, because ends of
    episodes would be stored in the wrong place.
    """
    import gymnasium as gym
    from gymnasium.vector import AutoresetMode

    # CartPole's own vector environment steps all of them in one numpy expression.
    envs = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode="vector_entry_point")
    if envs.metadata.get("autoreset_mode") is not AutoresetMode.NEXT_STEP:
        raise RuntimeError(f"this example is for environments that reset in the next step, not {envs.metadata}")
    return envs


class Rollouts:
    """Steps ``count`` CartPole-v1 environments together, and cuts their steps into rollouts of ``steps``."""

    def __init__(self, count: int, steps: int, seed: int) -> None:
        self.envs = make_envs(count)
        self.count, self.steps = count, steps
        self.rng = np.random.default_rng(seed)
        self.obs, _ = self.envs.reset(seed=seed)
        self.returns = np.zeros(count, np.float32)
        # This environment resets itself on the step *after* an end. That step ignores its action,
        # has no reward and shows a fresh state. It is not experience: see ``valid``.
        self.resetting = np.zeros(count, np.bool_)

    def collect(self, actor: Layers, version: int) -> dict[str, NDArray[Any]]:
        """Step the environments and return ``count`` rollouts as one pytree with leaves (count, ...).

        The caller fills ``worker`` and ``waited``.
        """
        count, steps = self.count, self.steps
        batch = {
            key: np.empty((count, *leaf.shape), leaf.dtype) for key, leaf in example(steps).items()
        }
        rows = np.arange(count)
        for t in range(steps):
            log_p = log_softmax(forward(actor, self.obs)[0])
            # There are two actions, so one uniform number decides. The probability of action 1 is exp(log_p).
            action = (self.rng.random(count) < np.exp(log_p[:, 1])).astype(np.int64)
            batch["obs"][:, t] = self.obs
            batch["action"][:, t] = action
            batch["log_prob"][:, t] = log_p[rows, action]
            batch["valid"][:, t] = ~self.resetting
            self.obs, reward, terminated, truncated, _ = self.envs.step(action)
            ended = terminated | truncated
            self.returns += reward
            batch["reward"][:, t] = reward
            batch["terminated"][:, t] = terminated
            batch["episode_return"][:, t] = np.where(ended, self.returns, np.nan)
            self.returns[ended] = 0.0
            self.resetting = ended
        batch["obs"][:, steps] = self.obs
        batch["version"][:] = version
        batch["made_at"][:] = time.time()
        return batch

    def close(self) -> None:
        """Close the environments."""
        self.envs.close()
