"""Google's generateContent."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from echo_rl.backbones.base import Completion, CompletionRequest, Prompt, Usage, conversation
from echo_rl.backbones.remote import RemoteBackbone

_FINISH = {"STOP": "stop", "MAX_TOKENS": "length"}


class GoogleBackbone(RemoteBackbone):
    """Gemini models. It makes one answer per call, and log-probabilities are not asked for. Options are those of ``RemoteBackbone``."""

    def __init__(self, model: str, url: str = "https://generativelanguage.googleapis.com/v1beta", *, variable: str = "GEMINI_API_KEY", **options: Any) -> None:
        super().__init__(model, url, variable=variable, **options)

    def headers(self, key: str) -> dict[str, str]:
        """Return the header that carries the key."""
        return {"x-goog-api-key": key}

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``."""
        count = len(request.prompts) * request.n
        if request.seed is not None and request.seed + count > 2**31:
            raise ValueError(f"{self.name} takes seeds below {2**31}, and seed={request.seed} needs {count} from it on")
        if request.logprobs:
            raise ValueError(f"{self.name} gives no log-probabilities here; use a local model, vLLM or SGLang")
        bodies = [self._body(p, request.max_tokens, request.temperature, request.stop) for p in request.prompts for _ in range(request.n)]
        for i, body in enumerate(bodies):
            # Models of this interface have defaults of their own below 1.
            body["generationConfig"] |= {"topP": request.top_p} | ({} if request.seed is None else {"seed": request.seed + i})
        return self.together(f"/models/{quote(self.model, safe='')}:generateContent", bodies, _completion)

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        path = f"/models/{quote(self.model, safe='')}:streamGenerateContent?alt=sse"
        events = self.api.events(path, self._body(prompt, max_tokens, temperature, stop))
        return self.pieces(events, _text, lambda e: any(c.get("finishReason") for c in e.get("candidates") or []))

    def _body(self, prompt: Prompt, max_tokens: int, temperature: float | None, stop: Sequence[str]) -> dict[str, Any]:
        messages = conversation(prompt, self.name)
        system = "\n".join(m["content"] for m in messages if m["role"] in ("system", "developer"))
        spoken = [m for m in messages if m["role"] not in ("system", "developer")]
        config: dict[str, Any] = {"maxOutputTokens": max_tokens}
        config |= ({} if temperature is None else {"temperature": temperature}) | ({"stopSequences": list(stop)} if stop else {})
        contents = [{"role": "model" if m["role"] == "assistant" else "user", "parts": [{"text": m["content"]}]} for m in spoken]
        return {"contents": contents, "generationConfig": config} | ({"systemInstruction": {"parts": [{"text": system}]}} if system else {})


def _text(answer: dict[str, Any]) -> str:
    return "".join(p.get("text", "") for c in (answer.get("candidates") or [])[:1] for p in (c.get("content") or {}).get("parts") or [])


def _completion(answer: Any) -> list[Completion]:
    # An answer without candidates says why the prompt itself was refused.
    reason = answer["candidates"][0].get("finishReason", "") if answer.get("candidates") else answer["promptFeedback"]["blockReason"]
    usage = answer.get("usageMetadata") or {}
    made = (usage.get("candidatesTokenCount") or 0) + (usage.get("thoughtsTokenCount") or 0)
    return [Completion(_text(answer), _FINISH.get(reason, reason), Usage(usage.get("promptTokenCount") or 0, made, usage.get("cachedContentTokenCount") or 0))]
