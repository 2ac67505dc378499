"""vLLM and SGLang over HTTP: tokens in, tokens and log-probabilities out, as training needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from echo_rl.backbones.base import BackboneError, Completion, Prompt, Usage, tokens_of
from echo_rl.backbones.openai import openai_usage
from echo_rl.backbones.remote import RemoteBackbone


class VllmBackbone(RemoteBackbone):
    """A vLLM server, or another with its form of completions, such as Echo's endpoint.

    Args:
        model: The name under which it serves the model.
        url: Its address without a path, such as ``http://127.0.0.1:8000``.
        variable: The variable of its key, if it wants one.
        **options: Those of ``RemoteBackbone``.
    """

    def __init__(self, model: str, url: str = "http://127.0.0.1:8000", **options: Any) -> None:
        super().__init__(model, url, **options)

    def generate(
        self, prompts: Sequence[Prompt], n: int = 1, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = (), logprobs: bool = False
    ) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. Tokens always come; log-probabilities are those of the drawn tokens."""
        bodies = [self._body(p, max_tokens, temperature, stop) | {"n": n, "return_token_ids": True} | ({"logprobs": 0} if logprobs else {}) for p in prompts]
        return self.together("/v1/completions", bodies, _choices)

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        events = self.api.events("/v1/completions", self._body(prompt, max_tokens, temperature, stop) | {"stream": True})
        return self.pieces(events, lambda e: "".join(c.get("text") or "" for c in e["choices"]), lambda e: any(c.get("finish_reason") for c in e["choices"]))

    def pause(self) -> None:
        """Hold every request between two tokens, and drop cached keys and values; the server must run with VLLM_SERVER_DEV_MODE=1."""
        self.api.post("/pause?mode=keep&clear_cache=true", {})

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.api.post("/resume", {})

    def update_weights(self, path: str, version: int) -> None:
        """Raise BackboneError: vLLM takes weights over NCCL or CUDA IPC, not over HTTP. Pause, send them by vLLM's own transfer, and resume."""
        raise BackboneError("vLLM takes no weights over HTTP; pause(), send them by vLLM's weight transfer (NCCL or IPC), then resume()")

    def _body(self, prompt: Prompt, max_tokens: int, temperature: float | None, stop: Sequence[str]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.model, "prompt": _plain(prompt, self.name), "max_tokens": max_tokens}
        return body | ({} if temperature is None else {"temperature": temperature}) | ({"stop": list(stop)} if stop else {})


class SglangBackbone(RemoteBackbone):
    """An SGLang server and its own interface.

    Args:
        model: A name for prices and errors; the server has only one model.
        url: Its address.
        **options: Those of ``RemoteBackbone``.
    """

    def __init__(self, model: str, url: str = "http://127.0.0.1:30000", **options: Any) -> None:
        super().__init__(model, url, **options)

    def generate(
        self, prompts: Sequence[Prompt], n: int = 1, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = (), logprobs: bool = False
    ) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. The server tells tokens only together with log-probabilities."""
        bodies = [self._body(p, max_tokens, temperature, stop, n) | {"return_logprob": logprobs} for p in prompts]
        return self.together("/generate", bodies, _answers)

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        given = ""

        def text(event: dict[str, Any]) -> str:
            # Each event carries the whole text so far.
            nonlocal given
            new: str = event["text"][len(given) :]
            given += new
            return new

        events = self.api.events("/generate", self._body(prompt, max_tokens, temperature, stop, 1) | {"stream": True})
        return self.pieces(events, text, lambda e: bool(e["meta_info"].get("finish_reason")))

    def pause(self) -> None:
        """Hold every request between two tokens; their keys and values are computed again afterwards."""
        self.api.post("/pause_generation", {"mode": "retract"})

    def resume(self) -> None:
        """Go on after ``pause``."""
        self.api.post("/continue_generation", {})

    def update_weights(self, path: str, version: int) -> None:
        """Load the weights of a folder on the server's disk and drop cached keys and values. Raise BackboneError if the server refuses."""
        answer = self.api.post("/update_weights_from_disk", {"model_path": path, "weight_version": str(version), "flush_cache": True})
        if not (isinstance(answer, dict) and answer.get("success")):
            raise BackboneError(f"{self.api.url} did not load {path!r}: {answer}")

    def _body(self, prompt: Prompt, max_tokens: int, temperature: float | None, stop: Sequence[str], n: int) -> dict[str, Any]:
        plain = _plain(prompt, self.name)
        sampling: dict[str, Any] = {"max_new_tokens": max_tokens, "n": n}
        sampling |= ({} if temperature is None else {"temperature": temperature}) | ({"stop": list(stop)} if stop else {})
        return {"text" if isinstance(plain, str) else "input_ids": plain, "sampling_params": sampling}


def _plain(prompt: Prompt, who: str) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    tokens = tokens_of(prompt)
    if tokens is None:
        raise ValueError(f"{who} takes tokens and texts; write the conversation with the model's own chat template first")
    return tokens


def _choices(answer: Any) -> list[Completion]:
    usage, found = openai_usage(answer), []
    for i, choice in enumerate(answer["choices"]):
        tokens = tuple(choice["token_ids"])
        logprobs = tuple(choice["logprobs"]["token_logprobs"]) if choice.get("logprobs") else None
        _same_length(tokens, logprobs)
        versions = tuple(choice["versions"]) if choice.get("versions") else None
        found.append(Completion(choice["text"], choice["finish_reason"], usage if i == 0 else Usage(), tokens, logprobs, versions))
    return found


def _answers(answer: Any) -> list[Completion]:
    found = []
    for i, one in enumerate(answer if isinstance(answer, list) else [answer]):
        meta = one["meta_info"]
        drawn = meta.get("output_token_logprobs")
        tokens, logprobs = (None, None) if drawn is None else (tuple(d[1] for d in drawn), tuple(float(d[0]) for d in drawn))
        finish = meta["finish_reason"]
        # Every answer repeats the prompt, which is counted once.
        usage = Usage(meta["prompt_tokens"] if i == 0 else 0, meta["completion_tokens"], (meta.get("cached_tokens") or 0) if i == 0 else 0)
        version = meta.get("weight_version")
        versions = None if version is None else (version,) * meta["completion_tokens"]
        found.append(Completion(one["text"], finish["type"] if isinstance(finish, dict) else str(finish), usage, tokens, logprobs, versions))
    return found


def _same_length(tokens: tuple[int, ...], logprobs: tuple[float, ...] | None) -> None:
    if logprobs is not None and len(logprobs) != len(tokens):
        raise BackboneError(f"the server told {len(tokens)} tokens and {len(logprobs)} log-probabilities")
