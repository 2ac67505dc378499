"""What every backbone offers: continuations of prompts by some language model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from echo_rl.backbones.prices import Prices
from echo_rl.checks import check, optional, real, whole

Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""A text, tokens, or a conversation of ``{"role": ..., "content": ...}``."""


class BackboneUnavailable(RuntimeError):
    """A backbone lacks what it needs, such as a key or a library; the message names it."""


class BackboneError(RuntimeError):
    """A backbone's server refused a call, or did not answer.

    Attributes:
        status: The HTTP status, or None if there was no answer.
        retry_after: After how many seconds the server wants to be asked again, or None.
        partial: The text that a stream has given before it broke.
    """

    def __init__(self, message: str, status: int | None = None, retry_after: float | None = None, partial: str = "") -> None:
        super().__init__(message)
        self.status, self.retry_after, self.partial = status, retry_after, partial


@dataclass(frozen=True)
class Usage:
    """Tokens that were paid for. ``cached`` is the part of ``prompt`` that came from the server's cache."""

    prompt: int = 0
    made: int = 0
    cached: int = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(self.prompt + other.prompt, self.made + other.made, self.cached + other.cached)


@dataclass(frozen=True)
class Completion:
    """One continuation.

    Attributes:
        text: Its text, without the stop string that ended it.
        finish: ``"stop"``, ``"length"``, or the server's own word for another end.
        usage: Its share of its call: the first completion of a call carries the call's usage, and its others carry none, so that a sum counts each token once.
        tokens: All tokens that were made, if the backbone tells them.
        logprobs: The log-probability of each token, if they were asked for.
        versions: The version of the weights that made each token, if known.
        cost: What the usage costs by the user's prices, in their currency, or None if no price is known.
    """

    text: str
    finish: str
    usage: Usage = Usage()
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    versions: tuple[int | str, ...] | None = None
    cost: float | None = None


@dataclass(frozen=True)
class CompletionRequest:
    """The arguments of ``Backbone.generate``, checked."""

    prompts: tuple[Prompt, ...]
    n: int
    max_tokens: int
    temperature: float | None
    stop: tuple[str, ...]
    logprobs: bool
    seed: int | None
    top_p: float


class Backbone(ABC):
    """A language model that continues prompts. Use it as a context manager, or call ``close``. Methods may be called by several threads.

    An adapter of your own defines ``complete``, ``stream`` and ``close``.

    Attributes:
        name: The name that the user has given it.
        model: The model's id for its server, or its path.
    """

    name: str
    model: str
    prices: Prices = Prices({})

    def __enter__(self) -> Backbone:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def generate(
        self,
        prompts: Sequence[Prompt],
        n: int = 1,
        max_tokens: int = 256,
        temperature: float | None = 1.0,
        stop: Sequence[str] = (),
        logprobs: bool = False,
        *,
        seed: int | None = None,
        top_p: float = 1.0,
    ) -> list[Completion]:
        """Continue each prompt ``n`` times.

        Args:
            prompts: Texts, token sequences or conversations, as far as the backbone takes them.
            n: How many continuations each prompt gets.
            max_tokens: The largest number of new tokens for each prompt.
            temperature: The temperature of the draw. None leaves it to the server, because some models refuse this option.
            stop: Strings that end a continuation. It ends before the first of them.
            logprobs: Whether to ask for log-probabilities.
            seed: The seed of the first continuation. Each further one, in the order of the result, has the seed of the one before plus 1. None draws anew at
                each call.
            top_p: Tokens are drawn from the likeliest ones whose probabilities sum to at least this, greater than 0 and at most 1.

        Returns:
            ``len(prompts) * n`` completions. Those of one prompt lie side by side.

        Raises:
            ValueError: For a prompt or an option that this backbone does not take.
            BackboneError: If the server refuses, or does not answer in time.
        """
        check("seed", seed, optional(whole(0, 2**63 - 1)))
        check("top_p", top_p, real(most=1, above=0))
        check("n", n, whole(1))
        request = CompletionRequest(tuple(prompts), n, max_tokens, temperature, tuple(stop), logprobs, seed, top_p)
        found = self.complete(request)
        if len(found) != len(request.prompts) * n:
            raise BackboneError(f"{self.name} gave {len(found)} continuations of {len(request.prompts)} prompts, and {n} of each were asked for")
        return found

    @abstractmethod
    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue the prompts of a call of ``generate``, which says what to return and to raise."""

    @abstractmethod
    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Yield one continuation in pieces as they are made; arguments and errors are those of ``generate``. To close the iterator ends the call."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what the backbone holds."""

    def priced(self, found: Completion) -> Completion:
        """Return the completion with its cost."""
        cost = self.prices.cost(self.model, found.usage.prompt, found.usage.made, found.usage.cached)
        return found if cost is None else Completion(**{**vars(found), "cost": cost})


def tokens_of(prompt: Prompt) -> list[int] | None:
    """Return the tokens of a prompt that is a sequence of them, and None for a text or a conversation."""
    if isinstance(prompt, str) or not prompt:
        return None
    numbers = [t for t in prompt if not isinstance(t, Mapping)]
    if len(numbers) != len(prompt):
        return None
    for token in numbers:
        if not isinstance(token, Integral) or isinstance(token, bool) or token < 0:
            raise ValueError(f"a prompt holds {token!r}, which is no token; tokens are whole numbers of at least 0")
    return [int(t) for t in numbers]


def conversation(prompt: Prompt, who: str) -> list[dict[str, Any]]:
    """Return a prompt as messages. Raise ValueError for tokens, which a chat interface does not take."""
    if isinstance(prompt, str):
        return [{"role": "user", "content": prompt}]
    if not prompt or tokens_of(prompt) is not None:
        raise ValueError(f"{who} takes texts and conversations; tokens need a local model, vLLM or SGLang")
    return [dict(m) for m in prompt if isinstance(m, Mapping)]
