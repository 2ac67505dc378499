"""Gymnasium: vector environments that send what happens in them to a learner.

Transitions, for a learner's stream or a replay table:

    envs = Recorder(gymnasium.make_vec("CartPole-v1", 8), client)      # client: Client(address, transition_example(envs))
    obs, _ = envs.reset(seed=0)
    while True:
        obs, reward, terminated, truncated, _ = envs.step(policy(obs))

Steps, for a table of steps (n-step returns, windows, frame stacks):

    envs = StepRecorder(gymnasium.make_vec("CartPole-v1", 8), client)  # client: Client(address, Steps(step_example(envs)))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
from gymnasium.vector import AutoresetMode, VectorEnv

from echo_core import Client

from ._episodes import Happened, Watcher
from ._spaces import zeros

__all__ = ["Recorder", "StepRecorder", "step_example", "transition_example"]


def transition_example(envs: VectorEnv) -> dict[str, Any]:
    """The example of one transition, as a `Recorder` of these environments sends it. It is made of zeros with the spaces' shapes and dtypes.

    Raises:
        TypeError: a space has no fixed shape (`Text`, `Sequence`, `Graph`, `OneOf`); the message names it.
    """
    flag = np.zeros((), bool)
    step = step_example(envs)
    return {**step, "next_obs": step["obs"], "terminated": flag, "truncated": flag}


def step_example(envs: VectorEnv) -> dict[str, Any]:
    """The example of one step, `{"obs", "action", "reward"}`, as a `StepRecorder` of these environments sends it.

    Raises:
        TypeError: as `transition_example`.
    """
    return {
        "obs": zeros(envs.single_observation_space, "the observation"),
        "action": zeros(envs.single_action_space, "the action"),
        "reward": np.zeros((), np.float32),
    }


class Recorder(Watcher):
    """Sends `{"obs", "action", "reward", "next_obs", "terminated", "truncated"}` of each environment and step, and changes nothing else.

    `next_obs` is the observation that the action led to. In every autoreset mode, it is never the first observation of the next episode:

    * NEXT_STEP: the step after the end of an episode ignores its action and only resets. It is not a transition and is not sent.
    * SAME_STEP: the end of an episode and the reset are one step, whose final observation is in `info["final_obs"]`.
    * DISABLED: the caller resets, with `reset(options={"reset_mask": ...})`. Steps between the end and the reset are not sent.

    Actions are sent with the dtype of the action space. They may be lists, arrays of another width, or torch tensors.

    Args:
        env: the vector environment.
        client: connected with `transition_example(env)`.
        timeout: seconds that `step` waits while the learner accepts nothing; None is the client's default. Raises the same errors as
            `Client.send_batch`. The environments have stepped even if it raises; the next `step` continues from there, and the
            transitions that were not accepted are lost.
        autoreset_mode: when the environments reset themselves; needed only if their `metadata` does not say it.

    Raises:
        ValueError: the autoreset mode is unknown. `step` raises it for actions that do not fit into the action space, before the
            environments step. It also raises it if an episode ended in SAME_STEP and its final observation is missing; nothing of that step
            was sent then.
    """

    def __init__(
        self, env: VectorEnv, client: Client, timeout: float | None = None, *, autoreset_mode: AutoresetMode | str | None = None
    ) -> None:
        super().__init__(env, autoreset_mode)
        self._client, self._timeout = client, timeout

    def _happened(self, step: Happened) -> None:
        if not step.known.all():
            raise ValueError(
                f"environments {np.flatnonzero(~step.known).tolist()} ended and reset in the same step, and info['final_obs'] does not have their final "
                "observations, so that next_obs is unknown. Make the environments give it (Isaac Lab and others have an option for it), use "
                "AutoresetMode.NEXT_STEP, or use a StepRecorder and a table of steps, which need no final observations"
            )
        transitions = {
            "obs": step.obs,
            "action": step.action,
            "reward": step.reward,
            "next_obs": step.next_obs,
            "terminated": step.terminated,
            "truncated": step.truncated,
        }
        self._client.send_batch(optree.tree_map(lambda leaf: leaf[step.real], transitions), self._timeout)


class StepRecorder(Watcher):
    """Sends `{"obs", "action", "reward"}` of each environment and step to a table of steps, and changes nothing else.

    Environment i is stream `first_stream + i` of the client. Its episodes end as `"terminated"`, or at a time limit as `"boundary"` with the
    final observation, from which the learner bootstraps. They end as `"truncated"` if the final observation is unknown, if the caller resets
    an environment within its episode, or if a step could not be sent. As in `Recorder`, steps that only reset are not sent.

    Args:
        env, timeout, autoreset_mode: as for `Recorder`. The steps that were not accepted are lost; what follows is an episode of its own.
        client: connected with `Steps(step_example(env))`.
        first_stream: the first stream's number, if the client has several recorders.

    Raises:
        ValueError: as `Recorder`, except that final observations may be missing.
    """

    def __init__(
        self,
        env: VectorEnv,
        client: Client,
        timeout: float | None = None,
        *,
        autoreset_mode: AutoresetMode | str | None = None,
        first_stream: int = 0,
    ) -> None:
        super().__init__(env, autoreset_mode)
        self._client, self._timeout = client, timeout
        self._streams = first_stream + np.arange(self.num_envs)
        self._open = np.zeros(self.num_envs, bool)  # the streams whose last step did not end its episode
        self._broken = np.zeros(self.num_envs, bool)  # the streams whose open episode must end before their next step

    def _was_reset(self, which: np.ndarray) -> None:
        self._broken = self._broken | (which & self._open)

    def _lost(self) -> None:
        self._broken = np.ones(self.num_envs, bool)  # a step of any stream may be missing

    def _happened(self, step: Happened) -> None:
        for stream in self._streams[self._broken & step.real]:
            self._client.end_episode("truncated", self._timeout, stream=int(stream))  # without an open episode it does nothing
        self._broken = self._broken & ~step.real
        limit = step.truncated & ~step.terminated
        ends = np.full(self.num_envs, None, object)
        ends[step.terminated] = "terminated"
        ends[limit & ~step.known] = "truncated"
        rows = {"obs": step.obs, "action": step.action, "reward": step.reward}
        self._send(rows, step.real, ends)
        boundary = limit & step.known & step.real
        if boundary.any():
            nothing = {key: optree.tree_map(np.zeros_like, rows[key]) for key in ("action", "reward")}
            self._send({"obs": step.next_obs, **nothing}, boundary, np.full(self.num_envs, "boundary", object))
        self._open = np.where(step.real, ~(step.terminated | step.truncated), self._open)

    def _send(self, rows: dict[str, Any], which: np.ndarray, ends: np.ndarray) -> None:
        taken = optree.tree_map(lambda leaf: leaf[which], rows)
        self._client.send_batch(taken, self._timeout, ends=list(ends[which]), streams=self._streams[which])
