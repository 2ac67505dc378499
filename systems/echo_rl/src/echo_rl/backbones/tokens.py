"""vLLM and SGLang over HTTP: tokens in, tokens and log-probabilities out, as training needs them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from echo_rl.backbones.base import BackboneError, Completion, CompletionRequest, Prompt, Usage, tokens_of
from echo_rl.backbones.openai import openai_usage
from echo_rl.backbones.remote import RemoteBackbone

LEAST = -1000.0
"""No token is drawn whose log-probability is this small, since its probability is 0 in every floating-point format."""

_NEUTRAL = {"top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0}
"""Sent with every request, since servers have defaults for these that a learner does not know: vLLM takes them from the model's generation_config.json,
and SGLang from its option --preferred-sampling-params. These values change nothing."""


class VllmBackbone(RemoteBackbone):
    """A vLLM server, or another with its form of completions, such as Echo's endpoint.

    Args:
        model: The name under which the server offers the model.
        url: Its address without a path, such as ``http://127.0.0.1:8000``.
        variable: The name of the environment variable that has its key, if it needs one.
        processed: Whether the server's log-probabilities are those after temperature and top_p, as learning needs them: vLLM's are if it was started with
            ``--logprobs-mode processed_logprobs``, and Echo's endpoint's always are. Otherwise log-probabilities can be asked for only at the temperatures
            0 and 1 with ``top_p=1``, where both are the same.
        **options: The options of ``RemoteBackbone``.
    """

    def __init__(self, model: str, url: str = "http://127.0.0.1:8000", *, processed: bool = False, **options: Any) -> None:
        self.processed = processed
        super().__init__(model, url, **options)

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. Tokens always come; log-probabilities are those of the drawn tokens.

        Raise ValueError if log-probabilities are asked for at a temperature, or a top_p, at which this server tells others than those of the draw.
        """
        if request.logprobs and not self.processed and (request.temperature not in (0, 1) or (request.top_p < 1 and request.temperature != 0)):
            raise ValueError(
                f"{self.name} tells log-probabilities before temperature={request.temperature} and top_p={request.top_p}, which a learner cannot use: draw "
                "with both at 1, or start vLLM with --logprobs-mode processed_logprobs and give processed=True"
            )
        extra: dict[str, Any] = {"n": request.n, "return_token_ids": True, "top_p": request.top_p} | ({"logprobs": 0} if request.logprobs else {})
        bodies = [self._body(p, request.max_tokens, request.temperature, request.stop) | extra for p in request.prompts]
        if request.seed is not None:
            for i, body in enumerate(bodies):
                body["seed"] = request.seed + i * request.n  # The server adds the number of the choice.
        return self.together("/v1/completions", bodies, lambda answer: _choices(answer, request.logprobs, request.n))

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
        body: dict[str, Any] = {"model": self.model, "prompt": _plain(prompt, self.name), "max_tokens": max_tokens, "top_p": 1.0, **_NEUTRAL}
        return body | ({} if temperature is None else {"temperature": temperature}) | ({"stop": list(stop)} if stop else {})


