"""The keys and values of the tokens that running requests add, in one preallocated block."""

import torch
from torch import Tensor

from echo_rl.engine.model import ModelConfig


class Slab:
    """Rows of ``room`` tokens, one per running request. Rows ``0 .. n-1`` are in use, so a decode reads a view and gathers nothing.

    Attributes:
        k: Keys, (layers, slots, kv_heads, room, head_dim).
        v: Values, of the same shape.
        room: Tokens per row.
    """

    def __init__(self, config: ModelConfig, slots: int, room: int, device: torch.device) -> None:
        shape = (config.layers, slots, config.kv_heads, room, config.head_dim)
        # Zeros, as a masked key must still be a number.
        self.k = torch.zeros(shape, device=device)
        self.v = torch.zeros(shape, device=device)
        self.room = room

    def places(self, lengths: Tensor) -> Tensor:
        """Return where ``write`` puts the next token of rows ``0 .. n-1``, whose lengths are (n,) int64."""
        heads = torch.arange(len(lengths) * self.k.shape[2], device=lengths.device).view(len(lengths), -1)
        return (heads * self.room + lengths[:, None]).view(-1)

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> None:
        """Put one key and one value (n, kv_heads, head_dim) of each row at the ``places``."""
        dim = self.k.shape[-1]
        self.k[layer].view(-1, dim).index_copy_(0, places, k.reshape(-1, dim))
        self.v[layer].view(-1, dim).index_copy_(0, places, v.reshape(-1, dim))

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first ``length`` tokens of one row to another."""
        self.k[:, target, :, :length] = self.k[:, source, :, :length]
        self.v[:, target, :, :length] = self.v[:, source, :, :length]
