"""The shape of a transformer, and the fields of a ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from echo_rl.checks import Rule, check, check_fields, flag, instance, one_of, optional, real, whole

KINDS = ("gpt2", "llama", "mistral", "qwen2", "qwen3", "smollm3")
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu", "relu": "relu", "silu": "silu", "swish": "silu"}
"""What Hugging Face calls each activation, and what ``Linear`` does."""


@dataclass(frozen=True)
class RopeScaling:
    """How rotary frequencies are scaled for a context longer than the one of the pre-training.

    ``"linear"`` divides all frequencies by ``factor``. ``"llama3"`` (Llama 3.1) divides the low ones, keeps the high ones, and passes smoothly from one to
    the other between the wavelengths ``original / low`` and ``original / high``.
    """

    kind: Literal["linear", "llama3"]
    factor: float
    low: float = 1.0
    high: float = 4.0
    original: int = 8192

    def __post_init__(self) -> None:
        check_fields(self, kind=one_of("linear", "llama3"), factor=real(above=0), low=real(above=0), high=real(above=0), original=whole(1))
        if self.kind == "llama3" and not self.high > self.low:
            raise ValueError(f"high={self.high} must be greater than low={self.low}")


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a transformer.

    Attributes:
        kind: ``"gpt2"``, ``"llama"`` (also SmolLM2), ``"mistral"``, ``"qwen2"`` (also Qwen2.5), ``"qwen3"`` or ``"smollm3"``.
        vocab, layers, heads, width, inner: the number of tokens, layers and attention heads, the width of a hidden state, and that of the inner layer.
        context: the longest sequence.
        kv_heads, head_dim: 0 means ``heads`` and ``width // heads``.
        eps: the addend under the root of the norms.
        theta, scaling: the base and the scaling of the rotary positions.
        activation: Hugging Face's name of the activation. Empty means the family's own.
        tied: whether the head is the embedding. None lets the weights decide: it is tied if they have no ``lm_head.weight``.
        bias, mlp_bias: whether the four products of the attention, and those of the inner layers, have biases. Qwen2's queries, keys and values always have
            them.
        no_rope: the layers that do not rotate queries and keys (SmolLM3).
        window, window_layers: a sliding window of attention, and the layers that have it. ``context`` may not be longer than the window: the engine lets every
            token see all earlier ones, which is exact only within the window.
        positions: what ``max_position_embeddings`` says, if that is more than ``context``. 0 means ``context``.
        plain_scores, scores_by_layer: GPT-2's ``scale_attn_weights=False`` (scores are not divided by the root of ``head_dim``), and
            ``scale_attn_by_inverse_layer_idx`` (they are divided by the number of the layer, from 1).
    """

    kind: str
    vocab: int
    layers: int
    heads: int
    width: int
    inner: int
    context: int = 1024
    kv_heads: int = 0
    head_dim: int = 0
    eps: float = 1e-5
    theta: float = 10_000.0
    activation: str = ""
    tied: bool | None = None
    bias: bool = False
    mlp_bias: bool = False
    scaling: RopeScaling | None = None
    no_rope: tuple[int, ...] = ()
    window: int | None = None
    window_layers: tuple[int, ...] = ()
    positions: int = 0
    plain_scores: bool = False
    scores_by_layer: bool = False

    def __post_init__(self) -> None:
        check("kind", self.kind, one_of(*KINDS))
        gpt2 = self.kind == "gpt2"
        for name in ("vocab", "layers", "heads", "width", "inner", "context"):
            check(name, getattr(self, name), whole(1))
        for name, default in (("kv_heads", self.heads), ("head_dim", self.width // self.heads), ("activation", "gelu_new" if gpt2 else "silu")):
            object.__setattr__(self, name, getattr(self, name) or default)
        object.__setattr__(self, "positions", self.positions or self.context)
        check_fields(
            self,
            kind=one_of(*KINDS),
            **dict.fromkeys(("vocab", "layers", "heads", "width", "inner", "context", "kv_heads", "head_dim"), whole(1)),
            eps=real(above=0),
            theta=real(above=0),
            activation=one_of(*ACTIVATIONS),
            tied=optional(flag()),
            bias=flag(),
            mlp_bias=flag(),
            scaling=optional(instance(RopeScaling)),
            no_rope=instance(tuple),
            window=optional(whole(1)),
            window_layers=instance(tuple),
            positions=whole(self.context),
            plain_scores=flag(),
            scores_by_layer=flag(),
        )
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")
        if gpt2 and (self.kv_heads != self.heads or self.head_dim * self.heads != self.width):
            raise ValueError(f"heads={self.heads} with kv_heads={self.kv_heads} and head_dim={self.head_dim} is no GPT-2 of width={self.width}")
        if not gpt2 and self.head_dim % 2:
            raise ValueError(f"head_dim={self.head_dim} must be even for rotary positions")
        if self.window is not None and self.context > self.window:
            raise ValueError(
                f"context={self.context} is longer than the sliding window={self.window}, which the engine does not compute; set context={self.window}"
            )
        allowed = {"bias": ("llama", "qwen3", "smollm3"), "mlp_bias": ("llama", "smollm3"), "no_rope": ("smollm3",), "window": KINDS[2:]}
        allowed |= dict.fromkeys(("plain_scores", "scores_by_layer"), ("gpt2",)) | {"scaling": KINDS[1:]}
        for name, kinds in allowed.items():
            if getattr(self, name) and self.kind not in kinds:
                raise ValueError(f"{name}={getattr(self, name)!r} is not of the family {self.kind!r}, only of {', '.join(kinds)}")

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ModelConfig:
        """Read a Hugging Face ``config.json``. Raise ValueError, which names the field, for everything that the engine does not compute."""
        from echo_rl.engine.families import FAMILIES

        kind = found.get("model_type")
        if kind not in FAMILIES:
            raise ValueError(f"model_type {kind!r} is not supported; use one of {', '.join(FAMILIES)}")
        config: ModelConfig = FAMILIES[kind].read(Fields(found))
        return config

    def to_json(self) -> dict[str, Any]:
        """Return the fields of a ``config.json`` that transformers reads."""
        from echo_rl.engine.families import FAMILIES

        fields: dict[str, Any] = FAMILIES[self.kind].write(self)
        return {"model_type": self.kind, "vocab_size": self.vocab, "tie_word_embeddings": bool(self.tied), "dtype": "float32", **fields}

    @property
    def bytes(self) -> int:
        """The bytes of the weights in float32."""
        from math import prod

        from echo_rl.engine.families import FAMILIES

        shapes: dict[str, tuple[int, ...]] = FAMILIES[self.kind].shapes(self)
        return 4 * sum(prod(shape) for shape in shapes.values())


# Fields of config.json that say nothing about the result of a forward pass in evaluation mode.
_NEUTRAL = {
    "model_type", "architectures", "transformers_version", "torch_dtype", "dtype", "use_cache", "initializer_range", "bos_token_id", "eos_token_id",
    "pad_token_id", "unk_token_id", "sep_token_id", "attention_dropout", "attn_pdrop", "embd_pdrop", "resid_pdrop", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "pretraining_tp", "task_specific_params", "n_ctx",
    "gradient_checkpointing", "is_llama_config", "transformers.js_config", "id2label", "label2id", "problem_type", "return_dict", "torchscript",
    "output_hidden_states", "output_attentions", "chunk_size_feed_forward", "tokenizer_class", "unsloth_version", "unsloth_fixed",
    "keys_to_ignore_at_inference", "reorder_and_upcast_attn",
    "temperature", "top_k", "top_p", "typical_p", "do_sample", "max_length", "min_length", "num_beams", "num_return_sequences", "length_penalty",
    "repetition_penalty", "no_repeat_ngram_size", "diversity_penalty", "num_beam_groups",
}  # fmt: skip


class Fields:
    """The fields of a ``config.json``. ``take`` reads one, and ``end`` refuses those that nobody read."""

    def __init__(self, found: Mapping[str, Any]) -> None:
        self._left = {name: value for name, value in found.items() if not name.startswith("_") and name not in _NEUTRAL}
        self.kind = str(found.get("model_type"))

    def take(self, name: str, rule: Rule, default: Any = ...) -> Any:
        """Return a field that follows a rule. Raise ValueError if it doesn't, or if it is missing and there is no default. JSON's null is a missing value."""
        value = self._left.pop(name, None)
        if value is None:
            if default is ...:
                raise ValueError(f"config.json lacks {name!r}")
            return default
        check(f"{name!r} of config.json", value, rule)
        return value

    def end(self) -> None:
        """Raise ValueError for a field that would change the result, as far as one can know: one that is unknown and not null, false, 0 or empty."""
        for name, value in self._left.items():
            if value:
                raise ValueError(f"config.json has {name}={value!r}, which the engine does not compute for {self.kind!r}; remove the field if it has no effect")