class SglangBackbone(RemoteBackbone):
    """An SGLang server and its own interface.

    Args:
        model: A name for prices and errors; the server has only one model.
        url: Its address.
        deterministic: Whether the server was started with ``--enable-deterministic-inference``. Only then does it follow a seed.
        **options: The options of ``RemoteBackbone``.
    """

    def __init__(self, model: str, url: str = "http://127.0.0.1:30000", *, deterministic: bool = False, **options: Any) -> None:
        self.deterministic = deterministic
        super().__init__(model, url, **options)

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. The server tells tokens only together with log-probabilities.

        Raise ValueError for log-probabilities with ``top_p`` below 1, since this server's don't know of it, and for a seed that the server would not follow.
        """
        if request.logprobs and request.top_p < 1 and request.temperature != 0:
            raise ValueError(f"{self.name} tells log-probabilities before top_p={request.top_p}, which a learner cannot use: draw with top_p 1")
        if request.seed is not None and not self.deterministic:
            raise ValueError(f"{self.name} follows no seed: start SGLang with --enable-deterministic-inference and give deterministic=True")
        # All choices of a request have one seed, and would be equal; so each has its own request.
        times, each = (1, request.n) if request.seed is None else (request.n, 1)
        bodies = [
            self._body(p, request.max_tokens, request.temperature, request.stop, each) | {"return_logprob": request.logprobs}
            for p in request.prompts
            for _ in range(times)
        ]
        for i, body in enumerate(bodies):
            body["sampling_params"] |= {"top_p": request.top_p} | ({} if request.seed is None else {"sampling_seed": request.seed + i})
        return self.together("/generate", bodies, lambda answer: _answers(answer, request.logprobs, each))

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
        sampling: dict[str, Any] = {"max_new_tokens": max_tokens, "n": n, "top_p": 1.0, **_NEUTRAL}
        sampling |= ({} if temperature is None else {"temperature": temperature}) | ({"stop": list(stop)} if stop else {})
        return {"text" if isinstance(plain, str) else "input_ids": plain, "sampling_params": sampling}


def _plain(prompt: Prompt, who: str) -> str | list[int]:
    if isinstance(prompt, str):
        return prompt
    tokens = tokens_of(prompt)
    if tokens is None:
        raise ValueError(f"{who} takes tokens and texts; write the conversation with the model's own chat template first")
    return tokens


def _choices(answer: Any, asked: bool, n: int) -> list[Completion]:
    usage, found = openai_usage(answer), []
    for i, choice in enumerate(answer["choices"]):
        told = choice["logprobs"]["token_logprobs"] if choice.get("logprobs") else None
        tokens, logprobs = checked(choice["token_ids"], told, asked, choice["finish_reason"])
        versions = tuple(choice["versions"]) if choice.get("versions") else None
        found.append(Completion(choice["text"], choice["finish_reason"], usage if i == 0 else Usage(), tokens, logprobs, versions))
    return _all(found, n)


def _answers(answer: Any, asked: bool, n: int) -> list[Completion]:
    found = []
    for i, one in enumerate(answer if isinstance(answer, list) else [answer]):
        meta = one["meta_info"]
        drawn = meta.get("output_token_logprobs")
        finish = meta["finish_reason"]
        finish = finish["type"] if isinstance(finish, dict) else finish
        tokens, logprobs = None, None
        if drawn is not None or asked:
            tokens, logprobs = checked([d[1] for d in drawn or ()], None if drawn is None else [d[0] for d in drawn], asked, finish)
        # Every answer repeats the prompt, which is counted once.
        usage = Usage(meta["prompt_tokens"] if i == 0 else 0, meta["completion_tokens"], (meta.get("cached_tokens") or 0) if i == 0 else 0)
        version = meta.get("weight_version")
        versions = None if version is None else (version,) * meta["completion_tokens"]
        found.append(Completion(one["text"], finish, usage, tokens, logprobs, versions))
    return _all(found, n)


def _all(found: list[Completion], n: int) -> list[Completion]:
    if len(found) != n:
        raise BackboneError(f"the server gave {len(found)} continuations of a prompt, and {n} were asked for")
    return found


def checked(tokens: Any, logprobs: Any, asked: bool, finish: Any) -> tuple[tuple[int, ...], tuple[float, ...] | None]:
    """Return a server's tokens and log-probabilities. Raise BackboneError for those that a learner must not take.

    A token is a whole number of at least 0. The log-probability of a token that was drawn is a finite number, at most 0, and not one like -9999 that
    servers write for minus infinity. An answer that was broken off, for example with "abort", is refused.
    """
    if finish not in ("stop", "length"):
        raise BackboneError(f"the server broke an answer off: finish_reason={finish!r}")
    if not isinstance(tokens, list) or not all(isinstance(t, int) and not isinstance(t, bool) and t >= 0 for t in tokens):
        raise BackboneError(f"the server told no tokens, or tokens that are no whole numbers: {str(tokens)[:100]}")
    if logprobs is None:
        if asked:
            raise BackboneError("the server told no log-probabilities, although they were asked for")
        return tuple(tokens), None
    if len(logprobs) != len(tokens):
        raise BackboneError(f"the server told {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    for value in logprobs:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not LEAST < value <= 1e-5:
            raise BackboneError(f"the server told the log-probability {value!r} of a token that it drew")
    return tuple(tokens), tuple(min(float(value), 0.0) for value in logprobs)
