"""Which connection holds a client's id, so that two live clients never share one.

A `client_id` names a worker over all of its connections. Each connection object draws a `session` of its own, so the learner
distinguishes a worker that returns (same session: it replaces its old connection at once) from another worker that was given the same
id by mistake. In the second case the learner asks the holder for a sign of life. If one comes within `ANSWER_SECONDS`, the newcomer is
refused by name; if none comes, the newcomer takes over. Samples are numbered within a session, so they are never mixed up.
"""

from __future__ import annotations

import math
import threading
import time
from typing import Protocol

__all__ = ["ANSWER_SECONDS", "Claim", "Holder", "Identities"]

ANSWER_SECONDS = 2.0  # for the holder of an id to show that it lives
LOOK_SECONDS = 0.02  # between two looks for that


class Holder(Protocol):
    """A connection that holds a client's id. Every method may be called from any thread and must not wait."""

    def ask(self) -> None:
        """Send a PING, which the client answers."""

    def heard_at(self) -> float:
        """When the last byte of the client came (`time.monotonic()`); `math.inf` while nothing is read from it, as when the store is full."""

    def describe(self) -> str:
        """The client's name, process and host, for people."""

    def give_way(self, reason: str) -> None:
        """End the connection, for this reason."""


class Identities:
    """The ids that are held at one server, over all of its listeners. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[str, Holder]] = {}  # by client id: session, holder

    def claim(self, client_id: str, session: str, holder: Holder) -> Claim:
        """Ask for `client_id` on behalf of `holder`, whose handshake has been proven. Look at the result with `Claim.decided`."""
        return Claim(self, client_id, session, holder)

    def release(self, client_id: str, holder: Holder) -> None:
        """The connection of `holder` has ended. Does nothing if another connection holds the id by now."""
        with self._lock:
            if (held := self._held.get(client_id)) is not None and held[1] is holder:
                del self._held[client_id]


class Claim:
    """One client that asks for an id.

    Attributes:
        granted: whether it holds the id now.
        refusal: why it was refused, for people; "" if it was not.
        ask_again: when `decided` should be called again (`time.monotonic()`).
    """

    def __init__(self, identities: Identities, client_id: str, session: str, holder: Holder) -> None:
        self.granted = False
        self.refusal = ""
        self.ask_again = 0.0
        self._identities = identities
        self._client_id = client_id
        self._session = session
        self._holder = holder
        self._asked: Holder | None = None  # the present holder, which was asked for a sign of life ...
        self._asked_at = 0.0  # ... at this time

    def decided(self) -> bool:
        """Whether the id is granted or refused by now. Does not wait: call it again at `ask_again` until it is true."""
        now = time.monotonic()
        with self._identities._lock:
            session, holder = self._identities._held.get(self._client_id, (self._session, None))
            asked = holder is self._asked
            over = asked and now >= self._asked_at + ANSWER_SECONDS
            heard_at = holder.heard_at() if holder is not None else 0.0
            if session == self._session or (over and heard_at <= self._asked_at):
                self._identities._held[self._client_id] = self._session, self._holder
                self.granted = True
        assert holder is not None or self.granted
        if holder is None or session == self._session:
            return True
        if self.granted:
            holder.give_way(f"another client took over its client_id, because it gave no sign of life for {ANSWER_SECONDS:g} s")
        elif over or (asked and self._asked_at < heard_at < math.inf):
            self.refusal = (
                f"the client_id {self._client_id} is in use by {holder.describe()}, which is connected and alive;"
                " give every client an id of its own, or leave client_id out"
            )
        else:
            self.ask_again = now + LOOK_SECONDS
            if not asked:
                self._asked, self._asked_at = holder, now
                holder.ask()
            return False
        return True

    def withdraw(self) -> None:
        """The client is gone: give back what was granted."""
        self._identities.release(self._client_id, self._holder)
