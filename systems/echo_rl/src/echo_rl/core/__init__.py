"""Configurations of echo-rl's parts; a name imports its module when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "BandwidthConfig": "bandwidth",
    "ExecutionConfig": "async_execution",
    "GRPOConfig": "grpo",
    "PPOConfig": "ppo_learner",
    "PlanningConfig": "latent_planning",
    "ReplayConfig": "prioritized_replay",
}
__all__ = ["BandwidthConfig", "ExecutionConfig", "GRPOConfig", "PPOConfig", "PlanningConfig", "ReplayConfig"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
