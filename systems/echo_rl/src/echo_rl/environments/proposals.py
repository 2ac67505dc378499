"""Actions that a language model proposes, and among which a small policy chooses: for models behind an interface that gives no log-probabilities.

A state is what is read and what is proposed, as numbers: signed counts of words in a few buckets ("the hashing trick", Weinberger et al. 2009).
"""

from __future__ import annotations

import importlib
import itertools
import zlib
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from echo_core import ConfigError
from echo_rl.backbones import Backbone, BackboneUnavailable, Usage, backbone
from echo_rl.checks import check_fields, instance, whole
from echo_rl.environments import make_environment, register_environment

__all__ = ["NAME", "Proposals", "ProposalsConfig", "ProposalsEnvironment", "Proposer", "parsed_action"]

NAME = "proposals"
_RULES = "You solve a task step by step. Write your next action behind 'Action:', and nothing else."
_FREE: float | None = 0.0
_TURNS = 8  # how many of the last turns the model sees beside the first observation


@dataclass(frozen=True)
class ProposalsConfig:
    """What is proposed, and how it is read.

    Attributes:
        task, options: the text environment, as ``make_environment`` takes it.
        backbone: the language model's name.
        count: how many actions are proposed at each step.
        width: numbers that stand for a text.
        max_tokens: the most tokens of a proposal.
    """

    task: str
    backbone: str
    options: dict[str, Any] = field(default_factory=dict)
    count: int = 4
    width: int = 64
    max_tokens: int = 64

    def __post_init__(self) -> None:
        name = instance(str)
        check_fields(self, task=name, backbone=name, options=instance(dict), count=whole(2, 16), width=whole(8, 4096), max_tokens=whole(1))


@dataclass(frozen=True)
class Proposals:
    """What a policy chooses from.

    Attributes:
        state: float32 ((1 + count) * width,): the observation, and each action.
        actions: as many as ``count``. If the model proposes fewer different ones, possible actions of the environment follow, and then they repeat.
    """

    state: npt.NDArray[np.float32]
    actions: list[str]


class Proposer:
    """Asks a language model for actions, with the conversation of an episode.

    Args:
        config: what is proposed.
        model: the language model.

    Attributes:
        usage: tokens since ``begin``. cost: of them, None if a price is missing.
    """

    def __init__(self, config: ProposalsConfig, model: Backbone) -> None:
        self.config, self.model = config, model
        self._turns: list[dict[str, str]] = []
        self.usage, self.cost = Usage(), _FREE

    def begin(self) -> None:
        """An episode begins."""
        self._turns, self.usage, self.cost = [], Usage(), _FREE

    def offer(self, observation: str, admissible: list[str] | None) -> Proposals:
        """The actions that are proposed now. Raises ConfigError if the observation is no text, and BackboneError."""
        config = self.config
        if not isinstance(observation, str):
            raise ConfigError(f"environment {config.task}: a language model reads text, and the observation is a {type(observation).__name__}")
        seen = observation if not admissible else f"{observation}\nPossible actions:\n" + "\n".join(f"- {action}" for action in admissible)
        turns = self._turns if len(self._turns) <= 2 * _TURNS else [*self._turns[:2], *self._turns[2 - 2 * _TURNS :]]
        prompt = [{"role": "system", "content": _RULES}, *turns, {"role": "user", "content": seen}]
        found = self.model.generate([prompt], config.count, config.max_tokens, 1.0)
        for completion in found:
            used = completion.usage
            self.usage += used
            cost = completion.cost if used.prompt or used.made else 0.0
            self.cost = None if self.cost is None or cost is None else self.cost + cost
        self._turns.append({"role": "user", "content": observation})
        different = dict.fromkeys([*(parsed_action(completion.text, admissible) for completion in found), *(admissible or [])])
        actions = (list(different) * config.count)[: config.count]
        return Proposals(np.concatenate([_counted(text, config.width) for text in (observation, *actions)]), actions)

    def chosen(self, action: str) -> None:
        """The policy has chosen this action; the conversation goes on with it."""
        self._turns.append({"role": "assistant", "content": f"Action: {action}"})


class ProposalsEnvironment:
    """The task as numbers: an action is the number of a proposal.

    Attributes:
        observation_space, action_space: Gymnasium's spaces.

    Raises:
        ConfigError: the language model is unknown, or lacks a key or a library; or Gymnasium is not installed.
    """

    def __init__(self, config: ProposalsConfig) -> None:
        self.config = config
        try:
            spaces = importlib.import_module("gymnasium.spaces")
        except ImportError as error:
            raise ConfigError(f"backbone {config.backbone!r}: a policy over its proposals needs Gymnasium: pip install gymnasium") from error
        self._environment = make_environment(config.task, **config.options)
        try:
            self._proposer = Proposer(config, backbone(config.backbone))
        except (BackboneUnavailable, ImportError, OSError) as error:
            raise ConfigError(f"backbone {config.backbone!r}: {error}") from error
        self.observation_space = spaces.Box(-1.0, 1.0, ((1 + config.count) * config.width,), np.float32)
        self.action_space = spaces.Discrete(config.count)
        self._offered: Proposals | None = None

    def reset(self, seed: int) -> npt.NDArray[np.float32]:
        """Begin the task."""
        self._proposer.begin()
        return self._read(self._environment.reset(seed))

    def step(self, action: int) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        """Do what was proposed under this number."""
        assert self._offered is not None
        text = self._offered.actions[action]
        self._proposer.chosen(text)
        found = self._environment.step(text)
        over = found.terminated or found.truncated
        # After the last step nothing is proposed; its state is of no use but must be one.
        state = self._offered.state if over else self._read(found.observation)
        return state, found.reward, found.terminated, found.truncated, found.info

    def close(self) -> None:
        """Close the task and the language model."""
        self._environment.close()
        self._proposer.model.close()

    def _read(self, observation: Any) -> npt.NDArray[np.float32]:
        self._offered = self._proposer.offer(observation, self._environment.admissible)
        return self._offered.state


def _counted(text: str, width: int) -> npt.NDArray[np.float32]:
    """Signed counts of words and of pairs of words in ``width`` buckets, as a vector of length 1."""
    words = text.lower().split()
    found = np.zeros(width, np.float32)
    for word in (*words, *map(" ".join, itertools.pairwise(words))):
        number = zlib.crc32(word.encode())
        found[number % width] += 1.0 if number >> 31 else -1.0
    length = float(np.linalg.norm(found))
    return found / length if length else found


def parsed_action(answer: str, admissible: list[str] | None) -> str:
    """The action that an answer means: what stands behind its last ``Action:``, or its last line without one.

    With a list of possible actions, the one that it equals but for case, spaces, quotes and a full stop; otherwise the text as it is, which the environment
    judges.
    """
    _, found, behind = answer.rpartition("Action:")
    text = behind.strip() if found else (answer.strip().splitlines() or [""])[-1].strip()
    if admissible is None:
        return text
    first = (text.splitlines() or [""])[0].strip()
    known = {_plain(action): action for action in admissible}
    return known.get(_plain(first), first)


def _plain(action: str) -> str:
    return " ".join(action.lower().split()).strip(" .'\"`-")


register_environment(NAME, ProposalsEnvironment)
