"""The operations that clients can request from a server by `request()`. Each names the roles that it requires (without roles: admin).
Operations on a storage, such as the draws from a replay table, are the storage's own (store/storage_operations.py).

An operation gets the server as an argument. A closure over the server would be a reference cycle, so that a dropped server would stay
alive and listening until the garbage collector runs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ... import __version__
from ...security.tokens import needs
from ..requests.large_messages import part, piece
from ..statistics.metrics import server_stats
from .calls import next_call
from .draining import drain
from .looks import tap
from .operation import Operation, of_clients, storage_of
from .relaying import relay

if TYPE_CHECKING:
    from ...wire.later import Answer
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["OPERATIONS", "Operation"]


def _specs(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    return {name: table.spec.to_json() for name, table in server.tables.items()}, b""


def _blocked(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Why a table, or the stream, takes no samples now; "" if it takes some."""
    return {"why": storage_of(server, body).why_full()}, b""


OPERATIONS: Mapping[str, Operation] = {
    "stats": needs("write", "read")(lambda server, peer, body, blob: (server_stats(server), b"")),
    "blocked": needs("write", "read")(of_clients(_blocked)),
    "ping": needs("write", "read")(
        lambda server, peer, body, blob: ({"time": time.time(), "version": __version__, "server": server.incarnation}, blob)
    ),
    "tables": needs("write", "read")(_specs),
    "part": needs("write", "read")(part),
    "piece": needs("write", "read")(piece),
    "drain": drain,  # for admins
    "calls/next": needs("write", "read")(next_call),
    "tap": needs("read")(of_clients(tap)),
    "weights/relay": needs("read")(of_clients(relay)),
}
