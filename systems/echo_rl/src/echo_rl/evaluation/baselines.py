"""Methods by name: what chooses the actions of a benchmark's episodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from echo_core import ConfigError, EchoError
from echo_rl.backbones import Backbone
from echo_rl.environments import CheckedEnvironment
from echo_rl.kernels import effective_bandwidth_cost

__all__ = ["Agent", "Baseline", "CellSettings", "NotRun", "Spent", "baselines", "find_baseline", "register_baseline"]


class NotRun(EchoError):
    """A method cannot do a task; the message says why. The report shows it in place of figures."""


@dataclass
class Spent:
    """The tokens of an episode. ``cached`` stays None until somebody counts it, and ``cost`` becomes None once a price is missing.

    ``bandwidth`` is the sum of b_eff over the calls; None if nobody counts the cache.
    """

    prompt: int = 0
    made: int = 0
    cached: int | None = None
    cost: float | None = 0.0
    bandwidth: float | None = None

    def called(self, prompt: int, made: int, cached: int) -> None:
        """Count the cost of a call whose cached tokens are known."""
        self.bandwidth = (self.bandwidth or 0.0) + effective_bandwidth_cost(prompt + made, cached)


@runtime_checkable
class Agent(Protocol):
    """Chooses actions. It may have the attribute ``spent``, what it has spent since ``begin``; ``trained_steps``; and the method ``close``."""

    def begin(self, task_seed: int) -> None:
        """An episode begins."""

    def act(self, observation: Any) -> Any:
        """Return the next action. Raise NotRun if it cannot ever act here; BackboneError or EnvironmentFailure end the episode."""


@dataclass(frozen=True)
class CellSettings:
    """The task and settings for which a method is made.

    Attributes:
        task: the name of the environment. options: what it is made with.
        seed: of the cell.
        backbone: the language model, for a baseline that needs one.
        max_steps: after how many actions an episode ends; None leaves it to the environment.
        max_tokens: the most tokens of one answer of a language model.
        trainer: fields of ``TrainingConfig``, for a method that trains.
    """

    task: str
    options: Mapping[str, Any]
    seed: int
    backbone: Backbone | None = None
    max_steps: int | None = None
    max_tokens: int = 256
    trainer: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Baseline:
    """A method.

    Attributes:
        make: is called with the environment that is going to be played, and the settings. It returns the agent, or raises NotRun.
        needs_backbone: whether there is one for each backbone, such as ``react@gpt-4o``.
        without: why it is not run if there are no backbones; "" makes that an error.
        trains: whether the agent has been trained with the cell's seed. Its episodes are then not independent, and tests take each seed as one observation.
        options: from a task's name and options to those that this method needs, such as observations as arrays.
        label: what the report says of it.
    """

    make: Callable[[CheckedEnvironment, CellSettings], Agent]
    needs_backbone: bool = False
    without: str = ""
    trains: bool = False
    options: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = lambda task, options: options
    label: str = ""


def register_baseline(
    name: str,
    make: Callable[[CheckedEnvironment, CellSettings], Agent],
    *,
    needs_backbone: bool = False,
    trains: bool = False,
    options: Callable[[str, Mapping[str, Any]], Mapping[str, Any]] = lambda task, options: options,
    label: str = "",
) -> None:
    """Make a method known by a name, in this process.

    Args:
        name: its name, without ``@``.
        make: called for each cell with the environment that is going to be played, and with the settings. It returns an ``Agent``, or raises NotRun.
        needs_backbone: whether it is run once with each backbone; ``settings.backbone`` then is the language model.
        trains, options: see ``Baseline``.
        label: what the report says of it.

    Raises:
        ConfigError: the name is taken, is empty or has an ``@``, or ``make`` cannot be called.
    """
    if not name or "@" in name:
        raise ConfigError(f"a baseline's name is a text without an @, and {name!r} is not")
    if not callable(make):
        raise ConfigError(f"baseline {name!r}: make has to be callable, and {make!r:.80} is not")
    there = _BASELINES.get(name)
    if there is not None and there.make is not make:
        raise ConfigError(f"there is a baseline {name!r} already; choose another name")
    _BASELINES[name] = Baseline(make, needs_backbone, trains=trains, options=options, label=label)


def baselines() -> list[str]:
    """The names of all methods."""
    return sorted(_BASELINES)


def find_baseline(name: str) -> Baseline:
    """The method of this name. Raises ConfigError if there is none; the message says which there are."""
    if name not in _BASELINES:
        raise ConfigError(f"there is no baseline {name!r}; there are {', '.join(baselines())}, and register_baseline adds others")
    return _BASELINES[name]


class _Random:
    """Random actions: the environment's own ``sample``, one of those that are possible, or one of its space."""

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        self._environment, self._seed, self._rng = environment, settings.seed, np.random.default_rng(settings.seed)
        space = getattr(environment.environment, "action_space", None)
        self._space = space if hasattr(space, "sample") else None
        if self._space is None and not any(hasattr(environment.environment, name) for name in ("sample", "admissible")):
            raise NotRun(f"{settings.task} lists no actions and has no sample(), so that there is no random action")

    def begin(self, task_seed: int) -> None:
        self._rng = np.random.default_rng([self._seed, task_seed])
        if self._space is not None:
            self._space.seed(int(self._rng.integers(1 << 31)))

    def act(self, observation: Any) -> Any:
        own: Any = self._environment.environment
        if hasattr(own, "sample"):
            return own.sample(self._rng)
        if actions := self._environment.admissible:
            return actions[int(self._rng.integers(len(actions)))]
        if self._space is None:
            raise NotRun(f"{self._environment.name} offers no action at this place")
        return self._space.sample()


