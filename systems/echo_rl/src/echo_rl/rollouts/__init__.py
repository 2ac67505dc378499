"""Rollouts: who may begin which task for which policy version, what comes back, and how a learner reads a batch of records."""

from .schema import FINISH_REASONS, Rollout, RolloutSchema, TokenBatch

__all__ = ["FINISH_REASONS", "Rollout", "RolloutSchema", "TokenBatch"]
