"""Agents that ``EchoRLTrainer`` trains in the cell's environment before the episodes of the benchmark begin."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from echo_core import ConfigError, EchoError
from echo_rl.environments import CheckedEnvironment
from echo_rl.evaluation.baselines import CellSettings, NotRun, Spent
from echo_rl.rollouts.segment_collector import draw
from echo_rl.rollouts.text_policy import text_of
from echo_rl.training.segment_training import SegmentTraining
from echo_rl.training.trainer import EchoRLTrainer, TrainingConfig

__all__ = ["EchoRLAgent", "PPOAgent"]

DEFAULTS: dict[str, Any] = {"total_timesteps": 20_000, "learning_starts": 0, "actor_processes": 0, "evaluation_episodes": 1}
"""A training that fits the machine of a trial: in this process, and without evaluations of its own on the way."""
_OURS = ("env_name", "env_options", "seed", "max_steps", "output_dir")


class EchoRLAgent:
    """Trains a policy, and then acts with its likeliest tokens or actions.

    A language model gets the conversation of its training: the observation with the possible actions, its answers, and what the environment has said.
    """

    algorithm: str | None = None

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        given = {**DEFAULTS, **settings.trainer}
        if self.algorithm is not None:
            given["algorithm"] = self.algorithm
        if taken := [name for name in _OURS if name in settings.trainer]:
            raise ConfigError(f"echo_rl_configs: {', '.join(taken)} is the benchmark's to set")
        if unknown := settings.trainer.keys() - {each.name for each in fields(TrainingConfig)}:
            raise ConfigError(f"echo_rl_configs: TrainingConfig has no field {', '.join(sorted(unknown))}")
        given |= {"env_name": settings.task, "env_options": dict(settings.options), "seed": settings.seed, "max_steps": settings.max_steps}
        given.setdefault("evaluation_frequency", given["total_timesteps"])
        given.setdefault("save_frequency", given["total_timesteps"])
        try:
            config = TrainingConfig.load({"rl": given}, env={})
            trainer = EchoRLTrainer(config)
        except (EchoError, ValueError) as error:
            raise NotRun(f"it cannot be trained: {error}") from error
        try:
            metrics = trainer.run()
        except EchoError as error:
            raise NotRun(f"its training has failed: {error}") from error
        self._environment, self._training, self.trained_steps = environment, trainer._training, metrics.steps
        self._weights = self._training.weights()
        self.spent = Spent()
        if not isinstance(self._training, SegmentTraining):
            rules = self._training.rules
            self._rules, self._tokenizer, self._ends = rules, rules.tokenizer(), rules.ends()
            self._engine = rules.engine(self._training.learner.model.weights(), 0)
        self._known: list[int] = []

    def begin(self, task_seed: int) -> None:
        """Forget the last episode."""
        self._known, self.spent = [], Spent()

    def act(self, observation: Any) -> Any:
        """The policy's likeliest action."""
        training = self._training
        if isinstance(training, SegmentTraining):
            actions, _ = draw(self._weights, np.asarray(observation, np.float32)[None], None)
            return int(actions[0]) + training.spaces.first
        self._known += self._tokenizer.encode(text_of(observation, self._environment.admissible, self._environment.name))
        room = min(self._rules.max_new, self._rules.shape().context - len(self._known))
        if room < 1:
            return ""  # the context is full, as at the end of an episode of the training; an empty action does nothing
        request = self._engine.submit(self._known, room, temperature=0.0, stop=self._ends)
        self._engine.run()
        self._known += request.output
        spent = self.spent
        spent.prompt, spent.made = spent.prompt + len(request.prompt), spent.made + len(request.output)
        spent.cached, spent.cost = (spent.cached or 0) + request.cached, 0.0
        made = [token for token in request.output if token not in self._ends]
        return self._tokenizer.decode(made)


class PPOAgent(EchoRLAgent):
    """Proximal policy optimisation on the environment's reward."""

    algorithm = "ppo"