class _Oracle:
    """The environment's own ``solve()``, which knows the answer: the most that can be reached."""

    def __init__(self, environment: CheckedEnvironment, settings: CellSettings) -> None:
        self._solve = getattr(environment.environment, "solve", None)
        if self._solve is None:
            raise NotRun(f"{settings.task} has no oracle")

    def begin(self, task_seed: int) -> None:
        pass

    def act(self, observation: Any) -> Any:
        assert self._solve is not None
        return self._solve()


def _lazily(module: str, name: str) -> Callable[[CheckedEnvironment, CellSettings], Agent]:
    """A class that is imported when it is first used."""

    def make(environment: CheckedEnvironment, settings: CellSettings) -> Agent:
        from importlib import import_module

        agent: Agent = getattr(import_module(f"echo_rl.evaluation.{module}"), name)(environment, settings)
        return agent

    return make


def _as_numbers(task: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """A small policy reads MiniGrid's view as numbers; the episodes are the same."""
    return {**options, "observation": "array"} if task == "minigrid" else options


_BASELINES: dict[str, Baseline] = {
    "random": Baseline(_Random, label="random actions"),
    "oracle": Baseline(_Oracle, label="the environment's own solver, which knows the answer"),
    "react": Baseline(_lazily("language_agents", "ReAct"), needs_backbone=True, label="thought and action in turn, by a language model that is not trained"),
    "tot": Baseline(_lazily("language_agents", "TreeOfThoughts"), needs_backbone=True, label="a search over thoughts, by a language model that is not trained"),
    "ppo-rlhf": Baseline(
        _lazily("trained_agents", "PPOAgent"), trains=True, options=_as_numbers, label="PPO on the reward of the environment, without human feedback"
    ),
    "echo-rl": Baseline(_lazily("trained_agents", "EchoRLAgent"), trains=True, options=_as_numbers, label="EchoRLTrainer, as echo_rl_configs says"),
    "impala": Baseline(
        _lazily("trained_agents", "ImpalaAgent"), trains=True, options=_as_numbers, label="IMPALA: V-trace on the same actors, without plans and replay"
    ),
    "rlaif": Baseline(
        _lazily("trained_agents", "JudgedAgent"),
        needs_backbone=True,
        trains=True,
        without="it needs a judge: name a language model in backbones",
        label="trained on the values that a language model gives to actions, not on the environment's reward",
    ),
}
