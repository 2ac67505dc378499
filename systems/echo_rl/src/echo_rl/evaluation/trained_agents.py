"""Agents that ``EchoRLTrainer`` trains in the cell's environment before the episodes of the benchmark begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from echo_core import ConfigError, EchoError
from echo_rl.backbones import BackboneUnavailable
from echo_rl.environments import CheckedEnvironment
from echo_rl.evaluation.baselines import CellSettings, NotRun, Spent
from echo_rl.evaluation.judged import JUDGED, forget, judged_by
from echo_rl.training.players import ProposalPlayer
from echo_rl.training.trainer import EchoRLTrainer, TrainingConfig

__all__ = ["EchoRLAgent", "ImpalaAgent", "JudgedAgent", "PPOAgent"]

DEFAULTS: dict[str, Any] = {"total_timesteps": 20_000, "learning_starts": 0, "actor_processes": 0, "evaluation_episodes": 1}
"""A training that fits the machine of a trial: in this process, and without evaluations of its own on the way."""
_OURS = ("env_name", "env_options", "seed", "max_steps", "output_dir")


class EchoRLAgent:
    """Trains a policy, and then acts with its likeliest tokens or actions.

    Fields of ``echo_rl_configs`` decide the rest: ``planning`` and ``replay`` switch those parts on.
    """

    fixed: Mapping[str, Any] = {}  # fields of the training that the method decides

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        given = {**DEFAULTS, **settings.trainer, **self.fixed}
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
        except (EchoError, BackboneUnavailable, ValueError) as error:
            raise NotRun(f"it cannot be trained: {error}") from error
        try:
            metrics = trainer.run()
        except EchoError as error:
            raise NotRun(f"its training has failed: {error}") from error
        self._environment, self._player, self.trained_steps = environment, trainer.player(), metrics.steps
        self._own = not isinstance(self._player, ProposalPlayer)  # whether Echo's engine has made the tokens, which counts what it has found
        self.spent = Spent()

    def begin(self, task_seed: int) -> None:
        """Forget the last episode."""
        self._player.begin()
        self.spent = Spent()

    def act(self, observation: Any) -> Any:
        """The policy's likeliest action."""
        action = self._player.act(observation, self._environment.admissible)
        used, before = self._player.usage, self.spent
        if used.prompt > before.prompt:
            self.spent = Spent(used.prompt, used.made, used.cached if self._own else None, self._player.cost, before.bandwidth)
            if self._own:
                self.spent.called(used.prompt - before.prompt, used.made - before.made, used.cached - (before.cached or 0))
        return action

    def close(self) -> None:
        """Close what the policy holds."""
        getattr(self._player, "close", lambda: None)()


class PPOAgent(EchoRLAgent):
    """Proximal policy optimisation on the environment's reward."""

    fixed: Mapping[str, Any] = {"algorithm": "ppo", "planning": None, "replay": None}


class ImpalaAgent(EchoRLAgent):
    """IMPALA: the policy gradient with V-trace, by the same actors, without plans and without replay."""

    fixed: Mapping[str, Any] = {"algorithm": "impala", "planning": None, "replay": None}


class JudgedAgent(EchoRLAgent):
    """Reinforcement learning from the feedback of a language model (RLAIF), which values each answer; the environment's rewards are not used."""

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        assert settings.backbone is not None
        if settings.trainer.get("actor_processes"):
            raise NotRun("the judge is in this process, so that actor_processes must be 0")
        judged = judged_by(settings.backbone, settings.task, settings.options)
        try:
            super().__init__(environment, replace(settings, task=JUDGED, options=judged))
        finally:
            forget(judged)
