"""Why workers wait for space, for the log and for statistics, over every transport."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ...base.waiting import LOG_AFTER

if TYPE_CHECKING:
    from ...wire.peer import Peer
    from ..state import ServerState

__all__ = ["BlockedWorkers", "reason"]

_log = logging.getLogger("echo")


class BlockedWorkers:
    """Checks a server from time to time, and logs one line for each worker and wait."""

    def __init__(self) -> None:
        self._told: set[tuple[str, str]] = set()  # ids and tables of workers whose present wait was logged

    def look(self, server: ServerState) -> float:
        """Log the workers that have waited for longer than `LOG_AFTER` and were not logged yet.

        Returns:
            for how many seconds no other look is needed.
        """
        now = time.monotonic()
        connections = [each for peer in server.peers() for each in peer.connections or (peer,)]
        waiting = {(peer.id, peer.table): peer for peer in connections if _waits(peer)}
        self._told &= waiting.keys()
        for key, peer in waiting.items():
            if key in self._told or now - peer.state_since < LOG_AFTER:
                continue
            if why := reason(server, peer):  # otherwise there is room at this moment, and the next look decides
                self._told.add(key)
                _log.warning("worker %s has waited %.0f s for space: %s", peer.name, now - peer.state_since, why)
        return 0.0 if waiting else LOG_AFTER  # a wait that begins now need not be logged before


def reason(server: ServerState, peer: Peer) -> str:
    """Why this worker waits for space: what keeps its table, or the stream, from taking a sample. "" if it does not wait, or one could be taken now."""
    if peer.connections:
        return "; ".join(filter(None, (reason(server, each) for each in peer.connections)))
    if not _waits(peer):
        return ""
    return server._storage(peer.table or None).why_full()


def _waits(peer: Peer) -> bool:
    return peer.role == "worker" and peer.state == "waiting for space"
