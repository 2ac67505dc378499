"""The learner's log says which workers replay tables keep waiting, and why, over whatever transport they came."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from ..base.waiting import LOG_AFTER

if TYPE_CHECKING:
    from .state import ServerState

__all__ = ["BlockedWorkers"]

_log = logging.getLogger("echo")


class BlockedWorkers:
    """Looks at a server now and then: one line for each worker and wait."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # ids of workers, until they go on

    def look(self, server: ServerState) -> None:
        """Log who has waited for longer than `LOG_AFTER` and was not told of yet."""
        now = time.monotonic()
        waiting = {peer.id: peer for peer in server.peers() if peer.role == "worker" and peer.state == "waiting for space"}
        self._told &= waiting.keys()
        for key, peer in waiting.items():
            if key not in self._told and now - peer.state_since >= LOG_AFTER:
                self._told.add(key)
                _log.warning("worker %s has waited %.0f s for space: %s", peer.name, now - peer.state_since, reason(server))


def reason(server: ServerState) -> str:
    """Why workers wait: what the rate limiters say, or, where they would let more in, what else fills the tables."""
    tables = list(server.tables.values())
    limiting = [table for table in tables if "inserts" in table.stats()["blocked"]]
    return "; ".join(table.who_blocks_writers() for table in limiting or tables)
