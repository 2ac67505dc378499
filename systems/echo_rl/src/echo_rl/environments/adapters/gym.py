"""Any environment of Gymnasium, by its id: ``gym:CartPole-v1``."""

from __future__ import annotations

import importlib
from typing import Any

from echo_core import ConfigError

__all__ = ["GymEnvironment"]


class GymEnvironment:
    """An environment of Gymnasium.

    Args:
        id: its id, such as ``"CartPole-v1"`` or ``"module:Name-v0"``, whose module is imported first.
        options: what ``gymnasium.make`` takes further.

    Attributes:
        observation_space, action_space: of the environment.

    Raises:
        ConfigError: gymnasium is not installed, or it cannot make this environment.
    """

    def __init__(self, id: str, **options: Any) -> None:
        try:
            gymnasium = importlib.import_module("gymnasium")
        except ImportError as error:
            raise ConfigError(f"environment gym:{id} needs Gymnasium: pip install gymnasium") from error
        try:
            self._environment: Any = gymnasium.make(id, **options)
        except Exception as error:
            raise ConfigError(f"gymnasium cannot make {id!r}: {error}") from error
        self.observation_space = self._environment.observation_space
        self.action_space = self._environment.action_space

    def reset(self, seed: int) -> Any:
        """Begin the episode of this seed, and return its first observation."""
        observation, _ = self._environment.reset(seed=seed)
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once, as Gymnasium's ``step`` does."""
        observation, reward, terminated, truncated, info = self._environment.step(action)
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment."""
        self._environment.close()
