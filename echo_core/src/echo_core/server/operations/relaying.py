"""The operation "weights/relay", by which a server that passes weights on says who holds what behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..weights.receipts import parsed

if TYPE_CHECKING:
    from ...wire.later import Answer
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["relay"]

MOST_SERVERS = 64  # above one another


def relay(server: ServerState, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Keep its receipts until its next report or its end, and tell it who is above it."""
    peer.relayed = parsed(body.get("receipts"))
    return {"path": server._path()[:MOST_SERVERS]}, b""
