"""Who may do what at the endpoint: the operator opens, rewards and ends sessions, and the key of a session completes in it."""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping
from typing import Any

from echo_rl.serving.errors import ApiError
from echo_rl.serving.sessions.registry import Sessions
from echo_rl.serving.sessions.session import Session

MOST_METADATA = 16 << 10
"""Bytes of a session's metadata as JSON."""


class Gateway:
    """The part of an endpoint that knows keys and sessions.

    Args:
        token: The operator's key.
        sessions: The sessions.
    """

    def __init__(self, token: str, sessions: Sessions) -> None:
        self._token, self.sessions = token.encode(), sessions

    def authorize(self, key: str, path: str) -> Session | None:
        """Return the session that a key completes in, or None for the operator.

        Raise ApiError 401 for an unknown key, and 403 for a key that has another role than the path: an agent that was given the operator's key by mistake
        could write its own reward, so this key does not complete in sessions.
        """
        _, first, id, rest = (f"{path}///").split("/", 3)
        inside = first == "sessions" and rest.startswith("v1")
        if hmac.compare_digest(key.encode(), self._token):
            if inside:
                raise ApiError(403, "completions in a session take the key of the session, not that of the operator", "permission_error", code="wrong_key")
            return None
        own = self.sessions.of_key(key)
        if own is None:
            raise ApiError(401, "incorrect API key provided", code="invalid_api_key", www_authenticate="Bearer")
        if not inside or id != own:
            raise ApiError(403, "this key can only complete in its own session", "permission_error", code="wrong_key")
        try:
            return self.sessions.get(own)
        except ApiError as error:
            raise ApiError(403, str(error), "permission_error", code="session_ended") from error

    def operate(self, method: str, path: str, body: object) -> dict[str, Any]:
        """Carry out what the operator asks below ``/sessions``. Raise ApiError."""
        _, _, id, verb = (f"{path}///").split("/", 3)
        verb = verb.strip("/")
        allowed = {"": "GET" if id else "GET, POST", "reward": "POST", "end": "POST"}
        if verb not in allowed or (verb and not id):
            raise ApiError(404, f"unknown request URL: {method} {path[:200]}", code="unknown_url")
        if method not in allowed[verb]:
            raise ApiError(405, f"{path} takes {allowed[verb]}, not {method}", code="method_not_allowed", allow=allowed[verb])
        if not id:
            return self._open(body) if method == "POST" else self._list()
        if verb == "end":
            return self._end(id, body)
        session = self.sessions.get(id) if method == "POST" else None
        if session is None:
            done = self.sessions.ended(id)
            return done if done is not None else self.sessions.get(id).describe()
        session.set_reward(_fields(body, reward=...)["reward"])
        return session.describe()

    def _open(self, body: object) -> dict[str, Any]:
        fields = _fields(body, task=0, attempt=0, seed=None, metadata=None)
        metadata = fields.get("metadata") or {}
        if not isinstance(metadata, dict) or len(json.dumps(metadata)) > MOST_METADATA:
            raise ApiError(400, f"metadata must be an object of at most {MOST_METADATA} bytes", param="metadata", code="invalid_value")
        session = self.sessions.open(**fields)
        return {**session.describe(), "api_key": session.key, "base_url": session.base_url, "path": f"/sessions/{session.id}/v1"}

    def _list(self) -> dict[str, Any]:
        return {"object": "list", "data": [session.describe() for session in self.sessions.all()], "expired": self.sessions.expired}

    def _end(self, id: str, body: object) -> dict[str, Any]:
        # The operator's connection may have broken before it read the answer. Asking once more then gives the same answer.
        fields = _fields(body, reward=None, finish=None, discard=False)
        if not isinstance(fields["discard"], bool):
            raise ApiError(400, "discard must be true or false", param="discard", code="invalid_value")
        done = self.sessions.ended(id)
        if done is not None:
            return done
        session = self.sessions.get(id)
        try:
            ended = session.end(**fields)
        except TimeoutError as error:
            raise ApiError(503, str(error), "server_error") from error
        except ApiError as error:
            if error.status == 409 and (done := self.sessions.ended(id)) is not None:
                return done
            raise
        return {**(ended.describe() if ended else {"id": id, "task": session.task, "attempt": session.attempt, "reward": None}), "object": "session"}


def _fields(body: object, **defaults: Any) -> dict[str, Any]:
    """Return the fields of a body with their defaults; one without a default is needed. Raise ApiError for unknown ones."""
    if not isinstance(body, Mapping):
        raise ApiError(400, "the body must be a JSON object")
    if unknown := sorted(set(body) - set(defaults)):
        raise ApiError(400, f"unrecognized request argument supplied: {unknown[0][:100]}", param=unknown[0][:100], code="unknown_parameter")
    found = {name: body.get(name, default) for name, default in defaults.items()}
    for name, value in found.items():
        if value is ...:
            raise ApiError(400, f"you must provide {name}", param=name, code="missing_required_parameter")
    return found
