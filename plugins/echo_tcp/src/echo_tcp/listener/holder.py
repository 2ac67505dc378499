"""A connection of the native loops as the holder of its client's id (see `echo_core.wire.identity`)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from echo_core.wire.peer import Peer

    from .._learner import NativeLearner

__all__ = ["TcpHolder"]


class TcpHolder:
    """See `echo_core.wire.identity.Holder`. `serve` is called once a loop serves the connection."""

    def __init__(self) -> None:
        self._served: tuple[NativeLearner, int, Peer] | None = None

    def serve(self, native: NativeLearner, key: int, peer: Peer) -> None:
        """The connection is served by `native`, as `key`."""
        self._served = native, key, peer

    def ask(self) -> None:
        if self._served is not None:
            native, key, _ = self._served
            native.ping(key)

    def heard_at(self) -> float:
        if self._served is None:
            return math.inf
        native, key, _ = self._served
        return native.heard_at(key)

    def describe(self) -> str:
        if self._served is None:
            return "another client, which has just connected"
        peer = self._served[2]
        return f"worker {peer.name!r} (pid {peer.pid} on {peer.host!r})"

    def give_way(self, reason: str) -> None:
        if self._served is not None:
            native, key, _ = self._served
            native.evict(key, reason.encode())
