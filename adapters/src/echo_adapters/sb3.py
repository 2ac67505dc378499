"""Stable-Baselines3: a replay buffer that remote workers fill.

server = Server(sb3_example(env), batch_size=256, transport="tcp://127.0.0.1:5555").start()
model = DQN("MlpPolicy", env, replay_buffer_class=EchoReplayBuffer, replay_buffer_kwargs={"server": server})
model.learn(100_000)
model.save("model.zip")                                # without the server, which the model takes again when it is loaded
model = DQN.load("model.zip", env, replay_buffer_kwargs={"server": server})
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from gymnasium import spaces
from stable_baselines3.common.buffers import DictReplayBuffer, ReplayBuffer
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.preprocessing import is_image_space

from echo_core import EchoTimeoutError, Server, Spec

from ._spaces import zeros

__all__ = ["EchoReplayBuffer", "sb3_example"]

_PLAIN = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def sb3_example(env: Any) -> dict[str, Any]:
    """The example of one transition that workers send; `env` is any object with `observation_space` and `action_space`.

    With a `Dict` of observations, `obs` and `next_obs` are dicts. Images have the environment's own layout.

    Raises:
        TypeError: Stable-Baselines3 has no policy for such a space; the message names it.
    """
    space, actions = env.observation_space, env.action_space
    parts = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    for name, part in parts.items():
        if not isinstance(part, _PLAIN):
            inside = f" (its part {name!r} is a {type(part).__name__})" if name else ""
            raise TypeError(
                f"Stable-Baselines3 does not support the {type(space).__name__} observation space{inside}; it takes Box, Discrete, MultiDiscrete, "
                "MultiBinary, and a Dict of these. Wrap the environment, for example with gymnasium.wrappers.FlattenObservation"
            )
    if not isinstance(actions, _PLAIN):
        raise TypeError(f"Stable-Baselines3 does not support the {type(actions).__name__} action space; use Box, Discrete, MultiDiscrete or MultiBinary")
    obs, number, flag = zeros(space, "the observation"), np.zeros((), np.float32), np.zeros((), bool)
    return {"obs": obs, "next_obs": obs, "action": zeros(actions, "the action"), "reward": number, "done": flag, "timeout": flag}


class EchoReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` that, before it samples, takes all transitions that have arrived at `server`. It also keeps those of the model's own
    environment. With a `Dict` of observations, it is a `DictReplayBuffer`.

    Workers send actions in the form that their environments take and `model.predict` returns. The buffer keeps actions of a `Box` scaled
    to [-1, 1], because SAC, TD3 and DDPG add and expect scaled actions. Workers send images in the layout of their environments, or in that
    of the model, which has the channels first.

    Saved models and saved buffers do not contain the server. `DQN.load(path, env, replay_buffer_kwargs={"server": server})` gives it again;
    `model.load_replay_buffer` keeps that of the model; `attach` gives it to a buffer that has none.

    Args:
        server: a started server with `sb3_example` as its example; None if `attach` gives it later. The buffer takes its
            transitions in portions of its `batch_size`.
        wait: seconds to wait for workers while the buffer is empty.
        n_steps: must be 1, here and in the model: transitions of several workers arrive mixed, so none is followed by the next of its episode.
        others: the same as in `ReplayBuffer`. `handle_timeout_termination=False` applies to workers' transitions too.

    Raises:
        ValueError: there is more than one environment, `optimize_memory_usage` is set, `n_steps` is not 1, a portion exceeds the buffer's size,
            actions have no bounds, the server has a replay table, or its example does not belong to the model's spaces.
        EchoTimeoutError: raised by `sample` if the buffer is empty and no worker sent a transition.
        RuntimeError: raised by `sample` and `collect` if the buffer has no server.
    """

    def __new__(cls, buffer_size: int = 0, observation_space: Any = None, *args: Any, **kwargs: Any) -> Any:
        return super().__new__(_OfDicts if cls is EchoReplayBuffer and isinstance(observation_space, spaces.Dict) else cls)

    def __init__(self, buffer_size: int, observation_space: spaces.Space, action_space: spaces.Space, *args: Any,
                 server: Server | None = None, wait: float = 60.0, n_steps: int = 1, **kwargs: Any) -> None:  # fmt: skip
        if kwargs.get("optimize_memory_usage"):
            raise ValueError("optimize_memory_usage needs transitions in one worker's order, and several workers send them; leave it out")
        if isinstance(observation_space, spaces.Dict) and not isinstance(self, DictReplayBuffer):
            raise TypeError(f"{type(self).__name__} is for Dict observations if it derives from EchoReplayBuffer and DictReplayBuffer, in this order")
        kwargs.pop("gamma", None)  # Stable-Baselines3 names it together with n_steps
        model = _caller()
        if (steps := max(n_steps, getattr(model, "n_steps", 1))) != 1:
            raise ValueError(
                f"n_steps={steps} needs transitions in one worker's order, and several workers send them; leave it out, and let workers send the sum "
                "of several rewards, or learn from a table of steps (docs/steps.md)"
            )
        super().__init__(buffer_size, observation_space, action_space, *args, **kwargs)
        if self.n_envs != 1:
            raise ValueError("EchoReplayBuffer stores transitions one by one; give the model one environment and start more workers")
        if isinstance(action_space, spaces.Box) and not action_space.is_bounded():
            raise ValueError(f"actions are scaled to [-1, 1], which needs finite bounds; {action_space} has other bounds")
        self._server: Server | None = None
        self._wait = wait
        if isinstance(server, _NotSaved):
            server = server.server
        elif model is not None and server is not None:
            model.replay_buffer_kwargs = {**model.replay_buffer_kwargs, "server": _NotSaved(server)}
        if server is not None:
            self.attach(server)

    def attach(self, server: Server) -> None:
        """Take transitions from this server from now on.

        Raises:
            ValueError: the server does not belong to this buffer, as above.
        """
        if server.batch_size > self.buffer_size:
            raise ValueError(f"batches of {server.batch_size} do not fit into a buffer of {self.buffer_size}; raise buffer_size")
        if server.tables:
            raise ValueError(
                f"the server has the replay table {next(iter(server.tables))!r}, which never runs empty; leave sampler, capacity and tables out of "
                "Server(...), because the model's own buffer is the replay memory"
            )
        mine = Spec.from_example(sb3_example(self))
        theirs = {leaf.path: leaf for leaf in server.spec.leaves}
        for leaf in mine.leaves:
            other = theirs.pop(leaf.path, None)
            if other is None or other.dtype != leaf.dtype or not self._takes(leaf.path, other.shape, leaf.shape):
                raise ValueError(
                    f"the server's leaf {leaf.path!r} {'is missing' if other is None else f'is {other}'}, and the model needs {leaf}; make the server "
                    "with sb3_example of an environment like the model's, wrapped in the same way"
                )
        if theirs:
            raise ValueError(f"the server's leaf {next(iter(theirs))!r} has no place in a replay buffer; make the server with sb3_example(env)")
        self._server = server

    def _takes(self, path: str, shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
        """Whether a leaf of this shape is one of the model's, or an image that Stable-Baselines3 transposes for the model."""
        image = path.startswith(("obs", "next_obs")) and any(
            is_image_space(part) and part.shape == wanted
            for part in (self.observation_space.spaces.values() if isinstance(self.observation_space, spaces.Dict) else [self.observation_space])
        )
        return shape == wanted or (image and len(shape) == 3 and (shape[2], shape[0], shape[1]) == wanted)

    def collect(self, timeout: float = 0.0) -> int:
        """Take all transitions that have arrived, and return their number. Waits up to `timeout` seconds for the first batch."""
        if self._server is None:
            raise RuntimeError(
                "this buffer has no server; give replay_buffer_kwargs={'server': server} to the model, or to the call that loads it, or call "
                "model.replay_buffer.attach(server)"
            )
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

    def _take(self, batch: dict[str, Any]) -> None:
        """Add a whole batch at once; `add` would add row by row."""
        rows = (self.pos + np.arange(len(batch["reward"]))) % self.buffer_size
        action = batch["action"]
        if isinstance(self.action_space, spaces.Box):  # the same as the policies' scale_action, which models call before they add
            low, high = self.action_space.low, self.action_space.high
            action = 2.0 * ((action - low) / (high - low)) - 1.0
        self._keep(rows, batch["obs"], batch["next_obs"])
        self.actions[rows, 0] = action.reshape(len(rows), -1)
        self.rewards[rows, 0] = batch["reward"]
        self.dones[rows, 0] = batch["done"]
        self.timeouts[rows, 0] = batch["timeout"] & self.handle_timeout_termination
        self.full = self.full or self.pos + len(rows) >= self.buffer_size
        self.pos = (self.pos + len(rows)) % self.buffer_size

    def _keep(self, rows: np.ndarray, obs: Any, next_obs: Any) -> None:
        if not isinstance(self.obs_shape, dict):
            self.observations[rows, 0] = _layout(obs, self.obs_shape)
            self.next_observations[rows, 0] = _layout(next_obs, self.obs_shape)
            return
        for key, shape in self.obs_shape.items():
            self.observations[key][rows, 0] = _layout(obs[key], shape)
            self.next_observations[key][rows, 0] = _layout(next_obs[key], shape)

    def sample(self, batch_size: int, env: Any = None) -> Any:
        if not self.collect() and self.size() == 0 and not self.collect(self._wait):
            raise EchoTimeoutError(f"no worker sent a transition in {self._wait:g} s; start workers with Client(address, sb3_example(env))")
        return super().sample(batch_size, env)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_server": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        server = getattr(getattr(_caller(), "replay_buffer", None), "_server", None)
        if server is not None:
            self.attach(server)


class _OfDicts(EchoReplayBuffer, DictReplayBuffer):
    """The same for a `Dict` of observations."""


class _NotSaved:
    """Keeps the server in a model's `replay_buffer_kwargs`, which are pickled with the model; there, it is empty."""

    def __init__(self, server: Server | None = None) -> None:
        self.server = server

    def __reduce__(self) -> Any:
        return _NotSaved, ()


def _layout(batch: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return observations as the buffer has them: discrete ones with an axis of their own, images with the channels first."""
    if batch.ndim == 4 and batch.shape[1:] != shape:
        return batch.transpose(0, 3, 1, 2)
    return batch.reshape(-1, *shape)


def _caller() -> OffPolicyAlgorithm | None:
    """Return the model that makes or loads this buffer. It gives a buffer class neither its `n_steps`, nor its server when it loads a buffer."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in ("_setup_model", "load_replay_buffer") and isinstance(model := frame.f_locals.get("self"), OffPolicyAlgorithm):
            return model
        frame = frame.f_back
    return None
