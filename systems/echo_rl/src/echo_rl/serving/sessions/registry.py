"""All sessions of an endpoint: their keys, how many there may be, and the end of those that nobody uses."""

from __future__ import annotations

import hashlib
import logging
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from echo_rl.serving.errors import ApiError
from echo_rl.serving.sessions.session import ENDED, EndedSession, Session, SessionLimits

REMEMBERED = 4096
"""How many ended sessions are remembered, so that a late call learns what has become of its session."""

RETRY = 1.0
"""Seconds after which an idle session that could not be ended is looked at again."""

_log = logging.getLogger("echo.rl")


class Sessions:
    """The sessions of one endpoint. All methods may be called by several threads.

    Args:
        base_url: The URL of the endpoint, without its path.
        limits: What sessions may use.
        on_end: Takes what each ended session leaves behind. If it raises, the session can be ended again.

    Attributes:
        expired: How many sessions have ended because nobody used them.
    """

    def __init__(self, base_url: str, limits: SessionLimits, on_end: Callable[[EndedSession], None] | None = None) -> None:
        self._base_url, self.limits, self._on_end = base_url, limits, on_end
        self.expired = 0
        self._changed = threading.Condition()
        self._open: dict[str, Session] = {}
        self._ended: OrderedDict[str, tuple[dict[str, Any], str]] = OrderedDict()  # what there is to say, and how it ended
        # The number of the session by the digest of its key: how long a lookup takes then says nothing about the keys themselves.
        self._holders: dict[bytes, str] = {}
        self._keys: dict[str, bytes] = {}
        self._closed = False
        self._watch: threading.Thread | None = None

    def open(self, *, task: int = 0, attempt: int = 0, seed: int | None = None, metadata: Mapping[str, Any] | None = None) -> Session:
        """Open a session.

        Args:
            task, attempt: Which task the session tries, and which attempt it is; the record has them.
            seed: The seed of answers whose calls name none. It makes the draws of a session repeatable.
            metadata: What the operator wants to know again. The agent and the model never see it.

        Raises:
            ApiError: As many sessions as may be are open, or a value is wrong.
        """
        id = f"s{secrets.token_hex(8)}"
        try:
            session = Session(
                id,
                secrets.token_urlsafe(24),
                f"{self._base_url}/sessions/{id}/v1",
                self.limits,
                self._end,
                task=task,
                attempt=attempt,
                seed=seed,
                metadata=metadata,
            )
        except ValueError as error:
            raise ApiError(400, str(error), param=str(error).split()[0], code="invalid_value") from error
        with self._changed:
            if self._closed:
                raise ApiError(503, "the endpoint is closing", "server_error")
            if len(self._open) >= self.limits.sessions:
                message = f"{len(self._open)} sessions are open; end one of them"
                raise ApiError(429, message, "rate_limit_error", code="too_many_sessions", retry_after="1")
            self._open[id] = session
            self._keys[id] = _digest(session.key)
            self._holders[self._keys[id]] = id
            if self._watch is None:
                self._watch = threading.Thread(target=self._end_idle, name="echo-rl-sessions", daemon=True)
                self._watch.start()
        return session

    def get(self, id: str) -> Session:
        """Return an open session. Raise ApiError if there is none with this number."""
        with self._changed:
            if id in self._open:
                return self._open[id]
            if id in self._ended:
                raise _over(self._ended[id][1])
        raise ApiError(404, f"there is no session {id[:40]!r}", code="session_not_found")

    def ended(self, id: str) -> dict[str, Any] | None:
        """Return the description of a session that has ended with a record, if it is remembered."""
        with self._changed:
            found, how = self._ended.get(id, ({}, ""))
            return found if how == ENDED and found["reward"] is not None else None

    def all(self) -> list[Session]:
        """Return the open sessions, oldest first."""
        with self._changed:
            return list(self._open.values())

    def of_key(self, key: str) -> str | None:
        """Return the number of the session, open or ended, that a key belongs to."""
        with self._changed:
            return self._holders.get(_digest(key))

    def close(self) -> None:
        """End every session without a record."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            left = list(self._open.values())
        if left:
            _log.warning("the endpoint closes: %d open sessions end without a record", len(left))
        for session in left:
            try:
                session.end(discard=True)
            except (ApiError, TimeoutError):
                pass  # It has ended meanwhile, or a thread of its client still writes.
        if self._watch is not None:
            self._watch.join()

    def _end(self, session: Session, ended: EndedSession | None, how: str) -> None:
        with self._changed:
            if session.id not in self._open:
                raise _over(self._ended.get(session.id, ({}, "long ago"))[1])
        if ended is not None and self._on_end is not None:
            try:
                self._on_end(ended)
            except Exception as error:
                _log.exception("the record of the session %s was not taken", session.id)
                raise ApiError(500, f"the record was not taken: {error}; end the session again", "server_error", code="record_not_taken") from error
        with self._changed:
            del self._open[session.id]
            found = {"id": session.id, "task": session.task, "attempt": session.attempt, "reward": None} if ended is None else ended.describe()
            self._ended[session.id] = {**found, "object": "session"}, how
            while len(self._ended) > REMEMBERED:
                old, _ = self._ended.popitem(last=False)
                del self._holders[self._keys.pop(old)]

    def _end_idle(self) -> None:
        idle = self.limits.idle
        while True:
            now, left = time.monotonic(), idle
            for session in self.all():
                rest = idle - session.idle(now)
                if rest <= 0:
                    # One that is just being ended is looked at again.
                    rest = idle if self._expire(session) else RETRY
                left = min(left, rest)
            with self._changed:
                # A session that is opened now is idle no earlier than the next look.
                if self._closed or self._changed.wait_for(lambda: self._closed, left):
                    return

    def _expire(self, session: Session) -> bool:
        try:
            if not session.end_if_idle(self.limits.idle):
                return False
        except ApiError:
            return True  # Somebody else ended it at the same moment.
        _log.warning("the session %s of task %d was idle for %s s and has ended without a record", session.id, session.task, self.limits.idle)
        with self._changed:
            self.expired += 1
        return True


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


def _over(how: str) -> ApiError:
    return ApiError(409, f"the session has ended: {how}", code="session_ended")
