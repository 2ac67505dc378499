"""Policy losses that correct for tokens of an older policy: one function for each correction, and their figures.

All tensors are of one shape, usually (tokens,): `current` are log-probabilities with gradients, `proximal` and `behaviour` those of the
policy at the update's start and of the policy that made the tokens, `advantages` and `mask` (1: the policy made the token). A loss is per
token, and 0 where the mask is 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Correction = Literal["none", "ppo", "tis", "decoupled"]


@dataclass(frozen=True)
class CorrectionMetrics:
    """Over the masked tokens: the share whose ratio was clipped, the mean correction, and the share whose correction was capped."""

    clip_share: float
    mean_correction: float
    capped_share: float


def none(current: Tensor, advantages: Tensor, mask: Tensor) -> tuple[Tensor, CorrectionMetrics]:
    """-log p A: the policy gradient without a correction."""
    current, advantages = _kept(current, mask), _kept(advantages, mask)
    return _masked(-current * advantages, mask), CorrectionMetrics(0.0, 1.0, 0.0)


def ppo(current: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, clip_epsilon: float = 0.2) -> tuple[Tensor, CorrectionMetrics]:
    """-min(r A, clip(r) A) with r = p / p_behaviour, clipped to 1 - clip_epsilon .. 1 + clip_epsilon."""
    loss, clipped = _clipped(current, behaviour, advantages, mask, clip_epsilon)
    return _masked(loss, mask), CorrectionMetrics(_share(clipped, mask), 1.0, 0.0)


def tis(current: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, cap: float = 2.0) -> tuple[Tensor, CorrectionMetrics]:
    """-c log p A with the truncated importance weight c = min(p / p_behaviour, cap), through which no gradient flows."""
    factor, capped = _correction(current, behaviour, mask, cap)
    current, advantages = _kept(current, mask), _kept(advantages, mask)
    return _masked(-factor * current * advantages, mask), CorrectionMetrics(0.0, _share(factor, mask), _share(capped, mask))


def decoupled(
    current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, clip_epsilon: float = 0.2, cap: float = 2.0
) -> tuple[Tensor, CorrectionMetrics]:
    """-c min(r A, clip(r) A) with r = p / p_proximal and c = min(p_proximal / p_behaviour, cap)."""
    loss, clipped = _clipped(current, proximal, advantages, mask, clip_epsilon)
    factor, capped = _correction(proximal, behaviour, mask, cap)
    return _masked(factor * loss, mask), CorrectionMetrics(_share(clipped, mask), _share(factor, mask), _share(capped, mask))


def corrected(
    kind: Correction, current: Tensor, proximal: Tensor, behaviour: Tensor, advantages: Tensor, mask: Tensor, clip_epsilon: float, cap: float
) -> tuple[Tensor, CorrectionMetrics]:
    """The loss of the correction with that name. Only "decoupled" reads `proximal`."""
    if kind == "none":
        return none(current, advantages, mask)
    if kind == "ppo":
        return ppo(current, behaviour, advantages, mask, clip_epsilon)
    if kind == "tis":
        return tis(current, behaviour, advantages, mask, cap)
    return decoupled(current, proximal, behaviour, advantages, mask, clip_epsilon, cap)


def _clipped(current: Tensor, reference: Tensor, advantages: Tensor, mask: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    if not 0 < epsilon < 1:
        raise ValueError(f"clip_epsilon must be between 0 and 1, got {epsilon}")
    advantages = _kept(advantages, mask)
    ratio = torch.exp(_kept(current, mask) - _kept(reference.detach(), mask))
    free, bounded = ratio * advantages, ratio.clamp(1 - epsilon, 1 + epsilon) * advantages
    return -torch.minimum(free, bounded), bounded < free


def _correction(numerator: Tensor, behaviour: Tensor, mask: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    if not cap > 0:
        raise ValueError(f"cap must be greater than 0, got {cap}")
    ratio = torch.exp(_kept(numerator, mask) - _kept(behaviour, mask)).detach()
    return ratio.clamp(max=cap), ratio > cap


def _kept(values: Tensor, mask: Tensor) -> Tensor:
    # Tokens that the policy didn't make may hold anything. They become 0 before any product: NaN times 0 would still be NaN in the gradient.
    return torch.where(mask.bool(), values, 0.0)


def _masked(loss: Tensor, mask: Tensor) -> Tensor:
    return torch.where(mask.bool(), loss, 0.0)


def _share(values: Tensor, mask: Tensor) -> float:
    chosen = values[mask.bool()]
    return float(chosen.double().mean()) if chosen.numel() else 0.0
