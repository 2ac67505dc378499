"""GPT-2 and Llama-like transformers whose attention is supplied by the caller."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from echo_rl.engine.linear import Linear

Attend = Callable[[int, Tensor, Tensor, Tensor], Tensor]
"""``attend(layer, q, k, v)``: q is (N, heads, head_dim); k and v are (N, kv_heads, head_dim); the answer has q's shape."""


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a transformer. ``kind`` is ``"gpt2"`` or ``"llama"``."""

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

    def __post_init__(self) -> None:
        if self.kind not in ("gpt2", "llama"):
            raise ValueError(f"kind {self.kind!r} is unknown; use 'gpt2' or 'llama'")
        object.__setattr__(self, "kv_heads", self.kv_heads or self.heads)
        object.__setattr__(self, "head_dim", self.head_dim or self.width // self.heads)
        if self.heads % self.kv_heads:
            raise ValueError(f"heads={self.heads} is not a multiple of kv_heads={self.kv_heads}")

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> "ModelConfig":
        """Read the fields of a Hugging Face ``config.json``; raise ValueError for what this model does not compute."""
        kind = found.get("model_type")
        if kind == "gpt2":
            if found.get("activation_function", "gelu_new") != "gelu_new" or found.get("scale_attn_by_inverse_layer_idx"):
                raise ValueError("this GPT-2 variant is not supported: it needs activation_function 'gelu_new' and plain attention scaling")
            width = found["n_embd"]
            return cls(
                "gpt2",
                found["vocab_size"],
                found["n_layer"],
                found["n_head"],
                width,
                found.get("n_inner") or 4 * width,
                found["n_positions"],
                eps=found["layer_norm_epsilon"],
            )
        if kind == "llama":
            rope = found.get("rope_scaling") or found.get("rope_parameters") or {}
            if rope.get("rope_type", rope.get("type", "default")) != "default":
                raise ValueError(f"rope scaling {rope!r} is not supported; only the default rotary embedding is")
            if found.get("attention_bias") or found.get("mlp_bias") or found.get("hidden_act", "silu") != "silu":
                raise ValueError("this Llama variant is not supported: it needs hidden_act 'silu' and no biases")
            theta = float(rope.get("rope_theta", found.get("rope_theta", 10_000.0)))
            heads = found["num_attention_heads"]
            return cls(
                "llama",
                found["vocab_size"],
                found["num_hidden_layers"],
                heads,
                found["hidden_size"],
                found["intermediate_size"],
                found["max_position_embeddings"],
                found.get("num_key_value_heads") or heads,
                found.get("head_dim") or 0,
                found["rms_norm_eps"],
                theta,
            )
        raise ValueError(f"model_type {kind!r} is not supported; use 'gpt2' or 'llama'")


@dataclass(frozen=True)
class _Layer:
    """One block. A norm is its weight and its bias; ``qkv`` gives queries, keys and values side by side; ``gate`` is only Llama's."""

    norms: tuple[tuple[Tensor, Tensor | None], tuple[Tensor, Tensor | None]]
    qkv: Linear
    out: Linear
    up: Linear
    down: Linear
    gate: Linear | None = None


