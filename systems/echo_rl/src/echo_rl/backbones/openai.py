"""OpenAI's chat completions, and every server that speaks them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from echo_rl.backbones.base import Completion, CompletionRequest, Prompt, Usage, conversation
from echo_rl.backbones.remote import RemoteBackbone


class OpenAIBackbone(RemoteBackbone):
    """Chat completions. The interface does not return tokens. So it can be used for evaluation and for prompting methods, but not for training.

    A seed is sent as it is; how far a server follows it is its own matter, and OpenAI promises no equal answers.

    Args:
        model: The model's id.
        url: The server's address. By default it is OpenAI's.
        limit: The field that bounds new tokens: OpenAI's newer models know only ``max_completion_tokens``, most other servers only ``max_tokens``.
        many: Whether the server can make several choices in one call.
        **options: The options of ``RemoteBackbone``.
    """

    def __init__(
        self,
        model: str,
        url: str = "https://api.openai.com/v1",
        *,
        variable: str = "OPENAI_API_KEY",
        limit: str = "max_completion_tokens",
        many: bool = True,
        **options: Any,
    ) -> None:
        self._limit, self._many = limit, many
        super().__init__(model, url, variable=variable, **options)

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``."""
        times = 1 if self._many else request.n
        extra = (
            ({"n": request.n} if self._many and request.n > 1 else {})
            | ({"logprobs": True} if request.logprobs else {})
            | ({} if request.top_p == 1 else {"top_p": request.top_p})
        )
        bodies = [self._body(p, request.max_tokens, request.temperature, request.stop) | extra for p in request.prompts for _ in range(times)]
        if request.seed is not None:
            for i, body in enumerate(bodies):
                body["seed"] = request.seed + i * (request.n // times)
        return self.together("/chat/completions", bodies, _completions)

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        events = self.api.events("/chat/completions", self._body(prompt, max_tokens, temperature, stop) | {"stream": True})
        return self.pieces(events, _delta, lambda e: any(c.get("finish_reason") for c in e.get("choices") or []))

    def _body(self, prompt: Prompt, max_tokens: int, temperature: float | None, stop: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "messages": conversation(prompt, self.name), self._limit: max_tokens}
        return body | ({} if temperature is None else {"temperature": temperature}) | ({"stop": list(stop)} if stop else {})


def _completions(answer: Any) -> list[Completion]:
    usage = openai_usage(answer)
    found = []
    for i, choice in enumerate(sorted(answer["choices"], key=lambda c: c["index"])):
        entries = (choice.get("logprobs") or {}).get("content")
        logprobs = None if entries is None else tuple(float(e["logprob"]) for e in entries)
        found.append(Completion(choice["message"].get("content") or "", choice["finish_reason"], usage if i == 0 else Usage(), logprobs=logprobs))
    return found


def openai_usage(answer: Any) -> Usage:
    """Read the usage of an answer in OpenAI's form."""
    usage = answer.get("usage") or {}
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return Usage(usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0), cached)


def _delta(event: dict[str, Any]) -> str:
    return "".join((c.get("delta") or {}).get("content") or "" for c in event.get("choices") or [])
