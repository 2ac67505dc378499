"""Advantages of rollouts beside the others of their task (GRPO), and the scale of the loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from echo_rl.checks import check_fields, one_of


@dataclass(frozen=True)
class GRPOConfig:
    """`scale`: "std" divides advantages by the group's deviation, "none" does not. `loss`: the sum over tokens, or the mean over tokens, or over sequences."""

    scale: Literal["std", "none"] = "std"
    loss: Literal["sum", "token", "sequence"] = "token"

    def __post_init__(self) -> None:
        check_fields(self, scale=one_of("std", "none"), loss=one_of("sum", "token", "sequence"))


def group_advantages(rewards: Tensor, config: GRPOConfig | None = None) -> tuple[Tensor, Tensor]:
    """(R - mean) / (std + 1e-4) in each group, rewards (groups, G) -> advantages (groups, G) float32, and which groups have a spread (groups,).

    A group whose rewards are all equal teaches nothing: its advantages are 0, and the learner counts and skips it. Rewards that differ by no more than
    a millionth of the greatest are equal, since such a difference is only that of rounding.
    Raises ValueError for another shape, for fewer than 2 rollouts in a group, and for a reward that is not finite, since it would spoil its whole group.
    """
    if rewards.ndim != 2 or rewards.shape[1] < 2:
        raise ValueError(f"rewards must have the shape (groups, G) with G of at least 2, got {tuple(rewards.shape)}")
    # In float64, where neither the squares of large rewards nor the sums of 16-bit ones overflow.
    found = rewards.double()
    if not torch.isfinite(found).all():
        group, member = (~torch.isfinite(found)).nonzero()[0].tolist()
        raise ValueError(f"the reward of rollout {member} in group {group} is {float(found[group, member])}; rewards must be finite")
    spread = found.max(dim=1).values - found.min(dim=1).values > 1e-6 * found.abs().max(dim=1).values
    advantages = torch.where(spread[:, None], found - found.mean(dim=1, keepdim=True), 0.0)
    if (config or GRPOConfig()).scale == "std":
        advantages = advantages / (found.std(dim=1, keepdim=True) + 1e-4)
    return advantages.float(), spread


def token_weights(mask: Tensor, lengths: Tensor, config: GRPOConfig | None = None) -> Tensor:
    """The factor (tokens,) of each token's loss, so that the sum of the products is the loss of the whole batch; 0 where the mask is 0.

    A learner that goes through the batch in pieces adds the pieces' sums, and gets the gradient of the whole batch.
    Raises ValueError if the lengths don't add up to the number of tokens.
    """
    if int(lengths.sum()) != len(mask):
        raise ValueError(f"the lengths add up to {int(lengths.sum())}, but there are {len(mask)} tokens")
    counts, kind = mask.bool().float(), (config or GRPOConfig()).loss
    if kind == "sum":
        return counts
    if kind == "token":
        return counts / counts.sum().clamp(min=1)
    owner = torch.repeat_interleave(torch.arange(len(lengths), device=mask.device), lengths)
    sizes = torch.zeros(len(lengths), device=mask.device).index_add(0, owner, counts)
    return counts / sizes.clamp(min=1)[owner] / (sizes > 0).sum().clamp(min=1)


def reduce_loss(losses: Tensor, mask: Tensor, lengths: Tensor, config: GRPOConfig | None = None) -> Tensor:
    """The sum of losses per token (tokens,), or their mean over tokens, or over sequences of `lengths` (n,); tokens with mask 0 don't count.

    Raises ValueError if the lengths don't add up to the number of tokens.
    """
    return (torch.where(mask.bool(), losses, 0.0) * token_weights(mask, lengths, config)).sum()


def k3(current: Tensor, reference: Tensor) -> Tensor:
    """The estimate exp(d) - d - 1 of the divergence from a reference for each token, with d = reference - current; never negative."""
    d = reference - current
    return torch.exp(d) - d - 1
