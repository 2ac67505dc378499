"""Training of a small policy in an environment that observes numbers: what the trainer needs of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from echo_core import ConfigError
from echo_rl.core.bandwidth import BandwidthEfficiencyTracker
from echo_rl.core.ppo_learner import PPOLearner
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.models.actor_critic import ActorCritic
from echo_rl.rollouts.records import PackedRecords
from echo_rl.rollouts.segment_collector import SegmentRules, draw, leaves_of, spaces_of
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure
from echo_rl.training.config import TrainingConfig
from echo_rl.training.evaluation import EVALUATION_TASKS, evaluated

__all__ = ["SegmentTraining"]

_LEAVES = ("states", "next_states", "actions", "log_probs", "rewards", "terminated", "truncated", "mask")


@dataclass
class _Played:
    reward: float = 0.0
    success: bool | None = None
    fault: str = ""
    late: bool = False
    steps: int = 0
    over: bool = False


class SegmentTraining:
    """A ``PPOLearner``, the rules of its rollouts, and its evaluation.

    Args:
        config: of the run. seed: of the run.
        device: of the learner.
        environment: one of the run, for its spaces.
    """

    kind: Literal["tokens", "segments"] = "segments"

    def __init__(self, config: TrainingConfig, seed: int, device: torch.device, environment: CheckedEnvironment) -> None:
        if config.algorithm != "ppo":
            raise ConfigError(f"algorithm={config.algorithm!r} trains language models, and {config.env_name} observes numbers; use 'ppo'")
        if config.deterministic:
            raise ConfigError("deterministic is for text environments: environments of numbers go on from one segment to the next, and cannot be saved")
        if config.interrupt == "resume":
            raise ConfigError("interrupt='resume' is for text environments: environments of numbers stay with their actor; use 'finish'")
        self.config, self.seed = config, seed
        self.batch = max(1, config.processes)
        if config.num_actors % self.batch:
            raise ConfigError(f"num_actors={config.num_actors} must be a multiple of the {self.batch} actor processes, which step them side by side")
        self.rules = SegmentRules(
            environment=config.env_name,
            seed=seed,
            environments=config.num_actors // self.batch,
            steps=config.train_frequency,
            options=config.env_options,
            max_steps=config.max_steps,
            timeout=config.execution.timeout,
        )
        self.spaces = spaces_of(environment)
        policy = ActorCritic(self.spaces.size, self.spaces.actions, seed=seed)
        self.learner = PPOLearner(policy, config.ppo_rules, device=str(device))
        self.bandwidth = BandwidthEfficiencyTracker()
        self._calls, self._playing = TimedCalls(config.execution.timeout), [environment]

    @property
    def at_once(self) -> int:
        """How many tickets an actor takes together."""
        return self.rules.at_once

    @property
    def leaves(self) -> dict[str, Any]:
        """The example of a record."""
        return leaves_of(self.rules, self.spaces)

    def weights(self) -> dict[str, Any]:
        """What is published: the policy without its values."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.learner.policy.state_dict().items() if name.startswith("actor.")}

    def update(self, records: PackedRecords, version: int, learn: bool) -> dict[str, Any]:
        """Train on a batch, and return its figures. With ``learn=False`` the batch is only counted."""
        batch = records.batch
        returns = np.concatenate([row[:n] for row, n in zip(batch["returns"], batch["ended"], strict=True)])
        figures: dict[str, Any] = {"steps": int(batch["mask"].sum()), "episodes": len(returns), "tokens": 0, "failed": int(batch["failed"].sum())}
        if len(returns):
            figures["reward"] = float(returns.mean())
        for reward in returns.tolist():
            self.bandwidth.record_rollout_step(reward, 0.0)
            self.bandwidth.finish_rollout()
        if learn and batch["mask"].any():
            # (records, steps, environments, ...) -> (steps, all environments, ...)
            rollout = {name: np.concatenate(list(batch[name]), axis=1) for name in _LEAVES}
            found = asdict(self.learner.update(rollout))
            figures |= {"gradient_steps": found.pop("steps"), "loss": found["policy_loss"], **found}
            self.bandwidth.record_learner_update(found["weighted_policy_loss"])
        return figures

    def evaluate(self, episodes: int) -> dict[str, float]:
        """Play episodes that are never trained on, with the likeliest actions."""
        weights, tasks = self.weights(), range(EVALUATION_TASKS, EVALUATION_TASKS + episodes)
        side = min(episodes, 32)
        while len(self._playing) < side:
            self._playing.append(make_environment(self.config.env_name, **self.config.env_options))
        return evaluated([one for first in range(0, episodes, side) for one in self._play(weights, tasks[first : first + side])])

    def _play(self, weights: dict[str, Any], tasks: range) -> list[_Played]:
        """Play one episode in each environment, side by side."""
        played = [_Played() for _ in tasks]
        states = np.zeros((len(tasks), *self.spaces.shape), np.float32)
        self._call(played, states, range(len(tasks)), [partial(self._playing[i].reset, task) for i, task in enumerate(tasks)])
        while running := [i for i, one in enumerate(played) if not one.over]:
            actions, _ = draw(weights, states[running], None)
            calls = [partial(self._step, played[i], self._playing[i], action) for i, action in zip(running, actions.tolist(), strict=True)]
            self._call(played, states, running, calls)
        return played

    def _step(self, one: _Played, environment: CheckedEnvironment, action: int) -> Any:
        transition = environment.step(action + self.spaces.first)
        one.reward, one.steps = one.reward + transition.reward, one.steps + 1
        if "success" in transition.info:
            one.success = bool(transition.info["success"])
        one.over = transition.terminated or transition.truncated or one.steps == self.rules.max_steps
        return transition.observation

    def _call(self, played: list[_Played], states: Any, indices: Sequence[int], calls: Sequence[Callable[[], Any]]) -> None:
        what = [f"environment {self.config.env_name}: evaluation episode {i}" for i in indices]
        for i, found in zip(indices, self._calls.each(calls, what), strict=True):
            if not isinstance(found, BaseException):
                states[i] = found
            elif isinstance(found, EnvironmentFailure):
                played[i].over, played[i].fault, played[i].late = True, str(found), isinstance(found, TimeoutFailure)
                self._playing[i] = make_environment(self.config.env_name, **self.config.env_options)
            else:
                raise found

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs. Episodes that are being played are not in it."""
        return self.learner.state()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises ValueError if it does not fit."""
        self.learner.restore(state)

    def close(self) -> None:
        """Close the environments of the evaluation."""
        for environment in self._playing:
            environment.close()
        self._playing.clear()
        self._calls.close()
