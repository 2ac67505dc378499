"""One connected client as the learner sees it."""

from __future__ import annotations

from dataclasses import dataclass

from ..security.tokens import EVERYTHING

__all__ = ["Peer"]


@dataclass
class Peer:
    """One connected client as the learner sees it. The transport updates it in place."""

    id: str  # 32 hex digits, the same across reconnects
    name: str
    address: str
    role: str = "worker"
    permissions: frozenset[str] = EVERYTHING  # the roles of its token
    pid: int = 0
    host: str = ""
    connected_at: float = 0.0  # time.time()
    samples: int = 0  # committed from this client, all its connections together
    bytes: int = 0  # received on this connection
    weights_version: int = 0  # newest version it holds whole; 0: none
    weights_digest: int = 0
    state: str = "idle"  # "streaming" | "idle" | "waiting for space" | "half a message"
    state_since: float = 0.0  # time.monotonic()