class Model:
    """The weights of one version.

    Attributes:
        config: The shape.
        weights: The float32 tensors under their Hugging Face names, without the leading "transformer." or "model.". The model computes with copies of
            them, so that training in place does not change a version that is in use.
    """

    def __init__(self, config: ModelConfig, weights: Mapping[str, Tensor], device: str = "cpu") -> None:
        self.config = config
        self.device = torch.empty(0, device=device).device  # with its number: "cuda" is "cuda:0"
        prefix = "transformer." if config.kind == "gpt2" else "model."
        self.weights = {name.removeprefix(prefix): value.detach().to(self.device, torch.float32) for name, value in weights.items()}
        missing = sorted(set(shapes(config)) - set(self.weights))
        if missing:
            raise ValueError(f"the weights lack {missing[0]!r} and {len(missing) - 1} others")
        for name, shape in shapes(config).items():
            if tuple(self.weights[name].shape) != shape:
                raise ValueError(f"weight {name!r} has shape {tuple(self.weights[name].shape)}; the config needs {shape}")
        gpt2 = config.kind == "gpt2"
        with torch.inference_mode():
            self._layers = [(_gpt2_layer if gpt2 else _llama_layer)(self.weights, i) for i in range(config.layers)]
            self._embedding = self.weights["wte.weight" if gpt2 else "embed_tokens.weight"].clone()
            self._positions = self.weights["wpe.weight"].clone() if gpt2 else None
            self._norm = _norm(self.weights, "ln_f" if gpt2 else "norm")
            self._head = Linear(self.weights.get("lm_head.weight", self._embedding))
            if not gpt2:
                angles = torch.arange(config.context)[:, None] / config.theta ** (torch.arange(0, config.head_dim, 2) / config.head_dim)
                self._cos = torch.cat([angles.cos()] * 2, -1).to(self.device)[:, None]
                self._sin = torch.cat([angles.sin()] * 2, -1).to(self.device)[:, None]

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str = "cpu", scale: float = 0.02) -> "Model":
        """Make a model of normal random weights with deviation ``scale``; norms begin at one."""
        generator = torch.Generator().manual_seed(seed)
        weights = {}
        for name, shape in shapes(config).items():
            norm = "ln_" in name or "norm" in name
            weights[name] = (torch.zeros(shape) if name.endswith("bias") else torch.ones(shape)) if norm else torch.randn(shape, generator=generator) * scale
        return cls(config, weights, device)

    @classmethod
    def load(cls, folder: str | Path, device: str = "cpu") -> "Model":
        """Load ``config.json`` and every ``*.safetensors`` file of a folder."""
        from safetensors.torch import load_file

        config = ModelConfig.from_json(json.loads((Path(folder) / "config.json").read_text()))
        weights: dict[str, Tensor] = {}
        for file in sorted(Path(folder).glob("*.safetensors")):
            weights.update(load_file(file))
        return cls(config, weights, device)

    def to(self, device: str | torch.device) -> "Model":
        """Return this model if it is on that device, else a copy of it there."""
        device = torch.empty(0, device=device).device
        return self if device == self.device else Model(self.config, self.weights, str(device))

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states (N, width) of N tokens, which may belong to different sequences."""
        return (self._gpt2 if self.config.kind == "gpt2" else self._llama)(tokens, positions, attend)

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (N, vocab) scores."""
        return self._head(hidden)

    def _gpt2(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        c, shape = self.config, (self.config.width,)
        assert self._positions is not None
        x = self._embedding[tokens] + self._positions[positions]
        for i, layer in enumerate(self._layers):
            (w1, b1), (w2, b2) = layer.norms
            qkv = layer.qkv(F.layer_norm(x, shape, w1, b1, c.eps)).view(-1, 3, c.heads, c.head_dim)
            x = layer.out.join(attend(i, qkv[:, 0], qkv[:, 1], qkv[:, 2]).reshape(-1, c.width), x, "add")
            x = layer.down.join(layer.up(F.layer_norm(x, shape, w2, b2, c.eps), "gelu"), x, "add")
        return F.layer_norm(x, shape, *self._norm, c.eps)

    def _llama(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        c, shape = self.config, (self.config.width,)
        x, cos, sin = self._embedding[tokens], self._cos[positions], self._sin[positions]
        for i, layer in enumerate(self._layers):
            (w1, _), (w2, _) = layer.norms
            assert layer.gate is not None
            qkv = layer.qkv(F.rms_norm(x, shape, w1, c.eps)).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
            both = _rotate(qkv[:, : c.heads + c.kv_heads], cos, sin)
            y = attend(i, both[:, : c.heads], both[:, c.heads :], qkv[:, c.heads + c.kv_heads :])
            x = layer.out.join(y.reshape(-1, c.heads * c.head_dim), x, "add")
            y = F.rms_norm(x, shape, w2, c.eps)
            x = layer.down.join(layer.up.join(y, layer.gate(y, "silu"), "mul"), x, "add")
        return F.rms_norm(x, shape, self._norm[0], c.eps)


def _norm(w: Mapping[str, Tensor], name: str) -> tuple[Tensor, Tensor | None]:
    bias = w.get(f"{name}.bias")
    return w[f"{name}.weight"].clone(), None if bias is None else bias.clone()


def _gpt2_layer(w: Mapping[str, Tensor], i: int) -> _Layer:
    p = f"h.{i}."
    qkv, out, up, down = (Linear(w[f"{p}{name}.weight"].T, w[f"{p}{name}.bias"]) for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"))
    return _Layer((_norm(w, p + "ln_1"), _norm(w, p + "ln_2")), qkv, out, up, down)


def _llama_layer(w: Mapping[str, Tensor], i: int) -> _Layer:
    p = f"layers.{i}."
    qkv = Linear(torch.cat([w[f"{p}self_attn.{name}_proj.weight"] for name in "qkv"]))
    out, gate, up, down = (Linear(w[f"{p}{name}_proj.weight"]) for name in ("self_attn.o", "mlp.gate", "mlp.up", "mlp.down"))
    return _Layer((_norm(w, p + "input_layernorm"), _norm(w, p + "post_attention_layernorm")), qkv, out, up, down, gate)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name every weight that a model of this config needs, with its shape."""
    found: dict[str, tuple[int, ...]] = {}
    if c.kind == "gpt2":
        found = {"wte.weight": (c.vocab, c.width), "wpe.weight": (c.context, c.width), "ln_f.weight": (c.width,), "ln_f.bias": (c.width,)}
        for i in range(c.layers):
            for name in ("ln_1", "ln_2"):
                found |= {f"h.{i}.{name}.weight": (c.width,), f"h.{i}.{name}.bias": (c.width,)}
            pairs = {"attn.c_attn": (c.width, 3 * c.width), "attn.c_proj": (c.width, c.width), "mlp.c_fc": (c.width, c.inner), "mlp.c_proj": (c.inner, c.width)}
            for name, shape in pairs.items():
                found |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
        return found
    found = {"embed_tokens.weight": (c.vocab, c.width), "norm.weight": (c.width,)}
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    for i in range(c.layers):
        p = f"layers.{i}."
        found |= {p + "input_layernorm.weight": (c.width,), p + "post_attention_layernorm.weight": (c.width,)}
        found |= {p + "self_attn.q_proj.weight": (query, c.width), p + "self_attn.k_proj.weight": (key, c.width)}
        found |= {p + "self_attn.v_proj.weight": (key, c.width), p + "self_attn.o_proj.weight": (c.width, query)}
        found |= {p + "mlp.gate_proj.weight": (c.inner, c.width), p + "mlp.up_proj.weight": (c.inner, c.width), p + "mlp.down_proj.weight": (c.width, c.inner)}
    return found
