"""Echo's own engine in this process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from echo_rl.backbones.base import Backbone, Completion, CompletionRequest, Prompt, Usage, conversation, tokens_of
from echo_rl.backbones.prices import Prices
from echo_rl.engine import Engine, Model
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.text import TextStream, Tokenizer, tokenizer_of
from echo_rl.serving.worker import EngineWorker


class LocalBackbone(Backbone):
    """An engine, or a folder with a GPT-2 or Llama-like model's ``config.json``, ``*.safetensors`` and ``tokenizer.json`` (bytes without it).

    Args:
        model: The folder, an engine, or a worker. A worker may have other users, and the backbone does not close it.
        tokenizer: A tokenizer that replaces the one of the folder.
        template: A chat template that replaces the one of the folder.
        name: The name of the backbone in errors.
        prices: The prices of tokens. By default they come from the file that ECHO_RL_PRICES names.
        timeout: For how many seconds ``generate`` waits for all of its answers, and ``stream`` for each token.
        **options: The options of ``Engine``, if a folder is given.

    Attributes:
        worker: The engine's worker, with ``pause``, ``resume`` and ``update_weights``.
    """

    def __init__(
        self,
        model: str | Path | Engine | EngineWorker,
        tokenizer: Tokenizer | None = None,
        *,
        template: ChatTemplate | None = None,
        name: str | None = None,
        prices: Prices | None = None,
        timeout: float = 600.0,
        device: str = "cpu",
        **options: Any,
    ) -> None:
        folder = Path(model) if isinstance(model, (str, Path)) else None
        self.model = str(folder) if folder else "local"
        self.name, self._timeout = name or self.model, timeout
        self.prices = prices if prices is not None else Prices.load()
        self._tokenizer = tokenizer or tokenizer_of(folder)
        self._template = template or (ChatTemplate.of(folder) if folder else ChatTemplate())
        self._own = not isinstance(model, EngineWorker)
        if isinstance(model, EngineWorker):
            self.worker = model
        else:
            self.worker = EngineWorker(model if isinstance(model, Engine) else Engine(Model.load(model, device), **options))
        if not isinstance(self.worker.engine, Engine):
            raise ValueError(f"{self.name}: the worker steps a {type(self.worker.engine).__name__}; this backbone needs a worker of an Engine")
        self.generation = self.worker.engine.model.generation
        self.generation.report(self.name)

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. Tokens, log-probabilities and versions always come."""
        asked = [self._tokens(p) for p in request.prompts for _ in range(request.n)]
        texts = [TextStream(self._tokenizer, request.stop, self.generation.ends) for _ in asked]
        options: dict[str, Any] = {"temperature": 1.0 if request.temperature is None else request.temperature, "top_p": request.top_p}
        streams = self.worker.submit(asked, request.max_tokens, watches=[t.push for t in texts], seed=request.seed, **options)
        found = []
        try:
            for i, (stream, text) in enumerate(zip(streams, texts, strict=True)):
                r = stream.result(self._timeout)
                usage = Usage(len(r.prompt), len(r.output), r.cached) if i % request.n == 0 else Usage(0, len(r.output))
                found.append(Completion(text.finish(), str(r.finish), usage, tuple(r.output), tuple(r.logprobs), tuple(r.versions)))
        finally:
            for stream in streams:
                stream.cancel()
        return [self.priced(c) for c in found]

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        text, given = TextStream(self._tokenizer, stop, self.generation.ends), 0
        options: dict[str, Any] = {"watches": [text.push], "temperature": 1.0 if temperature is None else temperature}
        tokens = self.worker.submit([self._tokens(prompt)], max_tokens, **options)[0].tokens(self._timeout)
        try:
            for _ in tokens:
                now = text.text
                if len(now) > given:
                    yield now[given:]
                    given = len(now)
            if rest := text.finish()[given:]:
                yield rest
        finally:
            tokens.close()  # type: ignore[attr-defined]

    def close(self) -> None:
        """End the worker, unless others use it."""
        if self._own:
            self.worker.close()

    def _tokens(self, prompt: Prompt) -> list[int]:
        tokens = tokens_of(prompt)
        if tokens is not None:
            return tokens
        return self._tokenizer.encode(prompt if isinstance(prompt, str) else self._template(conversation(prompt, self.name)))
