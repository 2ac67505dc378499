"""The operation "drain", by which an admin takes the server out of service."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from ...base.errors import EchoError

if TYPE_CHECKING:
    from ...wire.later import Answer
    from ...wire.peer import Peer

__all__ = ["drain"]

DELAY = 0.1  # seconds, in which the answer is sent


def drain(server: Any, peer: Peer, body: dict[str, Any], blob: bytes) -> Answer:
    """Drain the server (a `Server`) soon, on another thread: the one that sends this answer must not wait for its own end."""
    seconds = body.get("timeout", 30.0)
    if type(seconds) not in (int, float) or not 0 <= seconds <= 86400:
        raise EchoError(f"timeout must be a number of seconds, not {seconds!r}")
    timer = threading.Timer(DELAY, server.drain, [seconds])
    timer.daemon, timer.name = True, "echo-drain"
    timer.start()
    return {"draining": True}, b""
