"""One environment as the messages of OpenEnv see it: actions and observations are JSON."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np

from echo_core import EchoError
from echo_rl.environments.base import CheckedEnvironment

__all__ = ["Episode", "Refused", "action_schema"]


class Refused(Exception):
    """A message is answered with an error.

    Attributes:
        code: one of OpenEnv's codes of errors.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def action_schema(task: CheckedEnvironment) -> dict[str, Any]:
    """The JSON schema of an action, an object whose field ``action`` is a text, or a number or list where the environment has a space of Gymnasium."""
    space: Any = getattr(task.environment, "action_space", None)
    action: dict[str, Any] = {"type": "string"}
    if hasattr(space, "n"):
        least = int(getattr(space, "start", 0))
        number = {"type": "integer", "minimum": least, "maximum": least + int(space.n) - 1}
        # An environment that lists texts takes them as well as numbers.
        action = number if task.admissible is None else {"anyOf": [{"type": "string"}, number]}
    elif getattr(space, "shape", None) is not None:
        action = {"type": "array"}
    return {"type": "object", "properties": {"action": action, "metadata": {"type": "object"}}, "required": ["action"]}


class Episode:
    """The episodes of one session, one after another. One thread uses it.

    Args:
        make: makes the environment, when the first episode begins.
    """

    def __init__(self, make: Callable[[], CheckedEnvironment]) -> None:
        self._make = make
        self._schema: dict[str, Any] = {}
        self._task: CheckedEnvironment | None = None
        self._id: str | None = None
        self._steps = 0

    def reset(self, data: dict[str, Any]) -> dict[str, Any]:
        """Begin the episode of ``data["seed"]``, or a random one. Raises Refused."""
        seed, name = data.get("seed"), data.get("episode_id")
        if seed is not None and (type(seed) is not int or not 0 <= seed < 1 << 63):
            raise Refused(f"seed has to be a whole number from 0 to 2**63 - 1, not {seed!r:.80}", "VALIDATION_ERROR")
        if name is not None and (not isinstance(name, str) or len(name) > 255):
            raise Refused("episode_id has to be a text of at most 255 characters", "VALIDATION_ERROR")
        self._id, self._steps = name or secrets.token_hex(8), 0
        try:
            if self._task is None:
                self._task = self._make()
                self._schema = action_schema(self._task)["properties"]["action"]
            seen = self._task.reset(secrets.randbits(31) if seed is None else seed)
        except EchoError as error:
            raise Refused(str(error)[:500], "EXECUTION_ERROR") from error
        return self._told(seen, None, False, {})

    def step(self, data: dict[str, Any]) -> dict[str, Any]:
        """Act once. Raises Refused."""
        if "action" not in data or not data.keys() <= {"action", "metadata"}:
            raise Refused("an action has the field action, and may have metadata", "VALIDATION_ERROR")
        if self._task is None:
            raise Refused("there is no episode; send reset first", "EXECUTION_ERROR")
        action = data["action"]
        if not any(_fits(action, kind) for kind in self._schema.get("anyOf", [self._schema])):
            raise Refused(f"action has to be {self._schema}, not {action!r:.80}", "VALIDATION_ERROR")
        if isinstance(action, list):
            space: Any = getattr(self._task.environment, "action_space", None)
            try:
                action = np.asarray(action, space.dtype).reshape(space.shape)
            except (TypeError, ValueError) as error:
                raise Refused(f"action has to be numbers of shape {space.shape}: {error}", "VALIDATION_ERROR") from None
        try:
            found = self._task.step(action)
        except EchoError as error:
            raise Refused(str(error)[:500], "EXECUTION_ERROR") from error
        self._steps += 1
        info = {
            name: value
            for name, value in _plain(found.info).items()
            if isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
        }
        return self._told(found.observation, found.reward, found.terminated or found.truncated, {**info, "truncated": found.truncated})

    def state(self) -> dict[str, Any]:
        """Which episode it is, and how many steps were taken."""
        return {"episode_id": self._id, "step_count": self._steps}

    def close(self) -> None:
        """Close the environment."""
        if self._task is not None:
            self._task.close()

    def _told(self, observation: Any, reward: float | None, done: bool, metadata: dict[str, Any]) -> dict[str, Any]:
        assert self._task is not None
        if not done and (actions := self._task.admissible) is not None:
            metadata["admissible"] = actions
        return {"observation": {"observation": _plain(observation)}, "reward": reward, "done": done, "metadata": metadata}


def _fits(action: Any, kind: dict[str, Any]) -> bool:
    if kind["type"] == "integer":
        return type(action) is int and bool(kind["minimum"] <= action <= kind["maximum"])
    return isinstance(action, str if kind["type"] == "string" else list)


def _plain(value: Any) -> Any:
    """A value as JSON has it."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
