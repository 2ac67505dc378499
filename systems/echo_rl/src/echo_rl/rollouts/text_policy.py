"""What a language model needs to act in a text environment: its shape, its tokenizer, and how observations and actions become tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from echo_core import ConfigError
from echo_rl.engine import Engine, Model, ModelConfig
from echo_rl.engine.families.files import read_config
from echo_rl.engine.families.generation import Generation
from echo_rl.serving.text import Tokenizer, tokenizer_of

__all__ = ["CharacterTokenizer", "SmallModel", "TextRules", "text_of"]

PRINTABLE = "".join(map(chr, range(32, 127))) + "\n"


class CharacterTokenizer:
    """One token for each character of an alphabet, one for every other character, and one that ends an answer."""

    def __init__(self, alphabet: str) -> None:
        if not alphabet or len(set(alphabet)) != len(alphabet):
            raise ConfigError(f"alphabet must be a text of different characters, not {alphabet!r:.80}")
        self._alphabet, self._numbers = alphabet, {character: i for i, character in enumerate(alphabet)}
        self.vocab = len(alphabet) + 2
        self.end: int | None = len(alphabet) + 1

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text."""
        return [self._numbers.get(character, len(self._alphabet)) for character in text]

    def decode(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens; an unknown character becomes U+FFFD, and the end becomes nothing."""
        return "".join(self._alphabet[t] if t < len(self._alphabet) else "\N{REPLACEMENT CHARACTER}" for t in tokens if t != self.end)


@dataclass(frozen=True)
class SmallModel:
    """The shape of a transformer that is trained from random weights on single characters.

    Attributes:
        kind, layers, heads, width, inner, context: see ``ModelConfig``.
        alphabet: the characters that it knows. None takes the environment's attribute ``alphabet``, or all printable ASCII characters.
        scale: the deviation of the random weights.
    """

    kind: str = "llama"
    layers: int = 2
    heads: int = 4
    width: int = 64
    inner: int = 128
    context: int = 2048  # the first observations of the five tasks of Echo-RL have up to 1 200 characters
    alphabet: str | None = None
    scale: float = 0.15

    def __post_init__(self) -> None:
        if not 0 < self.scale < 10:
            raise ConfigError(f"scale must be a number above 0 and below 10, not {self.scale!r}")
        self.shape(PRINTABLE if self.alphabet is None else self.alphabet)

    def shape(self, alphabet: str) -> ModelConfig:
        """The shape with the vocabulary of an alphabet. Raises ValueError, which names the field."""
        vocab = CharacterTokenizer(alphabet).vocab
        return ModelConfig(self.kind, vocab, self.layers, self.heads, self.width, self.inner, self.context, tied=True)


@dataclass(frozen=True)
class TextRules:
    """How rollouts of a text environment are made; an actor gets it as JSON.

    Attributes:
        environment, options: what ``make_environment`` takes.
        folder: of the language model, or None for ``small``, whose ``alphabet`` is set.
        group: rollouts of a task.
        max_steps: the most actions of an episode. max_new: the most tokens of an action.
        temperature: at which tokens are drawn.
        timeout: the most seconds that a call of the environment may take.
        slots, kv_tokens, scheduler: of the engine.
        seed: of all draws. With it, the task and the number of a rollout, its draws are those of a synchronous run.
        alone: whether each ticket is generated as a batch by itself, on an engine that has nothing cached. Then its log-probabilities are the same bit by
            bit, whatever else the actor has done.
        swap: whether newer weights are used between two tokens.
        resume: whether rollouts that are not over are handed back where the actor is told to leave, and where newer weights come if the learner can wait
            for the group: their version is less than ``eta`` versions after that of the ticket. Otherwise, newer weights are used between two tokens.
        device: of the engine.
    """

    environment: str
    group: int
    seed: int
    options: dict[str, Any] = field(default_factory=dict)
    folder: str | None = None
    small: SmallModel = SmallModel()
    max_steps: int = 32
    max_new: int = 64
    temperature: float = 1.0
    timeout: float = 30.0
    slots: int = 64
    kv_tokens: int = 16_384
    scheduler: str = "value"
    alone: bool = False
    swap: bool = False
    resume: bool = False
    eta: int = 0
    device: str = "cpu"

    @property
    def at_once(self) -> int:
        """As many tickets as fill the engine's slots."""
        return 1 if self.alone else max(1, self.slots // self.group)

    def shape(self) -> ModelConfig:
        """The shape of the model."""
        if self.folder is not None:
            return read_config(Path(self.folder))
        assert self.small.alphabet is not None
        return self.small.shape(self.small.alphabet)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer of the model."""
        return CharacterTokenizer(self.small.alphabet or PRINTABLE) if self.folder is None else tokenizer_of(Path(self.folder))

    def ends(self) -> tuple[int, ...]:
        """The tokens that end an action."""
        tokenizer = self.tokenizer()
        ends = () if self.folder is None else Generation.read(Path(self.folder), self.shape().vocab).ends
        return ends or (() if tokenizer.end is None else (tokenizer.end,))

    def engine(self, params: Mapping[str, Any], version: int) -> Engine:
        """An engine with published weights, which has nothing cached."""
        shape = self.shape()
        model = Model(shape, tensors(params), self.device, Generation(self.ends()))
        bytes_of_token = 2 * shape.layers * shape.kv_heads * shape.head_dim * 4
        tokens = max(self.kv_tokens, 2 * shape.context)
        return Engine(model, self.slots, min(self.max_new, shape.context), tokens * bytes_of_token, self.scheduler, seed=self.seed, version=version)


def tensors(params: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Copies of published weights as tensors: the published arrays are read-only."""
    return {name: array.detach().clone() if isinstance(array, torch.Tensor) else torch.from_numpy(np.array(array)) for name, array in params.items()}


def text_of(observation: Any, admissible: list[str] | None, name: str) -> str:
    """What the model reads of an observation: the text, and the actions that are possible, each in a line of its own."""
    if not isinstance(observation, str):
        raise ConfigError(f"environment {name}: a language model reads text, and the observation is a {type(observation).__name__}")
    return observation if admissible is None else observation + "\n" + "".join(f"- {action}\n" for action in admissible) + "> "
