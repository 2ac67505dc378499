"""The protocol of environments for the training loop, and the checks of the values that they return."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from echo_core import EchoError

__all__ = ["CheckedEnvironment", "Environment", "EnvironmentFailure", "Transition"]


class EnvironmentFailure(EchoError):
    """An environment has raised, or has returned something that cannot be used for training. The message names the environment and the fault."""


def checked_seed(name: str, seed: Any) -> int:
    """The seed of an episode. Raise EnvironmentFailure, which names the environment, if it is not a whole number of at least 0: others reproduce no episode."""
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise EnvironmentFailure(f"{name}: the seed of an episode has to be a whole number of at least 0, not {seed!r}")
    return int(seed)


class Transition(NamedTuple):
    """What follows an action.

    Attributes:
        observation: the next observation, a text or an array.
        reward: of this action, finite.
        terminated: whether the task is over, so that nothing can follow.
        truncated: whether the episode was cut off although more could follow, such as by a limit of steps.
        info: further figures. ``info["success"]``, where it is there, says whether the task is solved.
    """

    observation: Any
    reward: float
    terminated: bool
    truncated: bool
    info: dict[str, Any]


@runtime_checkable
class Environment(Protocol):
    """A task in episodes. Text environments observe and act in text; others in arrays and numbers.

    An environment may have the attribute ``admissible``: the actions that are possible now, as a list of texts. It may have the method ``close``.
    """

    def reset(self, seed: int) -> Any:
        """Begin the episode that belongs to this seed, and return its first observation. The same seed begins the same episode."""

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once. Return the observation, the reward, whether the episode is terminated, whether it is truncated, and further figures."""


class CheckedEnvironment:
    """An environment whose faults are found where they happen: a reward that is not finite would otherwise reach the loss of a whole group.

    Args:
        environment: the environment.
        name: its name in errors.
    """

    def __init__(self, environment: Environment, name: str) -> None:
        self.environment, self.name = environment, name
        self._running = False

    @property
    def admissible(self) -> list[str] | None:
        """The actions that are possible now; None if the environment does not say."""
        actions = getattr(self.environment, "admissible", None)
        return None if actions is None else [str(action) for action in actions]

    def reset(self, seed: int) -> Any:
        """Begin the episode of this seed, and return its first observation.

        Raises EnvironmentFailure if the seed is not a whole number of at least 0, if the environment raises, or if its observation is None.
        """
        self._running = False
        seed = checked_seed(f"environment {self.name}", seed)
        try:
            observation = self.environment.reset(seed)
        except Exception as error:
            raise EnvironmentFailure(f"environment {self.name}: reset({seed}) has raised {type(error).__name__}: {error}") from error
        if observation is None:
            raise EnvironmentFailure(f"environment {self.name}: reset({seed}) has returned no observation")
        self._running = True
        return observation

    def step(self, action: Any) -> Transition:
        """Act once.

        Raises EnvironmentFailure if the episode is over, if the environment raises, if the reward is not one finite number, or if ``terminated`` or
        ``truncated`` is not a bool.
        """
        if not self._running:
            raise EnvironmentFailure(f"environment {self.name}: the episode is over; call reset(seed) before the next step")
        try:
            result = self.environment.step(action)
        except Exception as error:
            raise EnvironmentFailure(f"environment {self.name}: step({action!r:.80}) has raised {type(error).__name__}: {error}") from error
        if not isinstance(result, tuple) or len(result) != 5:
            raise EnvironmentFailure(f"environment {self.name}: step() has to return (observation, reward, terminated, truncated, info), not {result!r:.80}")
        observation, reward, terminated, truncated, info = result
        if observation is None:
            raise EnvironmentFailure(f"environment {self.name}: step({action!r:.80}) has returned no observation")
        if not isinstance(info, Mapping | None):
            raise EnvironmentFailure(f"environment {self.name}: info has to be a dictionary, not {info!r:.80}")
        transition = Transition(observation, self._reward(reward), self._flag(terminated, "terminated"), self._flag(truncated, "truncated"), dict(info or {}))
        self._running = not (transition.terminated or transition.truncated)
        return transition

    def close(self) -> None:
        """Close the environment, if it can be closed."""
        close = getattr(self.environment, "close", None)
        if close is not None:
            close()

    def _reward(self, reward: Any) -> float:
        try:
            if isinstance(reward, bool | str) or np.ndim(reward) != 0:
                raise TypeError
            value = float(reward)
        except (TypeError, ValueError):
            raise EnvironmentFailure(f"environment {self.name}: the reward has to be one number, not {reward!r:.80}") from None
        if not math.isfinite(value):
            raise EnvironmentFailure(f"environment {self.name}: the reward is {value}, and a reward has to be finite")
        return value

    def _flag(self, flag: Any, name: str) -> bool:
        if not isinstance(flag, bool | np.bool_):
            raise EnvironmentFailure(f"environment {self.name}: {name} has to be True or False, not {flag!r:.80}")
        return bool(flag)
