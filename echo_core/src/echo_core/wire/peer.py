

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace

from ..base.memory.client_memory import Account
from ..security.tokens import EVERYTHING

__all__ = ["STATES", "Peer", "workers_of"]

#: What a client can be doing. "waiting for weights": a call of it waits for a version, and it has sent no samples for a second.
STATES = ("streaming", "idle", "waiting for space", "waiting for weights", "half a message")


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
    state: str = "idle"  # one of STATES
    state_since: float = 0.0  # time.monotonic()
    connections: tuple[Peer, ...] = field(default=(), compare=False, repr=False)  # as `Server.peers()` shows it: those of a worker with several
    memory: Account | None = field(default=None, compare=False, repr=False)  # what it makes the server hold; a transport may set it before `connected`

    @property
    def owner(self) -> Hashable:
        """What is equal for all connections of one worker, which has one for each table that it writes into. Ids can be given by hand, so those of
        another process, or of an unknown one, are of another worker."""
        return (self.id, self.pid, self.host) if self.role == "worker" and self.pid else id(self)


#: What a worker does whose connections do different things: the first of these.
_STRONGEST = ("waiting for space", "half a message", "streaming", "waiting for weights", "idle")


def workers_of(connections: Iterable[Peer]) -> list[Peer]:
    """The clients that have these connections, oldest first. A client with one connection is the `Peer` of it; one with several is a copy with
    their figures added up."""
    groups: dict[Hashable, list[Peer]] = {}
    for peer in sorted(connections, key=lambda peer: peer.connected_at):
        groups.setdefault(peer.owner, []).append(peer)
    return [group[0] if len(group) == 1 else _together(group) for group in groups.values()]


def _together(group: list[Peer]) -> Peer:
    newest = max(group, key=lambda peer: peer.weights_version)
    state = min((peer.state for peer in group), key=_STRONGEST.index)
    return replace(
        group[0],
        samples=sum(peer.samples for peer in group),
        bytes=sum(peer.bytes for peer in group),
        weights_version=newest.weights_version,
        weights_digest=newest.weights_digest,
        state=state,
        state_since=min(peer.state_since for peer in group if peer.state == state),
        connections=tuple(group),
    )
