"""Gymnasium: a vector environment that sends every transition to a learner.

envs = Recorder(gymnasium.make_vec("CartPole-v1", 8), client)      # client: Client(address, transition_example(envs))
obs, _ = envs.reset(seed=0)
while True:
    obs, reward, terminated, truncated, _ = envs.step(policy(obs))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper

from echo_core import Client

__all__ = ["Recorder", "transition_example"]


def transition_example(envs: VectorEnv) -> dict[str, Any]:
    """The example of one transition, as a `Recorder` of these environments sends it."""
    observation = optree.tree_map(np.asarray, envs.single_observation_space.sample())
    action = optree.tree_map(np.asarray, envs.single_action_space.sample())
    flag = np.zeros((), bool)
    return {
        "obs": observation,
        "action": action,
        "reward": np.zeros((), np.float32),
        "next_obs": observation,
        "terminated": flag,
        "truncated": flag,
    }


class Recorder(VectorWrapper):
    """Sends `{"obs", "action", "reward", "next_obs", "terminated", "truncated"}` of each environment and step, and changes nothing else.

    `next_obs` is the observation that the action led to. In every autoreset mode, it is never the first observation of the next episode:

    * NEXT_STEP: the step after the end of an episode ignores its action and only resets. It is not a transition and is not sent.
    * SAME_STEP: the end of an episode and the reset are one step, whose final observation is in the info.
    * DISABLED: the caller resets, with `reset(options={"reset_mask": ...})`.

    Args:
        env: the vector environment.
        client: connected with `transition_example(env)`.
        timeout: seconds that `step` waits while the learner accepts nothing; None is the client's default. Raises the same errors as
            `Client.send_batch`. The environments have stepped even if it raises; the next `step` continues from there, and the
            transitions that were not accepted are lost.
    """

    def __init__(self, env: VectorEnv, client: Client, timeout: float | None = None) -> None:
        super().__init__(env)
        self._client, self._timeout = client, timeout
        self._mode = AutoresetMode(env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP))
        self._obs: Any = None
        self._resets = np.zeros(self.num_envs, bool)  # the environments whose next step only resets

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        mask = None if options is None or "reset_mask" not in options else np.array(options["reset_mask"], bool)  # Gymnasium removes it from options
        obs, info = self.env.reset(seed=seed, options=options)
        self._obs = optree.tree_map(np.copy, obs)  # environments may write into the same arrays again
        self._resets = np.zeros(self.num_envs, bool) if mask is None else self._resets & ~mask
        return obs, info

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(actions)
        next_obs = optree.tree_map(np.copy, obs)
        final = next_obs if self._mode is not AutoresetMode.SAME_STEP or "final_obs" not in info else self._finals(next_obs, info)
        made_of = {"obs": self._obs, "action": actions, "reward": reward.astype(np.float32), "next_obs": final}
        transitions = {**made_of, "terminated": terminated, "truncated": truncated}
        made = ~self._resets
        rows = optree.tree_map(lambda leaf: np.asarray(leaf)[made], transitions)
        self._obs = next_obs  # set before sending, because sending may raise and the environments have already stepped
        if self._mode is AutoresetMode.NEXT_STEP:
            self._resets = np.logical_or(terminated, truncated)
        self._client.send_batch(rows, self._timeout)
        return obs, reward, terminated, truncated, info

    def _finals(self, next_obs: Any, info: dict[str, Any]) -> Any:
        """`next_obs` in which final observations of ended episodes replace the first observations of the next episodes."""
        ended = info["_final_obs"]
        final = optree.tree_map(np.copy, next_obs)
        for index in np.flatnonzero(ended):
            one = (
                info["final_obs"][index]
                if isinstance(info["final_obs"], np.ndarray)
                else optree.tree_map(lambda leaf, i=index: leaf[i], info["final_obs"])
            )
            optree.tree_map(lambda into, value, i=index: into.__setitem__(i, value), final, one)
        return final
