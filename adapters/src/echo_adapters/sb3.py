"""Stable-Baselines3: a replay buffer that remote workers fill.

server = Server(sb3_example(env), batch_size=256, transport="tcp://127.0.0.1:5555").start()
model = DQN("MlpPolicy", env, replay_buffer_class=EchoReplayBuffer, replay_buffer_kwargs={"server": server})
model.learn(100_000)
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import ReplayBuffer

from echo_core import EchoTimeoutError, Server

__all__ = ["EchoReplayBuffer", "sb3_example"]


def sb3_example(env: Any) -> dict[str, np.ndarray]:
    """The example of one transition that workers send; `env` is any object with `observation_space` and `action_space`."""
    obs = np.zeros(env.observation_space.shape, env.observation_space.dtype)
    action = np.zeros(env.action_space.shape, env.action_space.dtype)
    number = np.zeros((), np.float32)
    return {"obs": obs, "next_obs": obs, "action": action, "reward": number, "done": np.zeros((), bool), "timeout": np.zeros((), bool)}


class EchoReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that, before it samples, takes all transitions that have arrived at `server`. It also keeps those of the model's own
    environment.

    Workers send actions in the form that their environments take and `model.predict` returns. The buffer keeps actions of a `Box` scaled
    to [-1, 1], because SAC, TD3 and DDPG add and expect scaled actions.

    Args:
        server: a started server with `sb3_example` as its example. The buffer takes its transitions in portions of its `batch_size`.
        wait: seconds to wait for workers while the buffer is empty.
        others: the same as in `ReplayBuffer`.

    Raises:
        ValueError: there is more than one environment, `optimize_memory_usage` is set, a portion exceeds the buffer's size, or actions
            have no bounds.
        EchoTimeoutError: raised by `sample` if the buffer is empty and no worker sent a transition.
    """

    def __init__(self, buffer_size: int, observation_space: spaces.Space, action_space: spaces.Space, *args: Any,
                 server: Server, wait: float = 60.0, **kwargs: Any) -> None:  # fmt: skip
        super().__init__(buffer_size, observation_space, action_space, *args, **kwargs)
        if self.n_envs != 1:
            raise ValueError("EchoReplayBuffer stores transitions one by one; give the model one environment and start more workers")
        if self.optimize_memory_usage:
            raise ValueError("optimize_memory_usage needs transitions in one worker's order, and several workers send them; leave it out")
        if server.batch_size > self.buffer_size:
            raise ValueError(f"batches of {server.batch_size} do not fit into a buffer of {self.buffer_size}; raise buffer_size")
        if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
            raise ValueError(f"actions are scaled to [-1, 1], which needs finite bounds; {action_space} has other bounds")
        self._server, self._wait = server, wait

    def collect(self, timeout: float = 0.0) -> int:
        """Take all transitions that have arrived, and return their number. Waits up to `timeout` seconds for the first batch."""
        taken = 0
        while True:
            try:
                sample = self._server.sample(timeout if not taken else 0.0)
            except EchoTimeoutError:
                return taken
            if sample is None:
                return taken
            self._take(sample.batch)
            taken += len(sample.batch["reward"])

    def _take(self, batch: dict[str, np.ndarray]) -> None:
        """Add a whole batch at once; `add` would add row by row."""
        rows = (self.pos + np.arange(len(batch["reward"]))) % self.buffer_size
        obs, next_obs, action = batch["obs"], batch["next_obs"], batch["action"]
        if isinstance(self.observation_space, spaces.Discrete):  # only these are reshaped: images of another layout would be garbled, not refused
            obs, next_obs = obs.reshape(-1, *self.obs_shape), next_obs.reshape(-1, *self.obs_shape)
        if isinstance(self.action_space, spaces.Box):  # the same as the policies' scale_action, which models call before they add
            low, high = self.action_space.low, self.action_space.high
            action = 2.0 * ((action - low) / (high - low)) - 1.0
        self.observations[rows, 0] = obs
        self.next_observations[rows, 0] = next_obs
        self.actions[rows, 0] = action.reshape(len(rows), -1)
        self.rewards[rows, 0] = batch["reward"]
        self.dones[rows, 0] = batch["done"]
        self.timeouts[rows, 0] = batch["timeout"]
        self.full = self.full or self.pos + len(rows) >= self.buffer_size
        self.pos = (self.pos + len(rows)) % self.buffer_size

    def sample(self, batch_size: int, env: Any = None) -> Any:
        if not self.collect() and self.size() == 0 and not self.collect(self._wait):
            raise EchoTimeoutError(f"no worker sent a transition in {self._wait:g} s; start workers with Client(address, sb3_example(env))")
        return super().sample(batch_size, env)
