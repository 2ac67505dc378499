"""Gymnasium: vector environments that send what happens in them to a learner.

Transitions, for a learner's stream or a replay table:

    envs = Recorder(gymnasium.make_vec("CartPole-v1", 8), client)      # client: Client(address, transition_example(envs))
    obs, _ = envs.reset(seed=0)
    while True:
        obs, reward, terminated, truncated, _ = envs.step(policy(obs))

Steps, for a table of steps (n-step returns, windows, frame stacks):

    envs = StepRecorder(gymnasium.make_vec("CartPole-v1", 8), client)  # client: Client(address, Steps(step_example(envs)))

Whole episodes of varying length:

    envs = EpisodeRecorder(gymnasium.make_vec("CartPole-v1", 8), client)    # client: Client(address, episode_example(envs))
"""

from __future__ import annotations

from typing import Any

import numpy as np
import optree
from gymnasium.vector import AutoresetMode, VectorEnv

from echo_core import Client, Ragged, TrajectoryAccumulator

from ._episodes import Happened, Watcher
from ._spaces import zeros

__all__ = ["EpisodeRecorder", "Recorder", "StepRecorder", "episode_example", "step_example", "transition_example"]


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


def episode_example(envs: VectorEnv, most: int = 1000) -> dict[str, Any]:
    """The example of one episode, as an `EpisodeRecorder` of these environments sends it.

        {"steps": {"obs", "action", "reward"},              # Ragged: one row for each step
         "end": {"obs", "terminated", "truncated"}}         # the observation that the last action led to, and how the episode ended

    Args:
        most: the most steps of an episode.

    Raises:
        TypeError: as `transition_example`.
    """
    step, flag = step_example(envs), np.zeros((), bool)
    rows = optree.tree_map(lambda leaf: Ragged(leaf.dtype, leaf.shape, most=most), step)
    return {"steps": rows, "end": {"obs": step["obs"], "terminated": flag, "truncated": flag}}


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
        _check_known(step)
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


class EpisodeRecorder(Watcher):
    """Sends each episode as one sample of varying length when it ends, and changes nothing else.

    An episode of more than `most` steps is sent in pieces, each of which but the last has `truncated` set. If the caller resets an environment
    within its episode, the episode is sent as truncated. As in `Recorder`, steps that only reset are not sent.

    Args:
        env, timeout, autoreset_mode: as for `Recorder`. The episodes that were not accepted are lost.
        client: connected with `episode_example(env, most)`.
        most: as for `episode_example`.

    Raises:
        ValueError: as `Recorder`. The rest of every episode in which a step could not be read is not sent, so that no episode has a gap.
    """

    def __init__(
        self,
        env: VectorEnv,
        client: Client,
        timeout: float | None = None,
        *,
        most: int = 1000,
        autoreset_mode: AutoresetMode | str | None = None,
    ) -> None:
        super().__init__(env, autoreset_mode)
        self._client, self._timeout, self._most = client, timeout, most
        example = episode_example(env, most)
        self._episodes = [TrajectoryAccumulator(example) for _ in range(self.num_envs)]
        self._following: Any = None  # the observations that the last step led to
        self._gap = np.zeros(self.num_envs, bool)  # the environments in whose episode a step is missing
        self._sending = False

    def _was_reset(self, which: np.ndarray) -> None:
        self._gap = self._gap & ~which
        self._send([self._ended(int(i), False, True) for i in np.flatnonzero(which) if self._episodes[i].counts["steps"]])

    def _lost(self) -> None:
        if not self._sending:
            self._gap = np.ones(self.num_envs, bool)
            for episode in self._episodes:
                episode.reset()
        self._sending = False

    def _happened(self, step: Happened) -> None:
        _check_known(step)
        self._following = step.next_obs
        rows, ended = {"obs": step.obs, "action": step.action, "reward": step.reward}, []
        for i in map(int, np.flatnonzero(step.real)):
            terminated, truncated = bool(step.terminated[i]), bool(step.truncated[i])
            if not self._gap[i]:
                episode = self._episodes[i]
                episode.add("steps", optree.tree_map(lambda leaf, i=i: leaf[i], rows))
                full = episode.counts["steps"] == self._most
                if terminated or truncated or full:
                    ended.append(self._ended(i, terminated, truncated or (full and not terminated)))
            elif terminated or truncated:
                self._gap[i] = False
        self._send(ended)

    def _ended(self, i: int, terminated: bool, truncated: bool) -> dict[str, Any]:
        last = optree.tree_map(lambda leaf: leaf[i], self._following)
        self._episodes[i].add("end", {"obs": last, "terminated": terminated, "truncated": truncated})
        return self._episodes[i].build()

    def _send(self, episodes: list[dict[str, Any]]) -> None:
        if episodes:
            self._sending = True
            self._client.send_batch(episodes, self._timeout)
            self._sending = False


def _check_known(step: Happened) -> None:
    if not step.known.all():
        raise ValueError(
            f"environments {np.flatnonzero(~step.known).tolist()} ended and reset in the same step, and info['final_obs'] does not have their final "
            "observations, so that next_obs is unknown. Make the environments give it (Isaac Lab and others have an option for it), use "
            "AutoresetMode.NEXT_STEP, or use a StepRecorder and a table of steps, which need no final observations"
        )
