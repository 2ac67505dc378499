"""Why no samples come while the learner waits for a batch, for its error, the log and statistics, over every transport."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from ...base.plural import counted

if TYPE_CHECKING:
    from ..state import ServerState

__all__ = ["who_waits", "why_no_samples"]


def why_no_samples(server: ServerState) -> str:
    """Why the workers insert no samples, or not enough of them, and the remedy."""
    peers = server.peers()
    workers = [peer for peer in peers if peer.role == "worker"]
    weights = server._publishing
    published = weights.version if weights.published_at else 0  # `newest` is None for a moment while the next weights are packed
    waiting = [peer for peer in workers if peer.state == "waiting for weights" and peer.weights_version == published]
    relays = [] if published else [peer for peer in peers if peer.relayed is not None]
    connected = f"{counted(len(workers), 'worker')} connected"
    if waiting or relays:
        behind = f", and {counted(len(relays), 'relay')}" if relays else ""
        newer = f" newer than version {published}" if published else ""
        return f"{connected}, {len(waiting)} waiting for weights{newer}{behind}; call publish()"
    if workers and not any(peer.samples for peer in workers):
        return f"{connected}, and nothing was sent yet; wait longer (timeout=), or look at what the workers do"
    if workers:
        return f"{connected}, and slower than the learner; start more of them, or wait longer (timeout=)"
    if server._listeners:
        return "no worker is connected; start workers, or wait longer (timeout=)"
    return "samples are inserted slower than they are taken; insert them faster, or wait longer (timeout=)"


def who_waits(server: ServerState) -> str:
    """The state of each of the first five clients, and for how many seconds it has been in that state; "" without clients."""
    now = time.monotonic()
    return "; ".join(f"{peer.name} {peer.state} for {now - peer.state_since:.0f} s" for peer in server.peers()[:5])
