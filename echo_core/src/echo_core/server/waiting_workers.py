"""Logs on the learner's side which workers wait for space in replay tables, and why, for every transport."""

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
    """Checks a server from time to time, and logs one line for each worker and wait."""

    def __init__(self) -> None:
        self._told: set[str] = set()  # ids of workers whose present wait was logged

    def look(self, server: ServerState) -> None:
        """Log the workers that have waited for longer than `LOG_AFTER` and were not logged yet."""
        now = time.monotonic()
        waiting = {peer.id: peer for peer in server.peers() if peer.role == "worker" and peer.state == "waiting for space"}
        self._told &= waiting.keys()
        for key, peer in waiting.items():
            if key not in self._told and now - peer.state_since >= LOG_AFTER:
                self._told.add(key)
                _log.warning("worker %s has waited %.0f s for space: %s", peer.name, now - peer.state_since, reason(server))


def reason(server: ServerState) -> str:
    """Why workers wait: the reason that a rate limiter gives or, if the limiters allow more inserts, what else keeps the tables full."""
    tables = list(server.tables.values())
    limiting = [table for table in tables if "inserts" in table.stats()["blocked"]]
    return "; ".join(table.who_blocks_writers() for table in limiting or tables)
