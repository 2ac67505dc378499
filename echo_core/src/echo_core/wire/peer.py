

from __future__ import annotations

from dataclasses import dataclass, field

from ..base.memory.client_memory import Account
from ..security.tokens import EVERYTHING

__all__ = ["Peer"]


@dataclass
class Peer:
    """The learner's record of one connected client. The transport updates it in place."""

    id: str  # 32 hex digits, the same across reconnects
    name: str
    address: str
    role: str = "worker"
    table: str = ""  # the replay table that it named, as in its handshake; "" is the first one, or the stream
    permissions: frozenset[str] = EVERYTHING  # the roles of its token
    pid: int = 0
    host: str = ""
    connected_at: float = 0.0  # time.time()
    samples: int = 0  # committed samples of this client, over all its connections
    bytes: int = 0  # bytes received on this connection
    weights_version: int = 0  # the newest complete version that it holds; 0: none
    weights_digest: int = 0
    relayed: dict[tuple[int, int], int] | None = None  # of a server that passes the weights on: clients behind it by (version, digest) that they hold
    state: str = "idle"  # "streaming" | "idle" | "waiting for space" | "half a message"
    state_since: float = 0.0  # time.monotonic()
    memory: Account | None = field(default=None, compare=False, repr=False)  # what it makes the server hold; a transport may set it before `connected`
