"""Advantages of rollouts beside the others of their task (GRPO), and the scale of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class GRPOConfig:
    """`scale`: "std" divides advantages by the group's deviation, "none" does not. `loss`: the mean is over tokens, or over sequences."""

    scale: Literal["std", "none"] = "std"
    loss: Literal["token", "sequence"] = "token"

    def __post_init__(self) -> None:
        if self.scale not in ("std", "none"):
            raise ValueError(f"scale must be 'std' or 'none', got {self.scale!r}")
        if self.loss not in ("token", "sequence"):
            raise ValueError(f"loss must be 'token' or 'sequence', got {self.loss!r}")


def group_advantages(rewards: Tensor, config: GRPOConfig | None = None) -> tuple[Tensor, Tensor]:
    """(R - mean) / (std + 1e-4) in each group, rewards (groups, G) -> advantages (groups, G), and which groups have a spread (groups,).

    A group whose rewards are all equal teaches nothing: its advantages are 0, and the learner counts and skips it.
    Raises ValueError for another shape or fewer than 2 rollouts in a group.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have the shape (groups, G) with G of at least 2, got {tuple(rewards.shape)}")
    spread = (rewards != rewards[:, :1]).any(dim=1)
    advantages = torch.where(spread[:, None], rewards - rewards.mean(dim=1, keepdim=True), 0.0)
    if (config or GRPOConfig()).scale == "std":
        advantages = advantages / (rewards.std(dim=1, keepdim=True) + 1e-4)
    return advantages, spread


def reduce_loss(losses: Tensor, mask: Tensor, lengths: Tensor, config: GRPOConfig | None = None) -> Tensor:
    """The mean of losses per token (tokens,) over tokens, or over sequences of `lengths` (n,); tokens with mask 0 don't count.

    Raises ValueError if the lengths don't add up to the number of tokens.
    """
    if int(lengths.sum()) != len(losses):
        raise ValueError(f"the lengths add up to {int(lengths.sum())}, but there are {len(losses)} tokens")
    kept = torch.where(mask.bool(), losses, 0.0)
    counts = mask.bool().to(losses.dtype)
    if (config or GRPOConfig()).loss == "token":
        return kept.sum() / counts.sum().clamp(min=1)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=losses.device), lengths)
    sums, sizes = (torch.zeros(len(lengths), dtype=losses.dtype, device=losses.device).index_add(0, owner, x) for x in (kept, counts))
    return (sums / sizes.clamp(min=1)).sum() / (sizes > 0).sum().clamp(min=1)


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """The estimate exp(d) - d - 1 of the divergence from a reference for each token, with d = reference - current; never negative."""
    d = reference - current
    return torch.exp(d) - d - 1
