"""Losses of packed tokens: the advantages of each token, and the loss whose parts add up to that of the whole batch.

The formulas of advantages, corrections, scales and divergences are those of ``echo_rl.core``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from echo_rl.checks import check_fields, flag, one_of, real
from echo_rl.core import corrections
from echo_rl.core.gae import gae
from echo_rl.core.grpo import GRPOConfig, group_advantages, k3

Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.floating]

#: The names of the figures of ``token_loss``.
FIGURES = ("loss", "policy_loss", "value_loss", "entropy", "kl", "reference_kl", "clip_share", "mean_correction", "capped_share")


@dataclass(frozen=True)
class TokenLossConfig:
    """What is minimised.

    Attributes:
        advantages: ``"grpo"``: of each rollout beside the others of its group (Shao et al. 2024). ``"reinforce"``: the reward less a running mean of rewards
            (Williams 1992). ``"ppo"``: generalised advantage estimates of the model's value head (Schulman et al. 2017).
        correction: how the loss corrects for tokens of an older policy; ``echo_rl.core.corrections`` has the formulas.
        clip_epsilon, correction_cap: the clip of "ppo" and "decoupled", and the greatest weight of "tis" and "decoupled".
        scale, loss: of ``GRPOConfig``: what divides a group's advantages, and whether the loss is a sum, or a mean over tokens or sequences. ``loss`` holds
            for all advantages.
        kl_coef: the weight of the k3 divergence from the reference model.
        entropy_coef: the weight of the policy's entropy, which is maximised.
        value_loss_coef: the weight of half the squared error of the values, with "ppo".
        gamma, gae_lambda: the discount from one token of the policy to the next, and the decay of the advantages' sums, with "ppo".
        bootstrap: with "ppo", whether a rollout that ended by its length was cut off, so that the value of its last state is added to its reward. By
            default its reward is that of the whole rollout.
        baseline_decay: how much of the running mean of rewards an update keeps, with "reinforce".
    """

    advantages: Literal["grpo", "reinforce", "ppo"] = "grpo"
    correction: corrections.Correction = "ppo"
    clip_epsilon: float = 0.2
    correction_cap: float = 2.0
    scale: Literal["std", "none"] = "std"
    loss: Literal["sum", "token", "sequence"] = "token"
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    value_loss_coef: float = 0.5
    gamma: float = 1.0
    gae_lambda: float = 0.95
    bootstrap: bool = False
    baseline_decay: float = 0.9

    def __post_init__(self) -> None:
        check_fields(
            self,
            advantages=one_of("grpo", "reinforce", "ppo"),
            correction=one_of("none", "ppo", "tis", "decoupled"),
            clip_epsilon=real(above=0, below=1),
            correction_cap=real(above=0),
            scale=one_of("std", "none"),
            loss=one_of("sum", "token", "sequence"),
            kl_coef=real(0),
            entropy_coef=real(0),
            value_loss_coef=real(0),
            gamma=real(0, 1),
            gae_lambda=real(0, 1),
            bootstrap=flag(),
            baseline_decay=real(0, below=1),
        )

    @property
    def grpo(self) -> GRPOConfig:
        """The part that ``echo_rl.core.grpo`` reads."""
        return GRPOConfig(self.scale, self.loss)


@dataclass(frozen=True)
class Targets:
    """What the loss needs of each token beside the model's present scores; all are tensors (tokens,).

    Attributes:
        mask: whether the loss counts the token. weights: its factor, from ``grpo.token_weights`` of the whole batch.
        advantages: of the token. returns: of the state before the token, or None without values.
        behaviour, proximal, reference: log-probabilities under the policy that drew the token, under the policy at the update's start, and under the
            reference model, or None without one.
    """

    mask: Tensor
    weights: Tensor
    advantages: Tensor
    behaviour: Tensor
    proximal: Tensor
    returns: Tensor | None = None
    reference: Tensor | None = None


def of_groups(rewards: Floats, group: Ints, config: GRPOConfig, counted: Bools | None = None) -> tuple[Floats, Bools]:
    """Return the advantages (N,) of N rollouts beside the others of their group, and whether the rollout is to be used (N,): its group has a spread.

    Args:
        counted: (N,): rollouts that are compared with each other. The others have advantage 0, and are not to be used; None counts all of them.

    Raises ValueError if groups have different sizes or fewer than 2 rollouts, or if a reward is not finite.
    """
    _, sizes = np.unique(group, return_counts=True)
    if (np.diff(group) < 0).any() or len(set(sizes.tolist())) > 1:
        raise ValueError(f"rollouts of a group must follow one another, and all groups must have one size; the sizes are {sizes.tolist()!r:.80}")
    table = rewards.reshape(len(sizes), -1)
    found, spread = (x.numpy() for x in group_advantages(torch.from_numpy(table.copy()), config))
    used = np.repeat(spread, sizes)
    if counted is None or counted.all():
        return found.flatten(), used
    advantages = found.copy()
    inside = counted.reshape(table.shape)
    for i in np.flatnonzero(~inside.all(1)):
        advantages[i], kept = 0.0, inside[i]
        spread[i] = False
        if kept.sum() > 1:
            part, one = group_advantages(torch.from_numpy(table[i, kept][None].copy()), config)
            advantages[i, kept], spread[i] = part[0].numpy(), bool(one[0])
    return advantages.flatten(), np.repeat(spread, sizes) & counted


def of_values(
    values: Floats, rewards: Floats, mask: Bools, cu_seqlens: Ints, cut: Bools, gamma: float, gae_lambda: float
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return advantages and returns, float64 (tokens,), of the policy's tokens; others have 0.

    A step leads from the state before one token of the policy to the state before the next one, over the environment's tokens between them. The last step
    of a rollout has its reward, and leads to the state after all its tokens.

    Args:
        values: (tokens,) of the state that ends with each token. mask: (tokens,) of the policy's tokens; the first token of a rollout is not.
        rewards: (N,) of whole rollouts. cut: (N,): whether the value of the last state follows the reward.
    """
    at = np.flatnonzero(mask)
    owner = np.searchsorted(cu_seqlens, at, side="right") - 1
    counts = np.bincount(owner, minlength=len(rewards))
    step = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts)
    before = np.zeros((counts.max(initial=0) + 1, len(rewards)))  # one step more than any rollout has, so that the shift below has room
    before[step, owner] = values[at - 1]
    after = np.roll(before, -1, axis=0)
    reward, terminated, truncated = np.zeros_like(before), np.zeros(before.shape, bool), np.zeros(before.shape, bool)
    used = np.flatnonzero(counts)
    last = counts[used] - 1
    after[last, used] = values[cu_seqlens[1:][used] - 1]
    reward[last, used], terminated[last, used], truncated[last, used] = rewards[used], ~cut[used], cut[used]
    advantages, returns = np.zeros(len(mask)), np.zeros(len(mask))
    found = gae(reward, before, after, terminated, truncated, gamma, gae_lambda)
    advantages[at], returns[at] = (x[step, owner] for x in found)
    return advantages, returns


