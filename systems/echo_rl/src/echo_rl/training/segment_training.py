"""Training of a small policy in an environment that observes numbers: what the trainer needs of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from echo_core import ConfigError
from echo_rl.core.bandwidth import BandwidthEfficiencyTracker
from echo_rl.core.ppo_learner import PPOLearner
from echo_rl.core.vtrace import VTraceLearner
from echo_rl.environments import CheckedEnvironment, EnvironmentFailure, make_environment
from echo_rl.environments.proposals import NAME as PROPOSALS
from echo_rl.environments.proposals import ProposalsConfig
from echo_rl.models.actor_critic import ActorCritic
from echo_rl.rollouts.acting import Acting, planner_of, windows_of
from echo_rl.rollouts.records import PackedRecords
from echo_rl.rollouts.segment_collector import SegmentRules, leaves_of, spaces_of
from echo_rl.rollouts.timed_calls import TimedCalls, TimeoutFailure
from echo_rl.training.config import TrainingConfig
from echo_rl.training.evaluation import EVALUATION_TASKS, evaluated
from echo_rl.training.learners import Learners
from echo_rl.training.players import ProposalPlayer, SegmentPlayer
from echo_rl.training.segment_replay import SegmentReplay

__all__ = ["SegmentTraining"]

_LEAVES = ("states", "next_states", "actions", "log_probs", "rewards", "terminated", "truncated", "mask")
_OF_PLANS = ("began", "history")


@dataclass
class _Played:
    reward: float = 0.0
    success: bool | None = None
    fault: str = ""
    late: bool = False
    steps: int = 0
    over: bool = False


class SegmentTraining:
    """A ``PPOLearner`` or a ``VTraceLearner``, the rules of its rollouts, its replay, and its evaluation.

    Args:
        config: of the run. seed: of the run.
        device: of the learner.
        environment: one of the run, for its spaces.
    """

    kind: Literal["tokens", "segments"] = "segments"

    def __init__(self, config: TrainingConfig, seed: int, device: torch.device, environment: CheckedEnvironment) -> None:
        if config.algorithm not in ("ppo", "impala"):
            raise ConfigError(f"algorithm={config.algorithm!r} trains language models, and {config.env_name} observes numbers; use 'ppo' or 'impala'")
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
            planning=config.planning,
        )
        self.spaces = spaces_of(environment)
        kind = VTraceLearner if config.algorithm == "impala" else PPOLearner
        self.planner = None if config.planning is None else planner_of(self.spaces, config.planning, seed)
        if self.planner is None:
            self.learner = kind(ActorCritic(self.spaces.size, self.spaces.actions, seed=seed), config.ppo_rules, str(device))
        else:
            planner = self.planner
            self.learner = kind(planner, config.ppo_rules, str(device), auxiliary=planner.auxiliary_loss, groups=planner.groups())
        self.learners = Learners(self.learner, config.num_learners, config.patience)
        rules = config.replay if config.replay is None or config.replay.seed is not None else replace(config.replay, seed=seed)
        self.replay = None if rules is None else SegmentReplay(rules, self.planner)
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
        """What is published: the policy without its values, or the policy with its plans."""
        needed = "actor." if self.planner is None else ""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.learner.policy.state_dict().items() if name.startswith(needed)}

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
            columns = {name: np.concatenate(list(batch[name]), axis=1) for name in (*_LEAVES, *(() if self.planner is None else _OF_PLANS))}
            found = asdict(self.learners.update(self._rollout(columns, version)))
            if self.replay is not None:
                figures["replay_size"] = len(self.replay)
            figures |= {"gradient_steps": found.pop("steps"), "loss": found["policy_loss"], **found}
            self.bandwidth.record_learner_update(found["weighted_policy_loss"])
        return figures

    def _rollout(self, columns: dict[str, Any], version: int) -> dict[str, Any]:
        """The learner's batch: the columns, as many past segments beside them, and windows in place of states if there are plans."""
        if self.replay is not None:
            count = columns["rewards"].shape[1]
            past = self.replay.draw(count) if len(self.replay) else None
            self.replay.add(columns, version)
            if past is not None:
                columns["weights"] = np.ones_like(columns["rewards"])
                columns = {name: np.concatenate([column, past[name]], axis=1) for name, column in columns.items()}
        if self.planner is not None:
            columns["states"], columns["next_states"] = windows_of(columns["states"], columns["next_states"], columns.pop("began"), columns.pop("history"))
        return columns

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
        states, acting = np.zeros((len(tasks), *self.spaces.shape), np.float32), Acting(self.spaces, len(tasks), self.config.planning)
        self._call(played, states, range(len(tasks)), [partial(self._playing[i].reset, task) for i, task in enumerate(tasks)])
        while running := [i for i, one in enumerate(played) if not one.over]:
            actions, _ = acting.act(weights, states[running], None, running)
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

    def player(self) -> SegmentPlayer | ProposalPlayer:
        """See ``EchoRLTrainer.player``."""
        policy = SegmentPlayer(self.weights(), self.spaces, self.config.planning)
        return ProposalPlayer(policy, ProposalsConfig(**self.config.env_options)) if self.config.env_name == PROPOSALS else policy

    def state(self) -> dict[str, Any]:
        """What ``restore`` needs. Episodes that are being played are not in it."""
        return {**self.learner.state(), "replay": None if self.replay is None else self.replay.state()}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a state. Raises ValueError if it does not fit; nothing has changed then."""
        replay = state.get("replay")
        found = self.replay.loaded(replay) if self.replay is not None and replay is not None else None
        try:
            self.learner.restore(state)
        except BaseException:
            if found is not None:
                found.close()
            raise
        if self.replay is not None and found is not None:
            self.replay.take(found)

    def close(self) -> None:
        """End the other learners, and close the environments of the evaluation."""
        self.learners.close()
        playing, self._playing = self._playing, []
        self._calls.close([each.close for each in playing], [f"environment {self.config.env_name}: close()"] * len(playing))
