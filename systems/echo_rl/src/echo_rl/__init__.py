"""Reinforcement learning of language-model agents on Echo."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

__all__ = ["EchoRLTrainer", "TrainingConfig", "TrainingMetrics"]

if TYPE_CHECKING:
    from .training.trainer import EchoRLTrainer as EchoRLTrainer
    from .training.trainer import TrainingConfig as TrainingConfig
    from .training.trainer import TrainingMetrics as TrainingMetrics


def __getattr__(name: str) -> Any:
    if name in __all__:  # imported when they are first used, since they need PyTorch
        return getattr(import_module(".training.trainer", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
