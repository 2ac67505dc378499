"""What a learner remembers of its clients between their connections."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Protocol

__all__ = ["Session", "Sessions"]

MAX_SESSIONS = 1 << 18  # beyond that, the longest disconnected is forgotten; as in echo_tcp's learner/session.hpp
EVICTION_SECONDS = 5.0


class Owner(Protocol):
    """A connection that holds a session."""

    def evict(self, timeout: float) -> None:
        """End the connection and wait until it no longer touches the session."""


class Session:
    """One client's samples. The `owner` may commit the next one while it holds `lock`. So a
    connection that was replaced cannot insert a sample its successor will be sent again."""

    def __init__(self, base: int) -> None:
        self.lock = threading.Lock()
        self.owner: Owner | None = None
        self.committed = base  # samples 1 .. committed lie, or lay, in the store
        self.inserted = 0  # of them, here


class Sessions:
    """The sessions of a listener, by what the clients call them (identity.py says which client may hold an id)."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table: OrderedDict[str, Session] = OrderedDict()

    def open(self, name: str, base: int, owner: Owner) -> Session:
        """The session `name`, now owned by `owner`; its old connection is evicted first.

        `base` is how many samples the client knows committed. It matters when this learner does
        not know the client: the numbering goes on from there.
        """
        with self._lock:
            session = self._table.get(name)
            if session is None:
                session = self._table[name] = Session(base)
            self._table.move_to_end(name)
            self._forget_surplus()
        with session.lock:
            old, session.owner = session.owner, owner
            session.committed = max(session.committed, base)
        if old is not None:
            old.evict(EVICTION_SECONDS)
        return session

    def release(self, session: Session, owner: Owner) -> None:
        """`owner` is gone; the session stays for when its client returns."""
        with session.lock:
            if session.owner is owner:
                session.owner = None

    def _forget_surplus(self) -> None:
        if len(self._table) <= MAX_SESSIONS:
            return
        for name, session in self._table.items():
            if session.owner is None:
                del self._table[name]
                return
