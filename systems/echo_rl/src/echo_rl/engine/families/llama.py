"""Llama (Touvron et al. 2023) and its relatives: SmolLM2 and SmolLM3, Mistral, Qwen2, Qwen2.5 and Qwen3."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from echo_rl.checks import flag, instance, one_of, real, whole
from echo_rl.engine.families.attend import Attend
from echo_rl.engine.families.config import ACTIVATIONS, Fields, ModelConfig, RopeScaling
from echo_rl.engine.families.rope import frequencies, rotate, turns
from echo_rl.engine.linear import Linear, PlainLinear

KINDS = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
PREFIX = "model."
BUFFERS = re.compile(r"(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq")
"""Frequencies that older files contain; they follow from the config."""

EMBEDDING = "embed_tokens.weight"
_ARCHITECTURES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3", "smollm3": "SmolLM3"}
# What transformers assumes where a config.json says nothing.
_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "smollm3": 4}
_THETA = {"smollm3": 2_000_000.0}
_CONTEXT = {"llama": 2048, "mistral": 131_072, "qwen2": 32_768, "qwen3": 32_768, "smollm3": 32_768}


def read(fields: Fields) -> ModelConfig:
    """Read a config.json."""
    kind, size = fields.kind, whole(1)
    layers, heads = fields.take("num_hidden_layers", size), fields.take("num_attention_heads", size)
    positions = fields.take("max_position_embeddings", size, _CONTEXT[kind])
    no_rope = _no_rope(fields, layers) if kind == "smollm3" else ()
    window, slides = _window(fields, kind, layers, no_rope)
    theta, scaling = _rope(fields, kind)
    config = ModelConfig(
        kind,
        fields.take("vocab_size", size),
        layers,
        heads,
        fields.take("hidden_size", size),
        fields.take("intermediate_size", size),
        # Up to the window, every token sees all earlier ones, and the result is exact. Longer sequences are refused.
        positions if window is None else min(positions, window),
        fields.take("num_key_value_heads", size, _KV_HEADS.get(kind, heads)),
        fields.take("head_dim", size, 128 if kind == "qwen3" else 0),
        fields.take("rms_norm_eps", real(above=0), 1e-6),
        theta,
        fields.take("hidden_act", one_of(*ACTIVATIONS), "silu"),
        fields.take("tie_word_embeddings", flag(), kind == "smollm3"),
        fields.take("attention_bias", flag(), False) if kind in ("llama", "qwen3", "smollm3") else False,
        fields.take("mlp_bias", flag(), False) if kind in ("llama", "smollm3") else False,
        scaling,
        no_rope,
        window,
        slides,
        positions,
    )
    fields.end()
    return config


def _window(fields: Fields, kind: str, layers: int, no_rope: tuple[int, ...]) -> tuple[int | None, tuple[int, ...]]:
    if kind == "llama":
        return None, ()
    types = fields.take("layer_types", instance(list), None)
    used = True if kind == "mistral" else fields.take("use_sliding_window", flag(), False)
    window: int | None = fields.take("sliding_window", whole(1), None)
    first = fields.take("max_window_layers", whole(0), 28) if kind in ("qwen2", "qwen3") else 0
    if types is None:
        slides = tuple(i for i in range(layers) if i >= first and (kind != "smollm3" or i in no_rope))
    else:
        if len(types) != layers or not set(types) <= {"full_attention", "sliding_attention"}:
            raise ValueError(f"layer_types={types!r} of config.json must have 'full_attention' or 'sliding_attention' for each of {layers} layers")
        slides = tuple(i for i, name in enumerate(types) if name == "sliding_attention")
    return (window, slides) if used and window is not None and slides else (None, ())


def _rope(fields: Fields, kind: str) -> tuple[float, RopeScaling | None]:
    theta = fields.take("rope_theta", real(above=0), None)
    given = fields.take("rope_parameters", instance(dict), None)
    older = fields.take("rope_scaling", instance(dict), None)
    rope = dict(given or older or {})
    kind_of = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    rope.pop("type", None)
    theta = float(rope.pop("rope_theta", None) or theta or _THETA.get(kind, 10_000.0))
    if kind_of not in ("default", "linear", "llama3"):
        raise ValueError(f"rope type {kind_of!r} of config.json is not supported; 'default', 'linear' and 'llama3' are")
    if rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise ValueError("partial_rotary_factor of config.json must be 1; every dimension of a head turns")
    if kind_of == "default":
        scaling = None
    elif kind_of == "linear":
        scaling = RopeScaling("linear", _needed(rope, "factor"))
    else:
        names = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        scaling = RopeScaling("llama3", *(_needed(rope, name) for name in names))
    if kind_of == "default":
        rope.pop("factor", None)
    if rope:
        raise ValueError(f"the rotary positions of config.json have {sorted(rope)[0]!r}, which {kind_of!r} does not know")
    return theta, scaling


def _needed(rope: dict[str, Any], name: str) -> Any:
    if name not in rope:
        raise ValueError(f"the rotary positions of config.json lack {name!r}")
    return rope.pop(name)


def _no_rope(fields: Fields, layers: int) -> tuple[int, ...]:
    turned = fields.take("no_rope_layers", instance(list), None)
    interval = fields.take("no_rope_layer_interval", whole(1), 4)
    if turned is None:
        return tuple(range(interval - 1, layers, interval))
    if len(turned) != layers or not all(x in (0, 1) for x in turned):
        raise ValueError(f"no_rope_layers={turned!r} of config.json must have 0 or 1 for each of {layers} layers")
    return tuple(i for i, x in enumerate(turned) if not x)


def write(c: ModelConfig) -> dict[str, Any]:
    """Return the fields of a config.json."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": c.theta}
    if c.scaling is not None:
        rope |= {"rope_type": c.scaling.kind, "factor": c.scaling.factor}
        if c.scaling.kind == "llama3":
            rope |= {"low_freq_factor": c.scaling.low, "high_freq_factor": c.scaling.high, "original_max_position_embeddings": c.scaling.original}
    found: dict[str, Any] = {
        "architectures": [f"{_ARCHITECTURES[c.kind]}ForCausalLM"],
        "num_hidden_layers": c.layers,
        "num_attention_heads": c.heads,
        "num_key_value_heads": c.kv_heads,
        "head_dim": c.head_dim,
        "hidden_size": c.width,
        "intermediate_size": c.inner,
        "max_position_embeddings": c.positions,
        "rms_norm_eps": c.eps,
        "hidden_act": c.activation,
        "rope_parameters": rope,
    }
    if c.kind in ("llama", "qwen3", "smollm3"):
        found["attention_bias"] = c.bias
    if c.kind in ("llama", "smollm3"):
        found["mlp_bias"] = c.mlp_bias
    if c.kind == "smollm3":
        found["no_rope_layers"] = [int(i not in c.no_rope) for i in range(c.layers)]
    if c.kind != "llama":
        found["sliding_window"] = c.window
    if c.kind in ("qwen2", "qwen3", "smollm3"):
        types = ["sliding_attention" if i in c.window_layers else "full_attention" for i in range(c.layers)]
        found |= {"use_sliding_window": c.window is not None, "layer_types": types}
    return found


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name every weight except the head, with its shape."""
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (c.vocab, c.width), "norm.weight": (c.width,)}
    query, key = c.heads * c.head_dim, c.kv_heads * c.head_dim
    for i in range(c.layers):
        p = f"layers.{i}."
        found |= {p + "input_layernorm.weight": (c.width,), p + "post_attention_layernorm.weight": (c.width,)}
        if c.kind == "qwen3":
            found |= {p + "self_attn.q_norm.weight": (c.head_dim,), p + "self_attn.k_norm.weight": (c.head_dim,)}
        found |= _with_bias(p + "self_attn.q_proj", query, c.width, c.bias or c.kind == "qwen2")
        found |= _with_bias(p + "self_attn.k_proj", key, c.width, c.bias or c.kind == "qwen2")
        found |= _with_bias(p + "self_attn.v_proj", key, c.width, c.bias or c.kind == "qwen2")
        found |= _with_bias(p + "self_attn.o_proj", c.width, query, c.bias)
        found |= _with_bias(p + "mlp.gate_proj", c.inner, c.width, c.mlp_bias)
        found |= _with_bias(p + "mlp.up_proj", c.inner, c.width, c.mlp_bias)
        found |= _with_bias(p + "mlp.down_proj", c.width, c.inner, c.mlp_bias)
    return found


def _with_bias(name: str, out: int, width: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, width)} | ({f"{name}.bias": (out,)} if bias else {})


class Blocks:
    """The forward pass of weights ``w``, float32 tensors under the names of ``shapes``.

    ``product`` says how: ``Linear`` makes packed copies, for inference; ``PlainLinear`` computes with the weights themselves, for training.
    """

    def __init__(self, c: ModelConfig, w: Mapping[str, Tensor], product: type[PlainLinear] = Linear) -> None:
        self.config = c
        self.embedding = product.keep(w[EMBEDDING])
        self._norms = {name: product.keep(w[name]) for name in shapes(c) if "norm.weight" in name}
        self._layers = [_Layer(w, f"layers.{i}.", product) for i in range(c.layers)]
        self._frequencies = frequencies(c).to(self.embedding.device)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states (N, width); see ``Model.hidden``."""
        c, act, norms = self.config, ACTIVATIONS[self.config.activation], self._norms
        x, (cos, sin) = self.embedding[tokens], turns(positions, self._frequencies)
        for i, layer in enumerate(self._layers):
            p = f"layers.{i}."
            qkv = layer.qkv(self._norm(x, p + "input_layernorm.weight")).view(-1, c.heads + 2 * c.kv_heads, c.head_dim)
            both, v = qkv[:, : c.heads + c.kv_heads], qkv[:, c.heads + c.kv_heads :]
            if c.kind == "qwen3":
                q, k = both.split([c.heads, c.kv_heads], 1)
                size = (c.head_dim,)
                both = torch.cat(
                    [F.rms_norm(q, size, norms[p + "self_attn.q_norm.weight"], c.eps), F.rms_norm(k, size, norms[p + "self_attn.k_norm.weight"], c.eps)], 1
                )
            if i not in c.no_rope:
                both = rotate(both, cos, sin)
            y = attend(i, both[:, : c.heads], both[:, c.heads :], v)
            x = layer.out.join(y.reshape(-1, c.heads * c.head_dim), x, "add")
            y = self._norm(x, p + "post_attention_layernorm.weight")
            x = layer.down.join(layer.up.join(y, layer.gate(y, act), "mul"), x, "add")
        return self._norm(x, "norm.weight")

    def weights(self) -> dict[str, Tensor]:
        """Return copies of the weights under the names of ``shapes``."""
        found = {EMBEDDING: self.embedding.clone(), **{name: x.clone() for name, x in self._norms.items()}}
        for i, layer in enumerate(self._layers):
            found |= layer.weights(self.config, f"layers.{i}.")
        return found

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.rms_norm(x, (self.config.width,), self._norms[name], self.config.eps)


