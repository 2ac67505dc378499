"""Which connection holds a client's id, so that two live clients never share one.

A `client_id` names a worker over all of its connections. Each connection object draws a `session` of its own, so the learner
distinguishes a worker that returns (same session: it replaces its old connection at once) from another worker that was given the same
id by mistake. In the second case the learner asks the holder for a sign of life. If one comes within `ANSWER_SECONDS`, the newcomer is
refused by name; if none comes, the newcomer takes over. Samples are numbered within a session, so they are never mixed up.

A worker that sends to several tables has a connection for each of them, all of one process and with one id. These do not disturb each other.
"""

from __future__ import annotations

import math
import secrets
import threading
import time
from typing import NamedTuple, Protocol

__all__ = ["ANSWER_SECONDS", "Claim", "Holder", "Identities", "client_number", "new_client_id"]

ANSWER_SECONDS = 2.0  # for the holder of an id to show that it lives
LOOK_SECONDS = 0.02  # between two looks for that


def new_client_id() -> str:
    """Return an id for a client, so that the server can distinguish its samples from those of all other clients."""
    return secrets.token_hex(16)


def client_number(client_id: str) -> int:
    """Return the part of a client's id that the marks of its samples contain, such as those of steps: the first 48 bits."""
    return int(client_id[:12], 16)


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
        self._held: dict[str, dict[str, _Held]] = {}  # by client id, then by table

    def claim(self, client_id: str, session: str, holder: Holder, *, table: str = "", process: str = "") -> Claim:
        """Ask for `client_id` on behalf of `holder`, whose handshake has been proven. Look at the result with `Claim.decided`.

        Connections of one `process` to different tables may hold an id together.
        """
        return Claim(self, client_id, table, _Held(process, session, holder))

    def release(self, client_id: str, holder: Holder) -> None:
        """The connection of `holder` has ended. Does nothing if another connection holds the id by now."""
        with self._lock:
            held = self._held.get(client_id, {})
            for table in [table for table, each in held.items() if each.holder is holder]:
                del held[table]
            if not held:
                self._held.pop(client_id, None)


class _Held(NamedTuple):
    """A connection that holds an id for one table."""

    process: str
    session: str
    holder: Holder


class Claim:
    """One client that asks for an id.

    Attributes:
        granted: whether it holds the id now.
        refusal: why it was refused, for people; "" if it was not.
        ask_again: when `decided` should be called again (`time.monotonic()`).
    """

    def __init__(self, identities: Identities, client_id: str, table: str, mine: _Held) -> None:
        self.granted = False
        self.refusal = ""
        self.ask_again = 0.0
        self._identities = identities
        self._client_id = client_id
        self._table = table
        self._mine = mine
        self._asked: Holder | None = None  # a present holder, which was asked for a sign of life ...
        self._asked_at = 0.0  # ... at this time

    def decided(self) -> bool:
        """Whether the id is granted or refused by now. Does not wait: call it again at `ask_again` until it is true."""
        now = time.monotonic()
        taken_over = []
        with self._identities._lock:
            held = self._identities._held.setdefault(self._client_id, {})
            while (rival := self._rival(held)) is not None:
                table, holder = rival
                heard_at = holder.heard_at()
                asked = holder is self._asked
                over = asked and now >= self._asked_at + ANSWER_SECONDS
                if not over or heard_at > self._asked_at:
                    break
                taken_over.append(held.pop(table).holder)
            if rival is None:
                held[self._table] = self._mine
                self.granted = True
        for gone in taken_over:
            gone.give_way(f"another client took over its client_id, because it gave no sign of life for {ANSWER_SECONDS:g} s")
        if rival is None:
            return True
        if over or (asked and self._asked_at < heard_at < math.inf):
            self.refusal = (
                f"the client_id {self._client_id} is in use by {holder.describe()}, which is connected and alive;"
                " give every client an id of its own, or leave client_id out"
            )
            return True
        self.ask_again = now + LOOK_SECONDS
        if not asked:
            self._asked, self._asked_at = holder, now
            holder.ask()
        return False

    def _rival(self, held: dict[str, _Held]) -> tuple[str, Holder] | None:
        """A connection of another client that holds the id, with its table; None if there is no such connection."""
        for table, each in held.items():
            if each.session != self._mine.session and (table == self._table or each.process != self._mine.process):
                return table, each.holder
        return None

    def withdraw(self) -> None:
        """The client is gone: give back what was granted."""
        self._identities.release(self._client_id, self._mine.holder)
