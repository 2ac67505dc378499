"""OpenAI's completions and chat completions: what is asked, and the objects of the answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from echo_rl.engine import Request
from echo_rl.serving.errors import ApiError
from echo_rl.serving.messages import before_calls, tool_calls, wants_calls
from echo_rl.serving.text import TextStream, Tokenizer

MOST_LIKELIEST = 20
"""Likeliest tokens of each draw that may be asked for, as in OpenAI's interface."""

LEAST = -9999.0
"""Written for the log-probability of a token that could not be drawn, since JSON has no infinity; OpenAI does the same."""

# Fields without an effect on the answer, and fields that are accepted with the one value that asks for nothing.
_IGNORED = {"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "parallel_tool_calls"}
_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "logit_bias": ({},),
    "best_of": (1,),
    "top_k": (-1, 0),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "echo": (False,),
    "suffix": ("",),
    "response_format": ({"type": "text"},),
}
_COMMON = {"model", "n", "max_tokens", "temperature", "top_p", "stop", "stream", "stream_options", "seed", "logprobs", "return_token_ids"}


@dataclass(frozen=True)
class Job:
    """The contents of one call. ``top`` says how many of the likeliest tokens are returned with the log-probabilities. It is None if the call wants no
    log-probabilities. ``calls`` says whether calls of tools are told apart from the text."""

    chat: bool
    prompts: tuple[tuple[int, ...], ...]
    n: int
    max_new: int
    temperature: float
    top_p: float
    stop: tuple[str, ...]
    stream: bool
    usage: bool
    seed: int | None
    top: int | None
    token_ids: bool
    calls: bool = False

    def all_prompts(self) -> list[tuple[int, ...]]:
        """Return each prompt ``n`` times, in the order of the answer's choices."""
        return [prompt for prompt in self.prompts for _ in range(self.n)]


Prompts = Sequence[Sequence[int]]


def parse(
    body: object, chat: bool, model: str, read: Callable[[Mapping[str, Any]], Prompts], room: int, context: int, most: int, usual: int | None = None
) -> Job:
    """Check the body of a call. Raise ApiError, which names the field, for everything that this endpoint does not support. Nothing is ignored silently.

    ``read`` returns the prompts as tokens. ``room`` bounds new tokens, ``context`` prompt and new tokens together, and ``most`` the choices. ``usual`` is the
    number of new tokens for calls that give none, as the model's files name it.
    """
    if not isinstance(body, dict):
        raise ApiError(400, "the body must be a JSON object")
    known = _COMMON | ({"messages", "tools", "tool_choice", "top_logprobs", "max_completion_tokens"} if chat else {"prompt"})
    for name, value in body.items():
        if name in _NEUTRAL and value is not None and value not in _NEUTRAL[name] and not (name == "best_of" and value == body.get("n")):
            raise ApiError(400, f"{name}={value!r} is not supported here", param=name, code="unsupported_value")
        if name not in known and name not in _IGNORED and name not in _NEUTRAL:
            raise ApiError(400, f"unrecognized request argument supplied: {name}", param=name, code="unknown_parameter")
    if _field(body, "model", str) != model:
        raise ApiError(404, f"the model {body['model'][:200]!r} does not exist; this endpoint serves {model!r}", param="model", code="model_not_found")
    n = _field(body, "n", int, 1, 1, most)
    prompts = tuple(tuple(prompt) for prompt in read(body))
    if len(prompts) * n > most:
        raise ApiError(400, f"{len(prompts)} prompts with n={n} ask for {len(prompts) * n} choices; at most {most} are served at once", param="n")
    left = context - max(len(p) for p in prompts)
    if left < 1:
        raise ApiError(400, f"the prompt has {context - left} tokens; the context is {context}", param="prompt", code="context_length_exceeded")
    limit = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    # OpenAI's own defaults hold if the model's files name none: no limit for chats, and 16 tokens for completions.
    usual = usual if usual is not None else room if chat else 16
    max_new = _field(body, limit, int, min(left, room, usual), 1)
    if max_new > min(left, room):
        raise ApiError(400, f"{limit}={max_new} exceeds the {min(left, room)} new tokens that fit", param=limit, code="context_length_exceeded")
    stop = body.get("stop") or ()
    stop = (stop,) if isinstance(stop, str) else stop
    if not isinstance(stop, (list, tuple)) or len(stop) > 16 or not all(isinstance(s, str) and s for s in stop):
        raise ApiError(400, "stop must be a text, or a list of at most 16 texts, none of them empty", param="stop")
    options = body.get("stream_options") or {}
    if not isinstance(options, dict):
        raise ApiError(400, "stream_options must be an object", param="stream_options")
    return Job(
        chat,
        prompts,
        n,
        max_new,
        _field(body, "temperature", float, 1.0, 0, 2),
        _field(body, "top_p", float, 1.0, 1e-6, 1),
        tuple(stop),
        _field(body, "stream", bool, False),
        bool(options.get("include_usage")),
        _field(body, "seed", int, None, 0, 2**63 - 1),
        _likeliest(body, chat),
        _field(body, "return_token_ids", bool, False),
        chat and wants_calls(body),
    )


