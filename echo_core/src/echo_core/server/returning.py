"""Ends the open episodes of a checkpoint whose workers do not come back to the restored server."""

from __future__ import annotations

import logging
import threading
import weakref
from typing import TYPE_CHECKING

from ..base.plural import counted

if TYPE_CHECKING:
    from .state import ServerState

__all__ = ["SECONDS", "ReturnWatch"]

SECONDS = 60.0  # from the start of the server. Workers try to reconnect more often than that.

_log = logging.getLogger("echo")


class ReturnWatch:
    """A timer of a server that was started. When it is over, the restored episodes of clients that are not connected end as truncated."""

    def __init__(self, server: ServerState) -> None:
        self._timer = threading.Timer(SECONDS, _end, (weakref.ref(server),))  # it must not keep a dropped server alive
        self._timer.name, self._timer.daemon = "echo-returns", True
        self._timer.start()

    @classmethod
    def maybe(cls, server: ServerState) -> ReturnWatch | None:
        """The timer, if the server has restored episodes that are open."""
        return cls(server) if any(storage.awaits_workers() for storage in server.storages.values()) else None

    def stop(self) -> None:
        self._timer.cancel()
        self._timer.join()


def _end(server: weakref.ref[ServerState]) -> None:
    alive = server()
    if alive is None:
        return
    connected = [peer.id for peer in alive.peers()]
    for storage in alive.storages.values():
        if ended := storage.end_restored(connected):
            _log.info("table %s: %s ended, because no worker returned within %g s", storage.name, counted(ended, "restored episode"), SECONDS)
