"""An environment that an OpenEnv server offers, by its address: ``openenv:http://127.0.0.1:8000``."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from echo_core import ConfigError
from echo_rl.checks import Rule, check_fields, instance, optional, real, whole
from echo_rl.environments.adapters.openenv.session import Address, Session, fetch
from echo_rl.environments.base import EnvironmentFailure

__all__ = ["OpenEnvConfig", "OpenEnvEnvironment"]


@dataclass(frozen=True)
class OpenEnvConfig:
    """Where the server is, how actions and observations are translated, and the bounds.

    Attributes:
        url: the server's address, ``http://``, ``https://``, ``ws://`` or ``wss://``. Redirects are not followed, and no proxy is used.
        token: is sent as a bearer token; to another machine only over TLS.
        action_field: the field of an action that takes what ``step`` is given. None takes the only field of the server's schema, or the only required one;
            where there are more, an action is a dictionary or a JSON object.
        observation_field: the field of an observation that is returned. None takes the only field; where there are more, the observation is their JSON.
        reset: further arguments of the server's ``reset``, such as ``{"split": "test"}``.
        max_steps: after how many steps an episode is truncated.
        timeout: for how many seconds connecting, or a call of the server, may take.
        max_bytes: the largest accepted answer.
    """

    url: str
    token: str | None = field(default=None, repr=False)
    action_field: str | None = None
    observation_field: str | None = None
    reset: dict[str, Any] = field(default_factory=dict)
    max_steps: int = 1000
    timeout: float = 60.0
    max_bytes: int = 16 << 20

    def __post_init__(self) -> None:
        text: Rule = instance(str)
        try:
            check_fields(
                self,
                url=text,
                token=optional(text),
                action_field=optional(text),
                observation_field=optional(text),
                reset=instance(dict),
                max_steps=whole(1),
                timeout=real(above=0, most=86400),
                max_bytes=whole(1 << 10, 1 << 30),
            )
            Address.of(self.url, self.token)
        except ValueError as error:
            raise ConfigError(f"openenv: {error}") from None


class OpenEnvEnvironment:
    """An environment of an OpenEnv server. Each has a session of its own there, which begins with the first ``reset``.

    Texts and numbers become the action field that the server's schema names, and arrays become lists. A text of the observation stays a text, numbers and
    lists of numbers become float32 arrays, and everything else is JSON. An action that the server's schema refuses changes nothing, takes a step, and is marked
    in ``info["invalid"]``. OpenEnv does not part termination from truncation; a server of Echo says it in the metadata.

    Args:
        config: the address and the translation.
    """

    def __init__(self, config: OpenEnvConfig) -> None:
        self.config = config
        self._address = Address.of(config.url, config.token)
        self._session: Session | None = None
        self._fields: dict[str, Any] | None = None
        self._required: list[str] = []
        self._metadata: dict[str, Any] = {}
        self._seen: Any = None
        self._taken = 0

    @property
    def admissible(self) -> list[str] | None:
        """The actions that are possible now, if the server lists them in the metadata, as servers of Echo do."""
        actions = self._metadata.get("admissible")
        return actions if isinstance(actions, list) and all(isinstance(action, str) for action in actions) else None

    def reset(self, seed: int) -> Any:
        """Begin the episode of this seed, in a new session if the last one has ended. Raises EnvironmentFailure."""
        if self._fields is None:
            self._learn()
        if self._session is not None and self._session.ended:
            self.close()
        if self._session is None:
            self._session = Session(self._address, self.config.timeout, self.config.max_bytes)
        self._taken = 0
        data, _, done = self._answer(self._ask("reset", {**self.config.reset, "seed": int(seed)}))
        if done:
            raise self._failure("reset: the episode is over before its first step")
        self._seen = self._observation(data)
        return self._seen

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Act once. Raises EnvironmentFailure, after which ``reset`` begins a new session."""
        if self._session is None:
            raise self._failure("there is no episode; call reset(seed) before the next step")
        self._taken += 1
        late = self._taken >= self.config.max_steps
        sent = self._action(action)
        answer = None if sent is None else self._ask("step", sent)
        if answer is None or (answer["type"] == "error" and answer["data"].get("code") == "VALIDATION_ERROR"):
            return self._seen, 0.0, False, late, {"invalid": True, "success": False}
        data, reward, done = self._answer(answer)
        self._seen = self._observation(data)
        cut = done and self._metadata.get("truncated") is True
        info = {name: value for name, value in self._metadata.items() if name != "admissible"}
        return self._seen, reward, done and not cut, cut or (late and not done), info

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def _learn(self) -> None:
        """Read which fields an action has."""
        schema = fetch(self._address, "/schema", self.config.timeout, self.config.max_bytes)
        action = schema.get("action") if isinstance(schema, dict) else None
        fields = action.get("properties") if isinstance(action, dict) else None
        if not isinstance(action, dict) or not isinstance(fields, dict):
            raise self._failure("/schema describes no action")
        required = action.get("required", [])
        self._fields = {name: kind for name, kind in fields.items() if name != "metadata"}
        self._required = [name for name in required if name in self._fields] if isinstance(required, list) else []
        if self.config.action_field is not None and self.config.action_field not in self._fields:
            known, self._fields = ", ".join(self._fields), None
            raise self._failure(f"actions have no field action_field={self.config.action_field!r}; they have {known}")

    def _ask(self, kind: str, data: dict[str, Any]) -> dict[str, Any]:
        assert self._session is not None
        try:
            return self._session.ask(kind, data, self.config.timeout)
        except BaseException:
            self._session = None
            raise

    def _action(self, action: Any) -> dict[str, Any] | None:
        """The fields of an action, or None for a text that has none."""
        if isinstance(action, dict):
            return action
        plain = action.tolist() if isinstance(action, np.ndarray | np.generic) else action
        assert self._fields is not None
        names = self._fields if len(self._fields) == 1 else self._required
        name = self.config.action_field or (next(iter(names)) if len(names) == 1 else None)
        if name is not None:
            return {name: plain}
        try:
            found = json.loads(plain)
        except (TypeError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) else None

    def _answer(self, answer: dict[str, Any]) -> tuple[dict[str, Any], float, bool]:
        """The observation's fields, the reward, and whether the episode is over."""
        data = answer["data"]
        if answer["type"] == "error":
            self.close()
            raise self._failure(f"the server answers {data.get('code', 'error')!s:.40}: {data.get('message', '')!s:.300}")
        observation, reward, done = data.get("observation"), data.get("reward"), data.get("done", False)
        if answer["type"] != "observation" or not isinstance(observation, dict) or not isinstance(done, bool):
            self.close()
            raise self._failure(f"the answer is no observation: {str(answer)[:200]}")
        if reward is not None and not _finite(reward):
            self.close()
            raise self._failure(f"the reward has to be a finite number, not {reward!r:.80}")
        metadata = observation.pop("metadata", None)
        metadata = data["metadata"] if isinstance(data.get("metadata"), dict) else metadata
        self._metadata = metadata if isinstance(metadata, dict) else {}
        return observation, float(reward or 0.0), done

    def _observation(self, fields: dict[str, Any]) -> Any:
        name = self.config.observation_field or (next(iter(fields)) if len(fields) == 1 else None)
        if name is None:
            return json.dumps(fields, ensure_ascii=False)
        if name not in fields:
            self.close()
            raise self._failure(f"the observation has no field observation_field={name!r}; it has {', '.join(fields) or 'none'}")
        value = fields[name]
        if isinstance(value, str):
            return value
        if isinstance(value, int | float | list) and not isinstance(value, bool):
            try:
                array = np.asarray(value)
            except ValueError:
                return json.dumps(value)  # Lists of different lengths are no array.
            if array.dtype.kind in "iuf":
                if not np.isfinite(array).all():
                    self.close()
                    raise self._failure(f"the observation has numbers that are not finite: {str(value)[:80]}")
                return array.astype(np.float32)
        return json.dumps(value, ensure_ascii=False)

    def _failure(self, words: str) -> EnvironmentFailure:
        return EnvironmentFailure(f"openenv {self._address.url}: {words}")


def _finite(reward: Any) -> bool:
    try:
        return isinstance(reward, int | float) and math.isfinite(reward)
    except OverflowError:
        return False
