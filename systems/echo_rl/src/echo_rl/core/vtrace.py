"""V-trace: values and advantages of steps that an older policy has made (Espeholt et al., "IMPALA", 2018), and a learner that trains on them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from echo_rl.core.ppo_learner import PPOConfig, PPOLearner

__all__ = ["VTraceLearner", "vtrace"]

_CAP = 1.0  # of both importance weights, as in the paper


def vtrace(
    rewards: ArrayLike,
    values: ArrayLike,
    next_values: ArrayLike,
    terminated: ArrayLike,
    truncated: ArrayLike,
    ratios: ArrayLike,
    gamma: float = 0.99,
    decay: float = 1.0,
    cap: float = _CAP,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Advantages r + gamma v' - V and value targets v, float64 (T, ...), of arguments that all have the shape (T, ...).

    Arguments are those of ``gae``, and further:

        ratios: the probability of each action under the present policy divided by that under the policy that acted.
        decay: lambda, which multiplies the trace's weights c = min(cap, ratio).
        cap: the greatest weight. The loss of the policy multiplies the advantages with min(cap, ratio) itself.

    Raises ValueError if the shapes differ, or if a number is not finite.
    """
    reward, value, following, ratio = (np.asarray(x, np.float64) for x in (rewards, values, next_values, ratios))
    terminal, cut = np.asarray(terminated).astype(bool), np.asarray(truncated).astype(bool)
    if len({x.shape for x in (reward, value, following, ratio, terminal, cut)}) != 1 or not reward.ndim:
        raise ValueError("rewards, values, next_values, terminated, truncated and ratios must have one shape (T, ...)")
    for name, given in (("rewards", reward), ("values", value), ("next_values", following), ("ratios", ratio)):
        if not np.isfinite(given).all():
            raise ValueError(f"{name} holds a number that is not finite")
    following, goes_on = np.where(terminal, 0.0, following), ~(terminal | cut)
    weight = np.minimum(ratio, cap)
    deltas = weight * (reward + gamma * following - value)
    advantages, targets = np.empty_like(deltas), np.empty_like(deltas)
    correction = np.zeros(deltas.shape[1:])  # v - V of the step after this one
    for t in range(len(deltas) - 1, -1, -1):
        later = np.where(goes_on[t], correction, 0.0)
        advantages[t] = reward[t] + gamma * (following[t] + later) - value[t]
        correction = deltas[t] + gamma * decay * weight[t] * later
        targets[t] = value[t] + correction
    return advantages, targets


class VTraceLearner(PPOLearner):
    """The learner of IMPALA: the policy gradient with truncated importance weights, and V-trace for values and advantages.

    Args are those of ``PPOLearner``. Of the configuration, ``clip_epsilon``, ``kl_coef``, ``correction`` and ``correction_cap`` have no meaning here, and
    ``gae_lambda`` is the decay of the traces. V-trace is computed once for an update; the weights of the policy gradient are those of each gradient step.
    """

    def __init__(
        self,
        policy: nn.Module,
        config: PPOConfig | None = None,
        device: str = "cpu",
        *,
        auxiliary: Callable[[Tensor], Tensor] | None = None,
        groups: Iterable[Any] | None = None,
    ) -> None:
        rules = replace(config or PPOConfig(), correction="tis", correction_cap=_CAP, kl_coef=0.0)
        super().__init__(policy, rules, device, auxiliary=auxiliary, groups=groups)

    def _estimated(
        self, rewards: NDArray[Any], values: NDArray[Any], following: NDArray[Any], terminated: NDArray[Any], truncated: NDArray[Any], ratios: NDArray[Any]
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return vtrace(rewards, values, following, terminated, truncated, ratios, self.config.gamma, self.config.gae_lambda)
