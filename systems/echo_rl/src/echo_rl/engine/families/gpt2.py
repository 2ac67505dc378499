"""GPT-2 (Radford et al. 2019)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from echo_rl.checks import flag, one_of, real, whole
from echo_rl.engine.families.attend import Attend
from echo_rl.engine.families.config import ACTIVATIONS, Fields, ModelConfig
from echo_rl.engine.linear import Linear, PlainLinear

PREFIX = "transformer."
BUFFERS = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
"""Masks that older files contain; they are no weights."""

EMBEDDING = "wte.weight"
_PRODUCTS = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")


def read(fields: Fields) -> ModelConfig:
    """Read a config.json."""
    size, width = whole(1), fields.take("n_embd", whole(1))
    if fields.take("add_cross_attention", flag(), False):
        raise ValueError("config.json has add_cross_attention=True; only decoders without an encoder are computed")
    config = ModelConfig(
        "gpt2",
        fields.take("vocab_size", size),
        fields.take("n_layer", size),
        fields.take("n_head", size),
        width,
        fields.take("n_inner", size, 4 * width),
        fields.take("n_positions", size),
        eps=fields.take("layer_norm_epsilon", real(above=0), 1e-5),
        activation=fields.take("activation_function", one_of(*ACTIVATIONS), "gelu_new"),
        tied=fields.take("tie_word_embeddings", flag(), True),
        plain_scores=not fields.take("scale_attn_weights", flag(), True),
        scores_by_layer=fields.take("scale_attn_by_inverse_layer_idx", flag(), False),
    )
    fields.end()
    return config


def write(c: ModelConfig) -> dict[str, Any]:
    """Return the fields of a config.json."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "n_layer": c.layers,
        "n_head": c.heads,
        "n_embd": c.width,
        "n_inner": c.inner,
        "n_positions": c.context,
        "layer_norm_epsilon": c.eps,
        "activation_function": c.activation,
        "scale_attn_weights": not c.plain_scores,
        "scale_attn_by_inverse_layer_idx": c.scores_by_layer,
    }


def shapes(c: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name every weight except the head, with its shape."""
    found: dict[str, tuple[int, ...]] = {EMBEDDING: (c.vocab, c.width), "wpe.weight": (c.context, c.width)}
    found |= {"ln_f.weight": (c.width,), "ln_f.bias": (c.width,)}
    for i in range(c.layers):
        for name in ("ln_1", "ln_2"):
            found |= {f"h.{i}.{name}.weight": (c.width,), f"h.{i}.{name}.bias": (c.width,)}
        sizes = ((c.width, 3 * c.width), (c.width, c.width), (c.width, c.inner), (c.inner, c.width))
        for name, shape in zip(_PRODUCTS, sizes, strict=True):
            found |= {f"h.{i}.{name}.weight": shape, f"h.{i}.{name}.bias": shape[1:]}
    return found


class Blocks:
    """The forward pass of weights ``w``, float32 tensors under the names of ``shapes``.

    ``product`` says how: ``Linear`` makes packed copies, for inference; ``PlainLinear`` computes with the weights themselves, for training.
    """

    def __init__(self, c: ModelConfig, w: Mapping[str, Tensor], product: type[PlainLinear] = Linear) -> None:
        self.config = c
        self.embedding, self._positions = product.keep(w[EMBEDDING]), product.keep(w["wpe.weight"])
        self._norms = {name: product.keep(w[name]) for name in shapes(c) if "ln_" in name}
        # GPT-2's files have the transposed weights.
        self._products = [[product(w[f"h.{i}.{name}.weight"].T, biases=[w[f"h.{i}.{name}.bias"]]) for name in _PRODUCTS] for i in range(c.layers)]
        root = c.head_dim**0.5 if c.plain_scores else 1.0
        self._scales = [root / (i + 1 if c.scores_by_layer else 1) for i in range(c.layers)]

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states (N, width); see ``Model.hidden``."""
        c, act = self.config, ACTIVATIONS[self.config.activation]
        x = self.embedding[tokens] + self._positions[positions]
        for i, (qkv, out, up, down) in enumerate(self._products):
            q, k, v = qkv(self._norm(x, f"h.{i}.ln_1")).view(-1, 3, c.heads, c.head_dim).unbind(1)
            # ``attend`` divides scores by the root of head_dim, so another scale goes into the queries.
            x = out.join(attend(i, q if self._scales[i] == 1 else q * self._scales[i], k, v).reshape(-1, c.width), x, "add")
            x = down.join(up(self._norm(x, f"h.{i}.ln_2"), act), x, "add")
        return self._norm(x, "ln_f")

    def weights(self) -> dict[str, Tensor]:
        """Return copies of the weights under the names of ``shapes``."""
        found = {EMBEDDING: self.embedding.clone(), "wpe.weight": self._positions.clone(), **{n: x.clone() for n, x in self._norms.items()}}
        for i, products in enumerate(self._products):
            for name, product in zip(_PRODUCTS, products, strict=True):
                bias = product.bias()
                assert bias is not None
                found |= {f"h.{i}.{name}.weight": product.dense().T.contiguous(), f"h.{i}.{name}.bias": bias}
        return found

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return F.layer_norm(x, (self.config.width,), self._norms[f"{name}.weight"], self._norms[f"{name}.bias"], self.config.eps)