def token_loss(current: Tensor, entropy: Tensor, values: Tensor | None, targets: Targets, config: TokenLossConfig) -> tuple[Tensor, dict[str, float]]:
    """Return the loss of some rollouts of a batch, and the sums of its figures over the tokens that count.

    The losses of all parts of a batch add up to that of the whole batch, and so do the figures.

    Args:
        current, entropy: (tokens,) of the model's distribution at each token. values: (tokens,) of the state before each token, or None.
    """
    mask = targets.mask
    count = float(mask.sum())

    def kept(x: Tensor) -> Tensor:
        return torch.where(mask, x, 0.0)

    current, entropy, behaviour = kept(current), kept(entropy), kept(targets.behaviour)
    losses, metrics = corrections.corrected(
        config.correction, current, targets.proximal, behaviour, targets.advantages, mask, config.clip_epsilon, config.correction_cap
    )
    figures = {
        "policy_loss": float((targets.weights * losses).sum().detach()),
        "entropy": float(entropy.sum().detach()),
        "kl": float(k3(behaviour, current).sum().detach()),
        "clip_share": metrics.clip_share * count,
        "mean_correction": metrics.mean_correction * count,
        "capped_share": metrics.capped_share * count,
    }
    losses = losses - config.entropy_coef * entropy
    if targets.reference is not None:
        divergence = k3(current, kept(targets.reference))
        figures["reference_kl"] = float(divergence.sum().detach())
        losses = losses + config.kl_coef * divergence
    if targets.returns is not None:
        if values is None:
            raise ValueError('advantages="ppo" needs a model with a value head')
        errors = 0.5 * (kept(values) - targets.returns) ** 2
        figures["value_loss"] = float((targets.weights * errors).sum().detach())
        losses = losses + config.value_loss_coef * errors
    loss = (targets.weights * losses).sum()
    figures["loss"] = float(loss.detach())
    return loss, figures
