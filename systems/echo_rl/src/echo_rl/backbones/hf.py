"""Any causal language model that Hugging Face transformers can load from a local folder."""

from __future__ import annotations

import atexit
import queue
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from echo_core.base.installing import how_to_install
from echo_rl.backbones.base import Backbone, BackboneUnavailable, Completion, CompletionRequest, Prompt, Usage, conversation, tokens_of
from echo_rl.backbones.prices import Prices
from echo_rl.engine.families.generation import Generation
from echo_rl.serving.chat import ChatTemplate
from echo_rl.serving.text import TextStream, Tokenizer, tokenizer_of


class TransformersBackbone(Backbone):
    """``generate`` of transformers. Nothing is downloaded, and no code of the model's folder is run.

    Args:
        model: The folder.
        tokenizer: A tokenizer that replaces the folder's ``tokenizer.json``. If there is neither of them, each byte is a token.
        device: The device on which it runs. ``"auto"`` takes CUDA if there is a CUDA device.
        four_bit: Whether the weights are kept in 4 bits, which needs CUDA and bitsandbytes. By default this is done if both are there.
        batch: How many continuations are made at once.
        name: The name of the backbone in errors.
        prices: The prices of tokens. By default they come from the file that ECHO_RL_PRICES names.

    Raises:
        BackboneUnavailable: If transformers, the folder, or what 4 bits need is missing.
    """

    def __init__(
        self,
        model: str | Path,
        tokenizer: Tokenizer | None = None,
        *,
        device: str = "auto",
        four_bit: bool | None = None,
        batch: int = 8,
        name: str | None = None,
        prices: Prices | None = None,
    ) -> None:
        self.model, self.name = str(model), name or f"hf:{model}"
        try:
            import transformers
        except ImportError:
            raise BackboneUnavailable(f"{self.name} needs transformers; {how_to_install('echo-rl[hf]')}") from None
        if not Path(model).is_dir():
            raise BackboneUnavailable(f"{self.name} needs a folder with a model, and {str(model)!r} is none")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        able = device.startswith("cuda") and transformers.utils.is_bitsandbytes_available()  # type: ignore[attr-defined]
        if four_bit and not able:
            raise BackboneUnavailable(f"{self.name} needs CUDA and bitsandbytes for 4 bits")
        options: dict[str, Any] = {}
        if able and four_bit is not False:
            options = {"quantization_config": transformers.BitsAndBytesConfig(load_in_4bit=True), "device_map": device}
        loaded = transformers.AutoModelForCausalLM.from_pretrained(self.model, local_files_only=True, trust_remote_code=False, **options)
        self._model = (loaded if options else loaded.to(device)).eval()  # type: ignore[arg-type]
        self.generation = Generation.read(Path(model), self._model.config.vocab_size)
        self.generation.report(self.name)
        # A configuration of our own: that of the folder could bring penalties, of which the log-probabilities would not know.
        self._model.generation_config = transformers.GenerationConfig(eos_token_id=list(self.generation.ends) or None, pad_token_id=0)
        self._device, self._batch = torch.device(device), batch
        self._criterion, self._criteria = transformers.StoppingCriteria, transformers.StoppingCriteriaList
        self.prices = prices if prices is not None else Prices.load()
        self._tokenizer, self._template = tokenizer or tokenizer_of(Path(model)), ChatTemplate.of(model)
        self._lock = threading.Lock()

    def complete(self, request: CompletionRequest) -> list[Completion]:
        """Continue each prompt; see ``Backbone.generate``. Tokens always come.

        Raise ValueError for a seed: transformers draws from the random numbers that the whole process shares.
        """
        if request.seed is not None:
            raise ValueError(f"{self.name} takes no seed, since transformers draws from random numbers that the whole process shares; use local:FOLDER")
        asked = [self._tokens(p) for p in request.prompts for _ in range(request.n)]
        found: list[Completion] = []
        for i in range(0, len(asked), self._batch):
            part = asked[i : i + self._batch]
            texts = [TextStream(self._tokenizer, request.stop, self.generation.ends) for _ in part]
            made = self._run(part, request.max_tokens, request.temperature, request.top_p, texts, request.logprobs)
            found += [Completion(**{**vars(c), "usage": c.usage if (i + j) % request.n == 0 else Usage(0, c.usage.made)}) for j, c in enumerate(made)]
        return [self.priced(c) for c in found]

    def stream(self, prompt: Prompt, max_tokens: int = 256, temperature: float | None = 1.0, stop: Sequence[str] = ()) -> Iterator[str]:
        """Continue one prompt in pieces; see ``Backbone.stream``."""
        pieces: queue.Queue[str | BaseException | None] = queue.Queue()
        left = threading.Event()
        text, tokens = _Told(self._tokenizer, stop, pieces, left, self.generation.ends), self._tokens(prompt)

        def make() -> None:
            try:
                self._run([tokens], max_tokens, temperature, 1.0, [text], False)
                pieces.put(None)
            except BaseException as error:
                pieces.put(error)

        def end() -> None:
            left.set()
            thread.join()

        thread = threading.Thread(target=make, name="echo-rl-transformers", daemon=True)
        thread.start()
        # A program that ends meanwhile would otherwise hang, or be aborted: the interpreter's end cannot stop a thread that is in torch.
        atexit.register(end)
        try:
            while (piece := pieces.get()) is not None:
                if isinstance(piece, BaseException):
                    raise piece
                yield piece
        finally:
            atexit.unregister(end)
            end()

    def close(self) -> None:
        """Wait for a generation that is under way; the memory is free when the backbone is."""
        with self._lock:
            pass

    def _run(self, prompts: list[list[int]], most: int, temperature: float | None, top_p: float, texts: list[TextStream], logprobs: bool) -> list[Completion]:
        longest = max(map(len, prompts))
        inputs, mask = torch.zeros((len(prompts), longest), dtype=torch.long), torch.zeros((len(prompts), longest), dtype=torch.long)
        for i, prompt in enumerate(prompts):
            # Padding stands before the prompt, since a continuation begins where its prompt ends.
            inputs[i, longest - len(prompt) :], mask[i, longest - len(prompt) :] = torch.tensor(prompt), 1
        ended = [False] * len(prompts)

        class Watch(self._criterion):  # type: ignore[misc, name-defined]
            def __call__(self, ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
                for i, token in enumerate(ids[:, -1].tolist()):
                    # Tokens after the end are padding and do not belong to the answer.
                    ended[i] = ended[i] or texts[i].push(token)
                return torch.tensor(ended, device=ids.device)

        draw = {"do_sample": False} if temperature == 0 else {"do_sample": True, "temperature": temperature or 1.0, "top_k": 0, "top_p": top_p}
        with self._lock, torch.inference_mode():
            answer = self._model.generate(
                inputs.to(self._device),
                attention_mask=mask.to(self._device),
                max_new_tokens=most,
                stopping_criteria=self._criteria([Watch()]),
                pad_token_id=0,
                return_dict_in_generate=True,
                output_scores=logprobs,
                **draw,
            )
            told = self._model.compute_transition_scores(answer.sequences, answer.scores, normalize_logits=True).tolist() if logprobs else None
        found = []
        for i, text in enumerate(texts):
            count, done = len(text.tokens), ended[i]
            usage = Usage(len(prompts[i]), count)
            drawn = None if told is None else tuple(told[i][:count])
            found.append(Completion(text.finish(), "stop" if done else "length", usage, tuple(text.tokens), drawn))
        return found

    def _tokens(self, prompt: Prompt) -> list[int]:
        tokens = tokens_of(prompt)
        if tokens is not None:
            return tokens
        return self._tokenizer.encode(prompt if isinstance(prompt, str) else self._template(conversation(prompt, self.name)))


class _Told(TextStream):
    """A text that tells its pieces to a queue, and ends when nobody reads any more."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], pieces: queue.Queue[Any], left: threading.Event, ends: Sequence[int]) -> None:
        super().__init__(tokenizer, stop, ends)
        self._pieces, self._left, self._told = pieces, left, 0

    def push(self, token: int) -> bool:
        ended = super().push(token)
        self._tell()
        return ended or self._left.is_set()

    def finish(self) -> str:
        super().finish()
        self._tell()
        return self.text

    def _tell(self) -> None:
        if len(self.text) > self._told:
            self._pieces.put(self.text[self._told :])
            self._told = len(self.text)
