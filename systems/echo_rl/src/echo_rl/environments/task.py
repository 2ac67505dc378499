"""What the tasks of a benchmark share: the settings of an episode, its limit of steps, and the scale of its rewards."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from echo_core import ConfigError
from echo_core.base.installing import how_to_install
from echo_rl.checks import Rule, check_fields, optional, real, whole
from echo_rl.environments.base import EnvironmentFailure, checked_seed

__all__ = ["Outcome", "TaskConfig", "TaskEnvironment", "check_task", "needs", "only"]


def only(*values: Any, because: str) -> Rule:
    """One of a few values. The error for others gives the reason."""
    need = " or ".join(map(repr, values))
    return lambda value: None if any(value == allowed and type(value) is type(allowed) for allowed in values) else f"{need}, because {because}"


@dataclass(frozen=True)
class TaskConfig:
    """The settings that all tasks have.

    Attributes:
        max_steps: after how many steps an episode is truncated; None takes the task's own limit.
        reward_scale: every reward is multiplied by it.
        success_threshold: an episode is a success when its score reaches it. Scores are 0 to 1.
        timeout_penalty: is added to the reward of the step that truncates an episode; at most 0.
        device: ``"cpu"``; environments do not compute elsewhere.
        seed: makes another sequence of episodes of the same task. An episode belongs to this seed and that of ``reset``.
        state_encoding_dim: None. Observations are texts or arrays, and a backbone or a policy encodes them.
    """

    max_steps: int | None = None
    reward_scale: float = 1.0
    success_threshold: float = 1.0
    timeout_penalty: float = 0.0
    device: str = "cpu"
    seed: int | None = None
    state_encoding_dim: None = None


def check_task(task: str, config: TaskConfig, **rules: Rule) -> None:
    """Check the shared fields, and those of this task by ``rules``. Raise ConfigError, which names the task and the field."""
    shared = {
        "max_steps": optional(whole(1)),
        "reward_scale": real(above=0),
        "success_threshold": real(above=0, most=1),
        "timeout_penalty": real(most=0),
        "device": only("cpu", because="environments compute on the CPU"),
        "seed": optional(whole(0)),
        "state_encoding_dim": only(None, because="observations are not encoded here: a backbone or a policy does that"),
    }
    try:
        check_fields(config, **{**shared, **rules})
    except ValueError as error:
        raise ConfigError(f"{task}: {error}") from None


@dataclass(frozen=True)
class Outcome:
    """The result of an action.

    Attributes:
        observation: what is seen now.
        reward: of this action, before ``reward_scale``.
        over: whether the task has ended.
        score: of the whole episode so far, 0 to 1.
        info: further figures.
    """

    observation: Any
    reward: float = 0.0
    over: bool = False
    score: float = 0.0
    info: dict[str, Any] | None = None


class TaskEnvironment(ABC):
    """An environment that counts its steps and scales its rewards. A task implements ``_begin`` and ``_act``.

    Args:
        config: the settings.
        steps: the task's own limit of steps.
    """

    #: The name in errors.
    name: ClassVar[str] = "task"

    def __init__(self, config: Any, steps: int) -> None:
        self.config = config
        self.max_steps: int = config.max_steps or steps
        self._taken: int | None = None

    def reset(self, seed: int) -> Any:
        """Begin the episode of this seed, a whole number of at least 0, and return its first observation."""
        seed = checked_seed(self.name, seed)
        self._taken = None
        mixed = seed if self.config.seed is None else int(np.random.SeedSequence([self.config.seed, seed]).generate_state(1, np.uint32)[0])
        observation = self._begin(mixed)
        self._taken = 0
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once. ``info["success"]`` says whether the episode's score has reached ``success_threshold``.

        Raises EnvironmentFailure before the first ``reset`` and after the end of an episode.
        """
        if self._taken is None:
            raise EnvironmentFailure(f"{self.name}: the episode is over; call reset(seed) before the next step")
        outcome = self._act(action)
        self._taken += 1
        truncated = not outcome.over and self._taken >= self.max_steps
        if outcome.over or truncated:
            self._taken = None
        reward = outcome.reward * self.config.reward_scale + (self.config.timeout_penalty if truncated else 0.0)
        return outcome.observation, reward, outcome.over, truncated, {**(outcome.info or {}), "success": outcome.score >= self.config.success_threshold}

    @abstractmethod
    def _begin(self, seed: int) -> Any:
        """Begin the episode of this seed, and return its first observation."""

    @abstractmethod
    def _act(self, action: Any) -> Outcome:
        """Act once in the episode that was begun."""


def needs(task: str, package: str, load: Callable[[], Any]) -> Any:
    """Import what a task needs. Raise ConfigError, which says how to install it, if it is missing."""
    try:
        return load()
    except ImportError as error:
        raise ConfigError(f"environment {task!r} needs {package}, which is not installed ({error}); {how_to_install('echo-rl[envs]')}") from error
