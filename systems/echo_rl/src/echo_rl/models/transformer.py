"""A transformer that can be trained. Its parameters have the names of Hugging Face's files, and its formulas are those of the engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from echo_rl.engine.families import FAMILIES
from echo_rl.engine.families.config import ModelConfig
from echo_rl.engine.families.files import HEAD, TensorFiles, Weights, random_weights, read_config
from echo_rl.engine.families.generation import Generation
from echo_rl.engine.linear import PlainLinear


@dataclass(frozen=True)
class Scores:
    """What a model says of N packed tokens.

    Attributes:
        log_probs: (N,): of each token given those before it in its sequence. The first token of a sequence has 0.
        entropy: (N,): of the distribution that the token was drawn from. The first token of a sequence has 0.
        values: (N,) or None: the value of the state that ends with the token, if the model has a value head.
    """

    log_probs: Tensor
    entropy: Tensor
    values: Tensor | None


class TrainableTransformer(nn.Module):
    """A transformer of any family that the engine computes (``echo_rl.engine.families``), in float32.

    ``update_weights`` of an engine takes ``weights()``, which are copies. An engine of the same process can also compute with the parameters themselves:
    ``Engine(SharedModel(model))``.

    Args:
        config: The shape.
        weights: Tensors under their Hugging Face names, as ``Model`` takes them, or a ``Model``'s ``weights``. They are copied.
        device: Where the model computes.
        value_head: Whether the model also has a linear map from hidden states to values. It begins at 0.

    Attributes:
        config: The shape, with ``tied`` decided.
        generation: The tokens that end an answer, and limits. ``load`` reads them.

    Raises:
        ValueError: The message names the weight that is missing, unknown, not finite, of a wrong shape or of a dtype that is no float.
    """

    def __init__(
        self, config: ModelConfig, weights: Mapping[str, Tensor] | TensorFiles, device: str | torch.device = "cpu", *, value_head: bool = False
    ) -> None:
        super().__init__()
        checked = Weights(config, weights, torch.device(device))
        self.config, self.generation = checked.config, Generation()
        self._names = list(checked)
        for name in self._names:
            *path, last = name.split(".")
            place: nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, nn.Module())
                place = place.get_submodule(part)
            place.register_parameter(last, nn.Parameter(checked[name].clone()))
        self.value_head: nn.Linear | None = None
        if value_head:
            self.value_head = nn.Linear(config.width, 1, device=device)
            nn.init.zeros_(self.value_head.weight)
            nn.init.zeros_(self.value_head.bias)

    @classmethod
    def random(
        cls, config: ModelConfig, seed: int = 0, device: str | torch.device = "cpu", *, scale: float = 0.02, value_head: bool = False
    ) -> TrainableTransformer:
        """Make a model with the weights of ``Model.random`` of the same seed."""
        return cls(config, random_weights(config, torch.Generator().manual_seed(seed), scale), device, value_head=value_head)

    @classmethod
    def load(cls, folder: str | Path, device: str | torch.device = "cpu", *, value_head: bool = False) -> TrainableTransformer:
        """Load ``config.json``, ``generation_config.json`` and the ``*.safetensors`` files of a folder, as ``Model.load`` does."""
        config = read_config(Path(folder))
        found = cls(config, TensorFiles(Path(folder)), device, value_head=value_head)
        found.generation = Generation.read(Path(folder), config.vocab)
        return found

    @property
    def head(self) -> str:
        """The name of the parameter that turns hidden states into scores. If the config is tied, it is that of the embedding."""
        name: str = FAMILIES[self.config.kind].EMBEDDING if self.config.tied else HEAD
        return name

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the parameters that an engine needs; the value head is not among them."""
        return tuple(self._names)

    @property
    def device(self) -> torch.device:
        """Where the model computes."""
        return self.get_parameter(self._names[0]).device

    def weights(self) -> dict[str, Tensor]:
        """Return copies of the weights under the names that ``Model`` and ``update_weights`` take; the value head is not among them."""
        return {name: self.get_parameter(name).detach().clone() for name in self._names}

    def hidden(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return the last hidden states (N, width) of packed sequences; see ``forward``."""
        lengths = self.check(tokens, cu_seqlens)
        positions = torch.cat([torch.arange(n, device=tokens.device) for n in lengths.tolist()]) if len(lengths) else tokens
        # A parameter may have been replaced since the last pass, so the blocks are made anew. They copy nothing.
        blocks = FAMILIES[self.config.kind].Blocks(self.config, {name: self.get_parameter(name) for name in self._names}, PlainLinear)
        found: Tensor = blocks.hidden(tokens, positions, _PackedAttention(lengths, tokens.device))
        return found

    def logits(self, hidden: Tensor) -> Tensor:
        """Return (N, vocab) scores of the token that follows each hidden state."""
        return F.linear(hidden, self.get_parameter(self.head))

    def forward(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return the logits (N, vocab) of the token that follows each of N packed tokens.

        Args:
            tokens: whole numbers (N,): sequences that follow one another without padding. No sequence sees another one.
            cu_seqlens: whole numbers (sequences + 1,): where each sequence begins, and N.

        Raises:
            ValueError: the offsets don't fit the tokens, a sequence is longer than the model's context, or a token is not in the vocabulary.
        """
        return self.logits(self.hidden(tokens, cu_seqlens))

    def score(self, tokens: Tensor, cu_seqlens: Tensor, temperature: float = 1.0) -> Scores:
        """Return the log-probability of each token at the temperature at which the tokens were drawn; see ``forward`` for the arguments."""
        hidden = self.hidden(tokens, cu_seqlens)
        first = torch.zeros(len(tokens), dtype=torch.bool, device=tokens.device)
        first[cu_seqlens[:-1][cu_seqlens[:-1] < len(tokens)].long()] = True
        chosen = (~first).nonzero()[:, 0]
        spread = (self.logits(hidden[chosen - 1]) / temperature).log_softmax(-1)
        own = spread.gather(1, tokens[chosen].long()[:, None])[:, 0]
        empty = own.new_zeros(len(tokens))
        return Scores(
            empty.index_copy(0, chosen, own),
            empty.index_copy(0, chosen, -(spread.exp() * spread).sum(-1)),
            None if self.value_head is None else self.value_head(hidden)[:, 0],
        )

    def check(self, tokens: Tensor, cu_seqlens: Tensor) -> Tensor:
        """Return the length of each sequence, on the CPU. Raise ValueError for what ``forward`` cannot compute."""
        lengths = cu_seqlens.diff().cpu()
        if tokens.ndim != 1 or not len(cu_seqlens) or int(cu_seqlens[0]) != 0 or int(cu_seqlens[-1]) != len(tokens) or bool((lengths < 0).any()):
            raise ValueError(f"cu_seqlens must ascend from 0 to the {tokens.numel()} tokens, which must have one axis")
        if len(lengths) and int(lengths.max()) > self.config.context:
            raise ValueError(f"a sequence has {int(lengths.max())} tokens, and the model's context is {self.config.context}")
        if len(tokens) and not 0 <= int(tokens.min()) <= int(tokens.max()) < self.config.vocab:
            raise ValueError(f"the tokens are in {int(tokens.min())} .. {int(tokens.max())}; the model knows 0 .. {self.config.vocab - 1}")
        return lengths


class _PackedAttention:
    """Causal attention within each sequence. Sequences of one length are computed together, so nothing is padded."""

    def __init__(self, lengths: Tensor, device: torch.device) -> None:
        starts = lengths.cumsum(0) - lengths
        sizes = sorted(set(lengths.tolist()) - {0})
        self._rows = [(starts[lengths == n][:, None] + torch.arange(n)).to(device) for n in sizes]
        order = torch.cat([rows.flatten() for rows in self._rows]) if sizes else torch.zeros(0, dtype=torch.long, device=device)
        self._back = order.argsort()

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if not self._rows:
            return q
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        found = []
        for rows in self._rows:  # (sequences, n)
            own_q, own_k, own_v = (x[rows].transpose(1, 2) for x in (q, k, v))
            found.append(F.scaled_dot_product_attention(own_q, own_k, own_v, is_causal=True).transpose(1, 2).flatten(0, 1))
        return torch.cat(found)[self._back]
