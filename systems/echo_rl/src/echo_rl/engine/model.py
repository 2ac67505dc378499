"""Transformers whose attention is supplied by the caller."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from echo_rl.engine.families import FAMILIES
from echo_rl.engine.families.attend import Attend
from echo_rl.engine.families.config import ModelConfig, RopeScaling
from echo_rl.engine.families.files import HEAD, TensorFiles, Weights, random_weights, read_config, write
from echo_rl.engine.families.generation import Generation
from echo_rl.engine.linear import Linear, PlainLinear

__all__ = ["Attend", "Generation", "Model", "ModelConfig", "RopeScaling", "shapes"]


class Model:
    """The weights of one version.

    The model holds its weights once, packed for products, so training the originals in place does not change a version that is in use. (On a CPU, an
    embedding that is also the head is held twice: looking tokens up needs its rows, and the product needs it packed.)

    Args:
        config: The shape.
        weights: Tensors under their Hugging Face names, with or without the leading "transformer." or "model.". Every weight must be there, and no other.
        device: Where the model computes.
        generation: What the model's files say about generation.

    Attributes:
        config: The shape, with ``tied`` decided.
        embedding: The embeddings of the tokens, (vocab, width).
        generation: The tokens that end an answer, and limits.

    Raises:
        ValueError: The message names the weight that is missing, unknown, not finite, of a wrong shape or of a dtype that is no float.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor] | TensorFiles, device: str | torch.device = "cpu", generation: Generation | None = None
    ) -> None:
        self.device = torch.empty(0, device=device).device  # with its number: "cuda" is "cuda:0"
        self.generation = generation or Generation()
        with torch.inference_mode():
            checked = Weights(config, weights, self.device)
            self.config = checked.config
            self._blocks = FAMILIES[config.kind].Blocks(self.config, checked)
            self.embedding: Tensor = self._blocks.embedding
            self._head: PlainLinear = Linear(self.embedding if self.config.tied else checked[HEAD])

    @classmethod
    def random(cls, config: ModelConfig, seed: int = 0, device: str | torch.device = "cpu", scale: float = 0.02) -> Model:
        """Make a model of normal random weights with deviation ``scale``; norms begin at one. It is tied unless ``config.tied`` is False."""
        return cls(config, random_weights(config, torch.Generator().manual_seed(seed), scale), device)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu") -> Model:
        """Load ``config.json``, ``generation_config.json`` and the ``*.safetensors`` files of a folder.

        Raise ValueError, which names the field or the weight, for a model that the engine would compute differently from transformers.
        """
        config = read_config(Path(folder))
        return cls(config, TensorFiles(Path(folder)), device, Generation.read(Path(folder), config.vocab))

    def save(self, folder: str | Path) -> None:
        """Write ``config.json``, ``generation_config.json`` and ``model.safetensors``, which ``load`` and transformers' ``from_pretrained`` read."""
        write(Path(folder), self.config, self.weights, self.generation.to_json())

    @property
    def weights(self) -> dict[str, Tensor]:
        """Copies of the float32 weights, under their Hugging Face names without the leading "transformer." or "model."."""
        with torch.inference_mode(False):
            found: dict[str, Tensor] = self._blocks.weights()
            if not self.config.tied:
                found[HEAD] = self._head.dense()
            return found

    def changes(self) -> int:
        """Return how often the weights have changed in place. Those of this class never do, and a ``SharedModel`` follows its trainer."""
        return 0

    def to(self, device: str | torch.device) -> Model:
        """Return this model if it is on that device, else a copy of it there."""
        device = torch.empty(0, device=device).device
        return self if device == self.device else Model(self.config, self.weights, device, self.generation)

    def hidden(self, tokens: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        """Return the last hidden states (N, width) of N tokens, which may belong to different sequences."""
        found: Tensor = self._blocks.hidden(tokens, positions, attend)
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (N, vocab) scores."""
        return self._head(hidden)


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name every weight that a model of this config needs, with its shape. The head is there if it is not the embedding."""
    found: dict[str, tuple[int, ...]] = FAMILIES[config.kind].shapes(config)
    return found | ({HEAD: (config.vocab, config.width)} if config.tied is False else {})
