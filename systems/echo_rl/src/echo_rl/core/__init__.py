"""Configurations of echo-rl's parts; a name imports its module when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Where each name lives.
_HOME = {
    "BandwidthConfig": "bandwidth",
    "ExecutionConfig": "async_execution",
    "GRPOConfig": "grpo",
    "PPOConfig": "ppo_learner",
    "PlanningConfig": "latent_planning",
    "ReplayConfig": "prioritized_replay",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:
    from .async_execution import ExecutionConfig as ExecutionConfig
    from .bandwidth import BandwidthConfig as BandwidthConfig
    from .grpo import GRPOConfig as GRPOConfig
    from .latent_planning import PlanningConfig as PlanningConfig
    from .ppo_learner import PPOConfig as PPOConfig
    from .prioritized_replay import ReplayConfig as ReplayConfig


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