def _field(body: Mapping[str, Any], name: str, kind: type, default: Any = ..., low: float | None = None, high: float | None = None) -> Any:
    value = body.get(name)
    if value is None:
        if default is ...:
            raise ApiError(400, f"you must provide {name}", param=name, code="missing_required_parameter")
        return default
    # True and False are ints to Python, but not to JSON.
    fits = isinstance(value, (int, float) if kind is float else kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = "" if low is None else f" of at least {low}" if high is None else f" between {low} and {high}"
        raise ApiError(400, f"{name}={value!r} must be of type {kind.__name__}{bounds}"[:500], param=name, code="invalid_value")
    return value


def _likeliest(body: Mapping[str, Any], chat: bool) -> int | None:
    if not chat:
        found: int | None = _field(body, "logprobs", int, None, 0, MOST_LIKELIEST)
        return found
    wanted, top = _field(body, "logprobs", bool, False), _field(body, "top_logprobs", int, None, 0, MOST_LIKELIEST)
    if top is not None and not wanted:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    return (top or 0) if wanted else None


class Choice:
    """One answer, which grows; ``take`` returns what is new of it as a piece of a stream, and all of it as one piece if it is called once at the end."""

    def __init__(self, job: Job, index: int, request: Request, text: TextStream, tokenizer: Tokenizer) -> None:
        self._job, self._tokenizer, self.index, self.request, self.text = job, tokenizer, index, request, text
        self._tokens = self._chars = 0

    def take(self, whole: bool = False, *, last: bool = True) -> dict[str, Any] | None:
        """Return a choice object with what came since the last call, or None if that is nothing. ``whole`` writes it as an answer that is no stream.
        Without ``last`` it says nothing of the end, also if the answer has ended."""
        job, request = self._job, self.request
        finish = request.finish if last else None
        text = self.text.finish() if finish is not None else self.text.text
        calls: list[dict[str, Any]] = []
        if job.calls:
            # Text that may be a call is held back until the answer is whole.
            text, calls = self.answer() if finish is not None else (before_calls(text), [])
        # The engine may be adding a token in its thread; it appends to this list last.
        count = len(request.likeliest if job.top else request.versions)
        new, tokens = text[self._chars :], range(self._tokens, count)
        if not (new or finish or (tokens and (job.top is not None or job.token_ids))):
            return None
        first = self._tokens == 0
        choice: dict[str, Any] = {"index": self.index, "finish_reason": "tool_calls" if calls and finish == "stop" else finish, "logprobs": None}
        if not job.chat:
            choice["text"] = new
        elif whole:
            choice["message"] = self.message()
        else:
            choice["delta"] = {**({"role": "assistant"} if first else {}), "content": new}
            if calls:
                choice["delta"]["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        if job.top is not None:
            choice["logprobs"] = {"content": [self._entry(i) for i in tokens]} if job.chat else self._table(tokens)
        if job.token_ids:
            choice["token_ids"] = request.output[tokens.start : tokens.stop]
            choice["versions"] = request.versions[tokens.start : tokens.stop]
            if first:
                choice["prompt_token_ids"] = list(request.prompt)
        self._tokens, self._chars = count, len(text)
        return choice

    def answer(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the text of the whole answer and its calls of tools."""
        text = self.text.finish()
        return tool_calls(text, self.request.prompt) if self._job.calls else (text, [])

    def message(self) -> dict[str, Any]:
        """Return the whole answer as the message that the client gets."""
        text, calls = self.answer()
        return {"role": "assistant", "content": text or None, "tool_calls": calls} if calls else {"role": "assistant", "content": text}

    def _one(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._tokenizer.decode([token])
        return {"token": text, "logprob": max(logprob, LEAST), "bytes": list(text.encode())}

    def _entry(self, i: int) -> dict[str, Any]:
        likeliest = self.request.likeliest[i] if self._job.top else []
        return {**self._one(self.request.output[i], self.request.logprobs[i]), "top_logprobs": [self._one(*pair) for pair in likeliest]}

    def _table(self, tokens: range) -> dict[str, Any]:
        request, decode = self.request, self._tokenizer.decode
        texts, at, offsets = [decode([request.output[i]]) for i in tokens], len(decode(request.output[: tokens.start])), []
        for text in texts:
            offsets.append(at)
            at += len(text)
        likeliest = [{decode([t]): max(logprob, LEAST) for t, logprob in request.likeliest[i]} for i in tokens] if self._job.top else None
        return {"tokens": texts, "token_logprobs": [request.logprobs[i] for i in tokens], "top_logprobs": likeliest, "text_offset": offsets}


def usage(job: Job, requests: Sequence[Request]) -> dict[str, Any]:
    """Count tokens: each prompt once, and as cached what the first of its choices found in the cache."""
    prompt, made = sum(len(p) for p in job.prompts), sum(len(r.output) for r in requests)
    cached = sum(r.cached for r in requests[:: job.n])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": made,
        "total_tokens": prompt + made,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
