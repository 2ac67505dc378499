"""Training over a language model that is behind an interface: its weights stay as they are, and a small policy chooses among what it proposes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from echo_rl.backbones import is_known
from echo_rl.environments import register_environment
from echo_rl.environments.proposals import NAME, ProposalsEnvironment
from echo_rl.training.config import TrainingConfig

__all__ = ["contextual"]


def contextual(config: TrainingConfig) -> TrainingConfig:
    """The run over the proposals of ``config.backbone``, if this is the name of a language model and no folder; otherwise the run as it is."""
    name = config.backbone
    if name is None or Path(name).is_dir() or not is_known(name):
        return config
    register_environment(NAME, ProposalsEnvironment)
    options: dict[str, Any] = {"task": config.env_name, "options": config.env_options, "backbone": name, "max_tokens": config.execution.max_new_tokens}
    imports = [*config.imports, ProposalsEnvironment.__module__]
    return replace(config, env_name=NAME, env_options=options, backbone=None, imports=imports)
