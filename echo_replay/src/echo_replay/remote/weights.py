"""The importance weights of a batch that a client has drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..tables.replay_info import importance_weights

if TYPE_CHECKING:
    from .remote_sample import RemoteInfo

__all__ = ["lag_factors", "weights_of"]


def weights_of(probabilities: np.ndarray, info: RemoteInfo) -> np.ndarray:
    """The importance weights of a batch, reduced for items of old policies."""
    weights = importance_weights(probabilities, info.beta)
    if (factors := lag_factors(info)) is not None:
        weights *= factors
    return weights


def lag_factors(info: RemoteInfo) -> np.ndarray | None:
    """By what the weight of each item is reduced because its policy is old: float32 of shape (n,). None: no weight is reduced."""
    if info.policy_versions is None or info.lag_weight == 1:
        return None
    lags = np.maximum(info.policy_version - info.policy_versions.astype(np.int64), 0)
    factors: np.ndarray = (info.lag_weight**lags).astype(np.float32)
    return factors
