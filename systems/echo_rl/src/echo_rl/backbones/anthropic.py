"""Anthropic's messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from echo_rl.backbones.base import Completion, CompletionRequest, Prompt, Usage, conversation
from echo_rl.backbones.remote import RemoteBackbone

_FINISH = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length"}


class AnthropicBackbone(RemoteBackbone):
    """Messages. The interface has neither log-probabilities nor a seed, and makes one answer per call. Options are those of ``RemoteBackbone``."""

    def __init__(self, model: str, url: str = "https://api.anthropic.com/v1", *, variable: str = "ANTHROPIC_API_KEY", **options: Any) -> None:
        super().__init__(model, url, variable=variable, **options)

    def headers(self, key: str) -> dict[str, str]:
        """Return the headers that carry the key and the interface's version."""
        return {"x-api-key": key, "anthropic-version": "2023-06-01"}

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``."""
        if request.seed is not None:
            raise ValueError(f"{self.name} takes no seed; Anthropic's interface has none")
        if request.logprobs:
            raise ValueError(f"{self.name} has no log-probabilities; Anthropic's interface does not tell them")
        # 1 is the interface's own value, and some models refuse top_p beside a temperature.
        extra = {} if request.top_p == 1 else {"top_p": request.top_p}
        bodies = [self._body(p, request.max_tokens, request.temperature, request.stop) | extra for p in request.prompts for _ in range(request.n)]
        return self.together("/messages", bodies, _completion)

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        events = self.api.events("/messages", self._body(prompt, max_tokens, temperature, stop) | {"stream": True})
        return self.pieces(events, lambda e: (e.get("delta") or {}).get("text") or "", lambda e: e.get("type") == "message_stop")

    def _body(self, prompt: Prompt, max_tokens: int, temperature: float | None, stop: Sequence[str]) -> dict[str, Any]:
        messages = conversation(prompt, self.name)
        system = "\n".join(m["content"] for m in messages if m["role"] in ("system", "developer"))
        spoken = [m for m in messages if m["role"] not in ("system", "developer")]
        body: dict[str, Any] = {"model": self.model, "messages": spoken, "max_tokens": max_tokens}
        body |= {"system": system} if system else {}
        return body | ({} if temperature is None else {"temperature": temperature}) | ({"stop_sequences": list(stop)} if stop else {})


def _completion(answer: Any) -> list[Completion]:
    usage = answer["usage"]
    # Input tokens are counted apart from those that were read from the cache or written to it.
    cached = usage.get("cache_read_input_tokens") or 0
    prompt = usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0)
    text = "".join(block.get("text", "") for block in answer["content"])
    return [Completion(text, _FINISH.get(answer["stop_reason"], answer["stop_reason"]), Usage(prompt, usage["output_tokens"], cached))]
