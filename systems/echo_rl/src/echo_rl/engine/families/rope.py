"""Rotary positions (Su et al. 2021), plain or scaled for longer contexts."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from echo_rl.engine.families.config import ModelConfig, RopeScaling


def frequencies(c: ModelConfig) -> Tensor:
    """Return the angle (head_dim / 2,) by which each pair of dimensions turns from one position to the next."""
    plain = 1.0 / c.theta ** (torch.arange(0, c.head_dim, 2).float() / c.head_dim)
    return plain if c.scaling is None else _scaled(plain, c.scaling)


def turns(positions: Tensor, frequency: Tensor) -> tuple[Tensor, Tensor]:
    """Return what ``rotate`` needs of positions (N,): cosines and signed sines, each (N, 1, head_dim).

    A table for all positions of a long context would take hundreds of megabytes.
    """
    angles = positions[:, None].float() * frequency
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn queries or keys (N, heads, head_dim); dimension i turns with dimension i + head_dim / 2."""
    return torch.addcmul(x * cos, x.roll(x.shape[-1] // 2, -1), sin)


def _scaled(plain: Tensor, s: RopeScaling) -> Tensor:
    if s.kind == "linear":
        return plain / s.factor
    wavelength = 2 * math.pi / plain
    # 1 where a wavelength is short, 0 where it is long, and linear in the number of turns within the original context between them.
    kept = ((s.original / wavelength - s.low) / (s.high - s.low)).clamp(0.0, 1.0)
    return (1 - kept) * plain / s.factor + kept * plain