_REST = {"out": "self_attn.o_proj", "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj"}


class _Layer:
    def __init__(self, w: Mapping[str, Tensor], p: str, product: type[PlainLinear]) -> None:
        def joined(*names: str) -> PlainLinear:
            # Queries, keys and values are one product: it is faster than three.
            biases = [w[f"{p}{name}.bias"] for name in names] if f"{p}{names[0]}.bias" in w else []
            return product(*(w[f"{p}{name}.weight"] for name in names), biases=biases)

        self.qkv = joined("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        self.out, self.gate, self.up, self.down = (joined(name) for name in _REST.values())

    def weights(self, c: ModelConfig, p: str) -> dict[str, Tensor]:
        sizes, found = [c.heads * c.head_dim] + [c.kv_heads * c.head_dim] * 2, {}
        for name, weight in zip("qkv", self.qkv.dense().split(sizes), strict=True):
            found[f"{p}self_attn.{name}_proj.weight"] = weight.clone()
        if (biases := self.qkv.bias()) is not None:
            for name, bias in zip("qkv", biases.split(sizes), strict=True):
                found[f"{p}self_attn.{name}_proj.bias"] = bias.clone()
        for own, name in _REST.items():
            product: PlainLinear = getattr(self, own)
            found[f"{p}{name}.weight"] = product.dense()
            if (bias := product.bias()) is not None:
                found[f"{p}{name}.bias"] = bias
        return found
